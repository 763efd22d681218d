"""What the tests of ``DurableRunner`` share: the same calls on a plain runner and on a durable one, made comparable."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.adk.agents import RunConfig
from google.adk.agents.run_config import StreamingMode  # type: ignore[attr-defined]  # ADK's documented import
from google.adk.apps.app import App
from google.adk.events.event import Event
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai import types
from tests.field.support import until

from perdure import AgentSessionClient, ToolEffect, open_engine
from perdure.adk import DurableRunner

APP, USER, SESSION = "app", "ann", "s1"
SSE = RunConfig(streaming_mode=StreamingMode.SSE)
CONFIRM = "adk_request_confirmation"

Says = str | types.Content


def words(message: Says) -> types.Content:
    """A user's message."""
    if isinstance(message, types.Content):
        return message
    return types.Content(role="user", parts=[types.Part(text=message)])


def responds(*answers: tuple[types.FunctionCall, dict[str, Any]]) -> types.Content:
    """A message that answers function calls."""
    parts = [
        types.Part(function_response=types.FunctionResponse(id=call.id, name=call.name, response=response))
        for call, response in answers
    ]
    return types.Content(role="user", parts=parts)


def requests_in(events: Sequence[Event], name: str = CONFIRM) -> list[types.FunctionCall]:
    """The calls by which a run asked for something."""
    return [call for event in events for call in event.get_function_calls() if call.name == name]


def text_of(events: Sequence[Event]) -> list[str]:
    """The texts of whole events."""
    parts = [part for event in events if not event.partial for part in (event.content and event.content.parts) or []]
    return [part.text for part in parts if part.text]


@dataclass
class Talk:
    """A conversation with a runner, in the session ``s1``.

    Attributes:
        yielded: what each run yielded.
        failures: what each run raised.
    """

    runner: Runner
    config: RunConfig | None = None
    yielded: list[list[Event]] = field(default_factory=list)
    failures: list[Exception | None] = field(default_factory=list)

    async def start(self, state: dict[str, Any] | None = None) -> None:
        await self.runner.session_service.create_session(
            app_name=self.runner.app_name, user_id=USER, session_id=SESSION, state=state
        )

    async def say(self, message: Says, **given: Any) -> list[Event]:
        """One run.  What it raised is kept."""
        events: list[Event] = []
        self.yielded.append(events)
        self.failures.append(None)
        call: dict[str, Any] = {"user_id": USER, "session_id": SESSION, "run_config": self.config, **given}
        try:
            async with aclosing(self.runner.run_async(new_message=words(message), **call)) as run:
                async for event in run:
                    events.append(event)
        except Exception as error:  # noqa: BLE001  (whatever it is, it is compared)
            self.failures[-1] = error
        return events

    async def approve(self, answer: bool = True, **payload: Any) -> list[Event]:
        """Answers all confirmations that the last run asked for."""
        calls = requests_in(self.yielded[-1])
        return await self.say(responds(*((call, {"confirmed": answer, **payload}) for call in calls)))

    async def session(self) -> tuple[list[Event], dict[str, Any]]:
        session = await self.runner.session_service.get_session(
            app_name=self.runner.app_name, user_id=USER, session_id=SESSION
        )
        assert session is not None
        return session.events, session.state


Build = Callable[[], Any]
"""Makes the agent (or the ``App``) afresh."""


def address_in(folder: Path) -> str:
    """The store that a test's folder names: a SQLite file in it, unless the test runs over ``every_store``."""
    named_there = folder / "address"
    return named_there.read_text() if named_there.exists() else f"sqlite:///{folder / 'runner.db'}"


@asynccontextmanager
async def durable(agent: Any, folder: Path, **options: Any) -> AsyncGenerator[DurableRunner]:
    """A durable runner on the folder's store, that does not wait for the disk."""
    given: dict[str, Any] = {"default_tool_effect": ToolEffect.READ, **options}
    async with (
        open_engine(address_in(folder), durability="process") as engine,
        DurableRunner(engine=engine, **named(agent), **given) as runner,
    ):
        yield runner


async def one_is_queued(sessions: AgentSessionClient) -> None:
    """Waits until a message is queued."""

    async def queued() -> bool:
        return (await sessions.get_agent_snapshot(SESSION)).queued_messages > 0

    await until(queued)


def named(agent: Any) -> dict[str, Any]:
    """The arguments that both kinds of runner take for an agent."""
    return {"app": agent} if isinstance(agent, App) else {"agent": agent, "app_name": APP}


def plain(agent: Any, **services: Any) -> Runner:
    """A plain runner with sessions in memory."""
    return Runner(**named(agent), session_service=InMemorySessionService(), **services)


# ---------------------------------------------------------------- comparing


def comparable(events: Sequence[Event]) -> list[dict[str, Any]]:
    """Events without what differs from run to run: times, invocations; ids are renamed in the order of appearance."""
    names: dict[str, str] = {}

    def rename(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: rename(item) for key, item in value.items() if key not in ("invocation_id", "timestamp")}
        if isinstance(value, list):
            return [rename(item) for item in value]
        if isinstance(value, str) and value.startswith("adk-"):
            return names.setdefault(value, f"call {len(names)}")
        return value

    compared = []
    for event in events:
        form = json.loads(event.model_dump_json(exclude_none=True))
        form["id"] = names.setdefault(f"event {event.id}", f"event {len(names)}")
        form = rename(form)
        if "long_running_tool_ids" in form:
            form["long_running_tool_ids"].sort()
        compared.append(form)
    return compared


def without_waits(events: Sequence[Event]) -> list[Event]:
    """Events of plain ADK without placeholders for gated calls."""
    return [event for event in events if not event.actions.requested_tool_confirmations]


def as_stored(events: Sequence[Event]) -> list[Event]:
    """Events of plain ADK as a history in which each call ran at once: no requests, no answers to them."""
    return [
        event
        for event in without_waits(events)
        if not requests_in([event]) and not any(r.name == CONFIRM for r in event.get_function_responses())
    ]
