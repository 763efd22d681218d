"""Runs an agent on plain ADK, without perdure: to try out the tools that perdure's own tests are built of."""

from __future__ import annotations

from contextlib import aclosing

from google.adk.agents import BaseAgent, RunConfig

# ADK's documentation imports it from here, though the module does not say that it exports it.
from google.adk.agents.run_config import StreamingMode  # type: ignore[attr-defined]
from google.adk.events import Event
from google.adk.runners import InMemoryRunner
from google.genai import types


async def run_turns(agent: BaseAgent, *messages: str | types.Content, stream: bool = False) -> list[Event]:
    """All events of a new session in which the user says ``messages``, one a turn."""
    runner = InMemoryRunner(agent, app_name="plain")
    await runner.session_service.create_session(app_name="plain", user_id="user", session_id="session")
    config = RunConfig(streaming_mode=StreamingMode.SSE if stream else StreamingMode.NONE)
    events: list[Event] = []
    for message in messages:
        content = user_says(message) if isinstance(message, str) else message
        invocation = runner.run_async(user_id="user", session_id="session", new_message=content, run_config=config)
        async with aclosing(invocation) as turn:
            events.extend([event async for event in turn])
    await runner.close()
    return events


def user_says(text: str) -> types.Content:
    """A user's message."""
    return types.Content(role="user", parts=[types.Part(text=text)])


def spoken(events: list[Event]) -> list[tuple[str, str]]:
    """Author and text of every whole (not partial) event that has text, thoughts left out."""
    return [
        (event.author, text)
        for event in events
        if not event.partial and (text := "".join(p.text or "" for p in _parts(event) if not p.thought))
    ]


def _parts(event: Event) -> list[types.Part]:
    return (event.content and event.content.parts) or []
