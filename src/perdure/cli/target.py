"""Finds the agent that TARGET names, as ADK's own command line finds it, and makes a durable flow of it."""

from __future__ import annotations

import inspect
from dataclasses import replace
from types import ModuleType
from typing import Any

import click

from perdure.cli.base import Decorated
from perdure.cli.places import modules_of
from perdure.errors import UsageError
from perdure.session.runner import AgentSessionFlow

OPTIONS_NAME = "perdure_options"
"""A module beside the agent may have this: keyword arguments for ``adk_agent_session_flow``."""

_NAMES = ("flow", "app", "root_agent")


def flow_type_option(command: Decorated) -> Decorated:
    """``--flow-type``."""
    return click.option(
        "--flow-type", metavar="TYPE", help="The agent's name in the store; else the App's or the agent's own name."
    )(command)


def load_flow(target: str, flow_type: str | None = None) -> AgentSessionFlow:
    """The flow that TARGET names.

    TARGET is ``package.module``, ``path/to/file.py``, ``path/to/folder``, or any of them with ``:object`` behind it.
    Without an object it has ``app`` or ``root_agent`` (a folder in its package or in ``agent.py``), or a ready
    ``flow``.

    Raises:
        UsageError: there is no such thing, it cannot be imported, or it is no agent; the message says which.
    """
    named, _, attribute = target.partition(":")
    module, found = _find(named, attribute, target)
    if isinstance(found, AgentSessionFlow):
        return found if flow_type is None else replace(found, flow_type=flow_type)
    return _make_flow(found, _options_of(module, target), flow_type, target)


def _find(named: str, attribute: str, target: str) -> tuple[ModuleType, object]:
    """The agent, and the module that has it."""
    modules: list[ModuleType] = []
    for module in modules_of(named, target):
        modules.append(module)
        found = _named(module, attribute) if attribute else _by_convention(module)
        if found is not None:
            return module, found
    searched = " and ".join(module.__name__ for module in modules)
    if attribute:
        raise UsageError(f"{target}: {searched} has no {attribute!r}", target=target)
    others = [
        f"{name} is a {type(getattr(module, name)).__name__}"
        for module in modules
        for name in _NAMES
        if hasattr(module, name)
    ]
    hint = f" ({', '.join(others)})" if others else ""
    raise UsageError(
        f"{target}: found no 'root_agent' and no ADK App named 'app' in {searched}{hint}; name the object with "
        f"{target}:OBJECT",
        target=target,
    )


def _named(module: ModuleType, attribute: str) -> object | None:
    found: object = module
    for name in attribute.split("."):
        found = getattr(found, name, None)
    return found


def _by_convention(module: ModuleType) -> object | None:
    """ADK takes ``app`` if it is an App, else ``root_agent``.  A ready flow comes first: it says more than they do."""
    found = {name: getattr(module, name, None) for name in _NAMES}
    if isinstance(found["flow"], AgentSessionFlow):
        return found["flow"]
    return found["app"] if _is_adk_app(found["app"]) else found["root_agent"]


def _is_adk_app(value: object) -> bool:
    """Whether this is ADK's App, and not, say, FastAPI's.  Only ``perdure.adk`` may import ADK's class to ask."""
    kinds = type(value).__mro__
    return any(kind.__name__ == "App" and kind.__module__.startswith("google.adk.") for kind in kinds)


def _options_of(module: ModuleType, target: str) -> dict[str, Any]:
    options: Any = getattr(module, OPTIONS_NAME, {})
    if not isinstance(options, dict):
        raise UsageError(
            f"{target}: {OPTIONS_NAME} is a {type(options).__name__}; it must be a dict of keyword arguments for "
            "adk_agent_session_flow",
            target=target,
        )
    return {**options}


def _make_flow(agent: Any, options: dict[str, Any], flow_type: str | None, target: str) -> AgentSessionFlow:
    # Loaded here, so that a ready flow of another framework starts without ADK.
    from perdure.adk import adk_agent_session_flow

    unknown = options.keys() - inspect.signature(adk_agent_session_flow).parameters.keys()
    if unknown:
        raise UsageError(
            f"{target}: {OPTIONS_NAME} has {', '.join(sorted(map(str, unknown)))}, which adk_agent_session_flow does "
            "not take",
            target=target,
        )
    name = flow_type or options.pop("flow_type", None) or getattr(agent, "name", None)
    if not isinstance(name, str):
        raise UsageError(f"{target} is a {type(agent).__name__}, and no ADK agent or App", target=target)
    options["flow_type"] = name
    return adk_agent_session_flow(agent, **options)
