"""The same agent on plain ADK, to compare with."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from google.adk.agents import RunConfig
from google.adk.agents.run_config import StreamingMode  # type: ignore[attr-defined]  # ADK's documented import
from google.adk.apps.app import App
from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService

from perdure.adk.records.history import content_of
from perdure.session.model import JsonObject, UserMessage

SSE = RunConfig(streaming_mode=StreamingMode.SSE)


async def run_plain(
    agent: Any,
    messages: list[UserMessage],
    *,
    state: JsonObject | None = None,
    run_config: RunConfig | None = None,
    **services: Any,
) -> tuple[list[JsonObject], JsonObject, Exception | None]:
    """Runs the messages in one session.  The stored events, the final state, and what the last turn raised."""
    app = agent if isinstance(agent, App) else App(name="Flow", root_agent=agent)
    service = InMemorySessionService()
    runner = Runner(app=app, session_service=service, **services)
    await service.create_session(app_name=app.name, user_id="u1", session_id="s1", state=state)
    failure: Exception | None = None
    for message in messages:
        failure = None
        try:
            async for _ in runner.run_async(
                user_id="u1",
                session_id="s1",
                new_message=content_of(message),
                state_delta=dict(message.state_delta) or None,
                run_config=run_config or SSE,
            ):
                pass
        except Exception as error:  # noqa: BLE001  (whatever it is, it is compared)
            failure = error
    session = await service.get_session(app_name=app.name, user_id="u1", session_id="s1")
    assert session is not None
    stored = [stored_form(event) for event in session.events]
    return stored, json.loads(json.dumps(session.state, default=str)), failure


def stored_form(event: Event) -> JsonObject:
    form: JsonObject = json.loads(event.model_dump_json(exclude_none=True))
    return form


_ID = re.compile(r"(adk-)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
"""Of ADK's own making; branches and paths carry those of calls, too."""
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+")
_OF_ONE_RUN = ("invocation_id", "timestamp", "start_timestamp", "end_timestamp")


def comparable(items: list[JsonObject]) -> list[JsonObject]:
    """Stored events without what differs from run to run: ids, invocation ids, times."""
    names: dict[str, str] = {}
    counts: Counter[str] = Counter()

    def name(found: re.Match[str], whose: str) -> str:
        if found[0] not in names:  # each branch counts its own: which of two is first is chance
            counts[whose] += 1
            names[found[0]] = f"id {counts[whose]} of {whose}"
        return names[found[0]]

    def rename(value: Any, whose: str) -> Any:
        if isinstance(value, dict):
            return {key: rename(item, whose) for key, item in value.items() if key not in _OF_ONE_RUN}
        if isinstance(value, list):
            return [rename(item, whose) for item in value]
        if isinstance(value, str):
            return _TIME.sub("a time", _ID.sub(lambda found: name(found, whose), value))
        return value

    renamed = [rename(_in_order(item), _ID.sub("", item.get("branch") or item.get("author") or "")) for item in items]
    for item in renamed:
        item.pop("id", None)
    return renamed


def _in_order(item: JsonObject) -> JsonObject:
    """The event with the ids of its long-running calls, which ADK keeps in a set, in the order of the calls."""
    ids = item.get("long_running_tool_ids")
    if not ids:
        return item
    parts = item["content"]["parts"]
    ordered = [part["function_call"]["id"] for part in parts if part.get("function_call", {}).get("id") in ids]
    return {**item, "long_running_tool_ids": ordered}


def request_form(request: LlmRequest) -> JsonObject:
    """What a model was asked, as JSON."""
    form: JsonObject = json.loads(request.model_dump_json(exclude_none=True, exclude={"tools_dict"}, fallback=str))
    form["tools"] = sorted(request.tools_dict)
    return form


def unordered(value: Any) -> Any:
    """The value with every list in it sorted."""
    if isinstance(value, dict):
        return {key: unordered(item) for key, item in value.items()}
    return sorted(map(unordered, value), key=json.dumps) if isinstance(value, list) else value
