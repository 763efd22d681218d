"""A store with something of everything in it, and all that can be seen of a store."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.store.builders import (
    BLOCKED,
    FLOW,
    IDLE,
    NOW,
    USAGE,
    Owner,
    call_request,
    event,
    message,
    model_call,
    new_session,
    record,
    request,
    step,
    text_message,
    worker,
)

from perdure.session.model import AgentSnapshot, JsonObject, SessionStatus, StepName, StepStatus
from perdure.session.runner import NewMessage, QuestionWait
from perdure.session.state import CallPhase
from perdure.store.base import Answer, CallPut, NewFork, Reply, SessionFilter, SessionPut, SessionStore
from perdure.store.sql.store import SqlStore

LONG = "\N{GREEK SMALL LETTER ALPHA}\0\x10" * 20_000
"""Long enough to be kept apart, with what one of the databases cannot store as it is."""


def says(ordinal: int, text: str, state: JsonObject | None = None) -> NewMessage:
    """A message with any text."""
    return message(ordinal, text, state, item=json.dumps({"text": text}))


async def _open_turn(store: SessionStore, session_id: str, **changes: Any) -> Owner:
    await store.create_session(new_session(session_id, **changes), ("t1", text_message()), request(), NOW)
    (claimed,) = await store.claim("w1", [FLOW], 1, NOW)
    owner = Owner(store, claimed)
    await owner.begin()
    return owner


async def fill(store: SqlStore) -> None:
    """Sessions in every state, with whatever a session can have, and no worker at the end."""
    await store.register_worker(worker(), NOW)
    await _long(store)
    await _waiting(store)
    await _late(store)
    blocked = await _open_turn(store, "blocked")
    await blocked.commit(session=SessionPut(SessionStatus.BLOCKED, blocked=BLOCKED), release=True)
    await _asking(store)
    await store.create_session(new_session("idle", state={"tenant": "t1", "user:name": "Ann"}), None, request(), NOW)
    await store.create_session(new_session("closed"), None, request(), NOW)
    await store.accept_close("closed", request("r-close"), NOW)
    await store.fork_session("long", NewFork("fork", "inc-fork", "t2"), NOW)
    await store.unregister_worker("w1")
    await store.create_session(new_session("queued"), ("t1", text_message("\0")), request("r1"), NOW)
    await store.accept_message("queued", "t2", text_message(LONG), request("r2"), NOW)
    await store.accept_cancel("queued", "t1", request("r3"), NOW)
    await store.answer_interrupt("waiting", "t1:c1", Answer(True, {"n": 1}, LONG, "ann"), request("r1"), NOW)


async def _long(store: SqlStore) -> None:
    """Two turns, with records, long texts, events and state."""
    owner = await _open_turn(store, "long", state={"a": 1, "app:motd": "hi"})
    call = CallPut("t1", "c1", CallPhase.DUE, 0, "t1/call/c1", None, None, call_request())
    await owner.commit(
        turn_id="t1",
        steps=(
            step("t1/model/1", StepStatus.SUCCEEDED),
            step("t1/call/c1", StepStatus.RUNNING, name=StepName.CALL_TOOL, key="c1", call_id="c1"),
        ),
        calls=(call,),
        model_calls=(model_call(response=LONG),),
        usage=USAGE,
        events=(event(1), event(2, text=LONG)),
    )
    await owner.commit(
        turn_id="t1",
        steps=(step("t1/call/c1", StepStatus.SUCCEEDED, name=StepName.CALL_TOOL, key="c1", call_id="c1"),),
        records=(record(result={"text": LONG}),),
        messages=(says(0, "one", {"a": 2, "b": LONG}), says(1, LONG)),
    )
    await owner.end("t1")
    await store.append_message("long", "t2", says(0, "two", {"user:name": "Bob"}), NOW)


async def _waiting(store: SqlStore) -> None:
    owner = await _open_turn(store, "waiting")
    await owner.ask("c1")
    await owner.ask("c2", deadline_ms=NOW + 60_000)
    await owner.suspend(wake_at_ms=NOW + 60_000)


async def _asking(store: SqlStore) -> None:
    """A turn at its second leg."""
    owner = await _open_turn(store, "asking")
    await owner.ask_question("q1", QuestionWait.NEXT_LEG, payload={"long": LONG})
    await owner.end_leg(LONG)
    await owner.suspend()
    await store.answer_interrupt("asking", "t1:q1", Reply({"n": 1}, "ann"), request(), NOW)
    (claimed,) = await store.claim("w1", [FLOW], 1, NOW)
    owner = Owner(store, claimed)
    await owner.answer("t1:q1", 1, {"n": 1})
    await owner.begin_leg(messages=(says(0, "leg two", {"leg": 2}),))
    await owner.suspend()


async def _late(store: SqlStore) -> None:
    """A question that outlived its turn."""
    late = await _open_turn(store, "late")
    await late.ask_question("q1", QuestionWait.NEXT_TURN, deadline_ms=NOW + 90_000)
    await late.end(session=IDLE)


async def seen(store: SqlStore) -> dict[str, Any]:
    """All that can be read of a store."""
    listed = (await store.list_sessions(SessionFilter(), None, 1000)).items
    found: dict[str, Any] = {"sessions": listed, "wakes": await store.next_wake_ms([FLOW])}
    for one in listed:
        session_id = one.session_id
        snapshot: AgentSnapshot = await store.read_snapshot(session_id, NOW)
        messages = (await store.list_messages(session_id, None, 1000)).items
        steps = (await store.read_steps(session_id, None, 1000)).items
        events = (await store.read_events(session_id, None, 1000)).events
        turns = {step.turn_id for step in steps if step.turn_id is not None} | {one.turn_id for one in messages}
        recorded = [await store.read_recorded_turn(session_id, turn_id) for turn_id in sorted(turns)]
        states = [await store.read_turn_state(session_id, number) for number in (1, 2, 3)]
        found[session_id] = (snapshot, messages, steps, events, recorded, states)
    return found
