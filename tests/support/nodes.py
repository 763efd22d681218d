"""ADK's own constructors for workflows, whose parameters a type checker does not see as they are."""

from __future__ import annotations

from typing import Any, cast

from google.adk.events.event import Event
from google.adk.events.request_input import RequestInput
from google.adk.workflow import Workflow


def event(**given: Any) -> Event:
    """An event; ``message``, ``state`` and ``route`` are words of ADK for parts of it."""
    return cast(Event, cast(Any, Event)(**given))


def request(**given: Any) -> RequestInput:
    """A question; ADK has a default for everything."""
    return cast(RequestInput, cast(Any, RequestInput)(**given))


def graph(name: str, edges: list[Any], **more: Any) -> Workflow:
    """A workflow; edges may be any mixture of nodes, functions, tools, tuples and dicts."""
    return Workflow(name=name, edges=edges, **more)
