"""Finds the agent that TARGET names, as ADK's own command line finds it, and makes a durable flow of it."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import click

from perdure.cli.base import Decorated
from perdure.errors import UsageError
from perdure.session.runner import AgentSessionFlow

OPTIONS_NAME = "perdure_options"
"""A module beside the agent may have this: keyword arguments for ``adk_agent_session_flow``."""

_NAMES = ("flow", "app", "root_agent")

ADK_DISABLES_DOTENV = "ADK_DISABLE_LOAD_DOTENV"
"""ADK's own switch."""


def flow_type_option(command: Decorated) -> Decorated:
    """``--flow-type``."""
    return click.option(
        "--flow-type", metavar="TYPE", help="The agent's name in the store; else the App's or the agent's own name."
    )(command)


def load_flow(target: str, flow_type: str | None = None) -> AgentSessionFlow:
    """The flow that TARGET names.

    TARGET is ``package.module``, ``path/to/file.py``, ``path/to/folder``, or any of them with ``:object`` behind it.
    Without an object it has ``app`` or ``root_agent`` (a folder in its package or in ``agent.py``), or a ready ``flow``.

    Raises:
        UsageError: there is no such thing, it cannot be imported, or it is no agent; the message says which.
    """
    named, _, attribute = target.partition(":")
    place = _place_of(named, target)
    if str(place.root) not in sys.path:
        sys.path.insert(0, str(place.root))
    _load_dotenv(place.folder or _folder_of_module(named))
    module, found = _find(place, attribute, target)
    if isinstance(found, AgentSessionFlow):
        return found if flow_type is None else replace(found, flow_type=flow_type)
    return _make_flow(found, _options_of(module, target), flow_type, target)


# ---------------------------------------------------------------- where it is


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an agent's module is.

    Attributes:
        root: must be on ``sys.path``.
        folder: where ADK would look for ``.env``, and in the folders above it; ``None``: where the module turns out to be.
        path: the file or folder that must be behind the module's name; ``None`` when only a name was given.
    """

    module: str
    root: Path
    folder: Path | None
    path: Path | None


def _place_of(named: str, target: str) -> _Place:
    path = Path(named).resolve()
    if named and path.is_dir():
        return _Place(path.name, path.parent, path, path)
    if path.is_file():
        if path.suffix != ".py":
            raise UsageError(f"{target}: {path.name} is no Python file; an agent's file ends with .py", target=target)
        names, root = [path.stem], path.parent
        while (root / "__init__.py").is_file():
            names, root = [root.name, *names], root.parent
        return _Place(".".join(names), root, path.parent, path)
    if not named or "/" in named or named.endswith(".py"):
        raise UsageError(f"{target}: there is no such file or folder below {Path.cwd()}", target=target)
    return _Place(named, Path.cwd(), None, None)


def _folder_of_module(name: str) -> Path:
    """The folder of a module that was only named, found without importing anything; else the working directory."""
    first, *inner = name.split(".")
    try:
        spec = importlib.util.find_spec(first)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return Path.cwd()
    if spec.submodule_search_locations:
        place = Path(next(iter(spec.submodule_search_locations))).joinpath(*inner)
        return place if place.is_dir() else place.parent
    return Path(spec.origin).parent if spec.origin is not None else Path.cwd()


def _load_dotenv(folder: Path) -> None:
    """Sets what the next ``.env`` upwards says, as ADK does; what is set in the environment already stays."""
    if os.environ.get(ADK_DISABLES_DOTENV, "").lower() in ("1", "true"):
        return
    for place in (folder, *folder.parents):
        if (place / ".env").is_file():
            importlib.import_module("dotenv").load_dotenv(place / ".env")
            return


# ---------------------------------------------------------------- what it is


def _find(place: _Place, attribute: str, target: str) -> tuple[ModuleType, object]:
    """The agent, and the module that has it."""
    modules: list[ModuleType] = []
    for module in _modules(place, target):
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


def _modules(place: _Place, target: str) -> Iterator[ModuleType]:
    """The modules in which the agent may be, in ADK's order."""
    module = _import(place.module, target)
    _check_place(module, place, target)
    yield module
    if hasattr(module, "__path__") and importlib.util.find_spec(f"{place.module}.agent") is not None:
        yield _import(f"{place.module}.agent", target)


def _import(name: str, target: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise UsageError(
                f"{target}: there is no module {error.name!r}, and no file or folder of this name in {Path.cwd()}",
                target=target,
            ) from error
        raise _import_failed(target, error) from error
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's module may raise anything
        raise _import_failed(target, error) from error


def _import_failed(target: str, error: BaseException) -> UsageError:
    """Says what the last line of the traceback says, and where in the user's code it comes from."""
    last = traceback.format_exception_only(error)[-1].strip()
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen ")]
    # The first frames are this module's and importlib's.
    theirs = [frame for frame in own if frame.filename not in (__file__, importlib.__file__)]
    where = f" ({theirs[-1].filename}, line {theirs[-1].lineno})" if theirs else ""
    return UsageError(f"{target} cannot be imported: {last}{where}", target=target)


def _check_place(module: ModuleType, place: _Place, target: str) -> None:
    """Raises: UsageError, when another module has taken the name of what is at the path."""
    if place.path is None:
        return
    files = [module.__file__] if module.__file__ is not None else list(getattr(module, "__path__", ()))
    if any(Path(file).resolve() in (place.path, place.path / "__init__.py") for file in files):
        return
    raise UsageError(
        f"{target}: the name {place.module!r} is taken by another module ({', '.join(map(str, files))}); rename the file "
        "or folder",
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


# ---------------------------------------------------------------- the flow


def _options_of(module: ModuleType, target: str) -> dict[str, object]:
    options = getattr(module, OPTIONS_NAME, None)
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise UsageError(
            f"{target}: {OPTIONS_NAME} is a {type(options).__name__}; it must be a dict of keyword arguments for "
            "adk_agent_session_flow",
            target=target,
        )
    return {str(name): value for name, value in options.items()}


def _make_flow(agent: object, options: dict[str, object], flow_type: str | None, target: str) -> AgentSessionFlow:
    # Loaded here, so that a ready flow of another framework starts without ADK.
    from perdure.adk import adk_agent_session_flow

    unknown = options.keys() - inspect.signature(adk_agent_session_flow).parameters.keys()
    if unknown:
        raise UsageError(
            f"{target}: {OPTIONS_NAME} has {', '.join(sorted(unknown))}, which adk_agent_session_flow does not take",
            target=target,
        )
    name = flow_type or options.pop("flow_type", None) or getattr(agent, "name", None)
    if not isinstance(name, str):
        raise UsageError(f"{target} is a {type(agent).__name__}, and no ADK agent or App", target=target)
    return adk_agent_session_flow(agent, **{**options, "flow_type": name})
