"""Tools for tests of agents and of durable sessions: a scripted model, a local Gemini API, child processes, faults.

Everything here is public, also for the tests of programs that use perdure.  The names are imported when they are first
used: a child process that only wants a fault point does not wait for google-adk.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from perdure.faults import FAULT_POINTS, Action, DurableWrite, FaultPoint, InjectedFault, Moment, arm

if TYPE_CHECKING:
    from perdure.testing.children import ChildError, WorkerChild
    from perdure.testing.engine import RunningEngine, read_messages, read_step_history, running_engine, step_shape
    from perdure.testing.gate import Gate
    from perdure.testing.gemini_server import GeminiServer, ReceivedRequest
    from perdure.testing.history import HistoryError, check_history, history_problems
    from perdure.testing.model import ScriptedModel
    from perdure.testing.reading import agent_name, replies_this_turn, tool_results, user_text
    from perdure.testing.replies import Reply, Tokens, call, image, reply, text, thought
    from perdure.testing.request_log import LoggedRequest, read_request_log
    from perdure.testing.script import (
        Failure,
        Rule,
        Script,
        ScriptError,
        api_error,
        by_agent,
        by_message,
        by_turn,
        failing,
    )

__all__ = [
    "FAULT_POINTS",
    "Action",
    "ChildError",
    "DurableWrite",
    "Failure",
    "FaultPoint",
    "Gate",
    "GeminiServer",
    "HistoryError",
    "InjectedFault",
    "LoggedRequest",
    "Moment",
    "ReceivedRequest",
    "Reply",
    "Rule",
    "RunningEngine",
    "Script",
    "ScriptError",
    "ScriptedModel",
    "Tokens",
    "WorkerChild",
    "agent_name",
    "api_error",
    "arm",
    "by_agent",
    "by_message",
    "by_turn",
    "call",
    "check_history",
    "failing",
    "history_problems",
    "image",
    "read_messages",
    "read_request_log",
    "read_step_history",
    "replies_this_turn",
    "reply",
    "running_engine",
    "step_shape",
    "text",
    "thought",
    "tool_results",
    "user_text",
]

_HOMES = {
    "children": ("ChildError", "WorkerChild"),
    "engine": ("RunningEngine", "read_messages", "read_step_history", "running_engine", "step_shape"),
    "gate": ("Gate",),
    "gemini_server": ("GeminiServer", "ReceivedRequest"),
    "history": ("HistoryError", "check_history", "history_problems"),
    "model": ("ScriptedModel",),
    "reading": ("agent_name", "replies_this_turn", "tool_results", "user_text"),
    "replies": ("Reply", "Tokens", "call", "image", "reply", "text", "thought"),
    "request_log": ("LoggedRequest", "read_request_log"),
    "script": (
        "Failure",
        "Rule",
        "Script",
        "ScriptError",
        "api_error",
        "by_agent",
        "by_message",
        "by_turn",
        "failing",
    ),
}
"""Module -> the names that come from it."""


if not TYPE_CHECKING:  # else every misspelt name would pass the type checkers

    def __getattr__(name: str) -> object:
        for module, names in _HOMES.items():
            if name in names:
                value: object = getattr(import_module(f"{__name__}.{module}"), name)
                globals()[name] = value
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
