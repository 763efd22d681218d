"""What callers pass to ADK's own interfaces, checked.  ``WrongCall`` leaves it, and ``TypeError`` for unknown names."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Iterable, Mapping
from typing import cast

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.run_config import RunConfig
from google.adk.apps.app import App
from google.adk.artifacts.base_artifact_service import BaseArtifactService
from google.adk.auth.credential_service.base_credential_service import BaseCredentialService
from google.adk.memory.base_memory_service import BaseMemoryService
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.workflow import BaseNode
from google.genai import types

from perdure.adk.flow_options import FlowOptions
from perdure.adk.native.errors import WrongCall
from perdure.arguments import expect, expect_each, wrong
from perdure.engine.base import Engine
from perdure.engine.open import open_engine
from perdure.session.values import is_unicode

_KINDS: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    "app": (App, "an ADK App"),
    "app_name": (str, "a str"),
    "agent": (BaseAgent, "an ADK agent"),
    "node": (BaseNode, "an ADK node, such as a Workflow"),
    "artifact_service": (BaseArtifactService, "an ADK BaseArtifactService"),
    "memory_service": (BaseMemoryService, "an ADK BaseMemoryService"),
    "credential_service": (BaseCredentialService, "an ADK BaseCredentialService"),
    "flow_type": (str, "a str"),
    "invocation_id": (str, "a str: the id of a turn"),
    "run_config": (RunConfig, "an ADK RunConfig"),
    "abort_signal": (asyncio.Event, "an asyncio.Event"),
    "state": (Mapping, "a dict"),
    "state_delta": (Mapping, "a dict"),
}
"""Arguments that may be ``None``, and what they are else."""

_CONTENT = "a google.genai Content, such as types.UserContent('Hello')"


def check_engine(engine: object) -> None:
    """Raises: WrongCall, when it is no engine; UsageError, when it is an address of no known kind."""
    expect(
        engine, (str, Engine), "engine", "an address, such as 'sqlite:///support.db', or an open engine", kind=WrongCall
    )
    if isinstance(engine, str):
        open_engine(engine)  # Nothing is opened by that.


def check_optional(**arguments: object) -> None:
    """Refuses arguments of the wrong type; all of them may be ``None``.  Raises: WrongCall."""
    for name, value in arguments.items():
        kinds, wanted = _KINDS[name]
        expect(value, kinds, name, wanted, optional=True, kind=WrongCall)


def check_plugins(plugins: object, close_timeout: object) -> None:
    """Raises: WrongCall, when it is no list of plugins, or their time to close is no number."""
    if plugins is not None:
        expect_each(plugins, BasePlugin, "plugins", "ADK plugins", kind=WrongCall)
    expect(close_timeout, (int, float), "plugin_close_timeout", "a number of seconds", kind=WrongCall)


def check_switches(**switches: object) -> None:
    """Raises: WrongCall, when one of them is neither ``True`` nor ``False``."""
    for name, value in switches.items():
        expect(value, bool, name, "True or False", kind=WrongCall)


def check_options(names: Iterable[str]) -> None:
    """Raises: TypeError, when one of the names is no option of a flow."""
    known = list(FlowOptions.__annotations__)
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"the options of a flow are {', '.join(known)}"
            raise TypeError(f"DurableRunner() got an unexpected keyword argument {name!r}; {hint}")


def check_names(**names: object) -> None:
    """Raises: WrongCall, when one of them is no text that a store takes."""
    for name, value in names.items():
        expect(value, str, name, "a str", kind=WrongCall)
        if not is_unicode(cast(str, value)):
            raise wrong(name, value, "valid Unicode (it has half of a surrogate pair)", WrongCall)


def check_message(message: object) -> None:
    """Raises: WrongCall, when it is no message in ADK's own form."""
    if isinstance(message, str):
        raise wrong("new_message", message, f"{_CONTENT}, not a str", WrongCall)
    expect(message, types.Content, "new_message", _CONTENT, optional=True, kind=WrongCall)


def check_words(messages: object) -> None:
    """Raises: WrongCall, when they are not what ``run_debug`` sends: text, or a list of texts."""
    if isinstance(messages, str):
        return
    expect(messages, (list, tuple), "user_messages", "a str, or a list of str", kind=WrongCall)
    expect_each(messages, str, "user_messages", "str", kind=WrongCall)
