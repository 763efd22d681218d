"""What a call of ``run_async`` asks for: a message is sent, answers are given, or a turn is joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from google.adk.agents.run_config import RunConfig
from google.adk.events.event import Event
from google.genai import types

from perdure.adk.native.answers import give_answers
from perdure.adk.native.errors import WrongCall
from perdure.adk.native.forms import responses_in
from perdure.adk.native.turn_events import TurnEvents, blocked
from perdure.adk.records.failures import rebuilt
from perdure.adk.records.history import text_of
from perdure.client import AgentSessionClient
from perdure.engine.base import Engine
from perdure.errors import TurnNotFound
from perdure.session.model import (
    AgentSnapshot,
    ErrorInfo,
    Interrupt,
    JsonObject,
    SessionStatus,
    TurnStatus,
)


@dataclass(frozen=True, slots=True)
class Running:
    """A turn goes on, and ``reader`` makes its events of the live stream."""

    turn_id: str
    reader: TurnEvents


@dataclass(frozen=True, slots=True)
class Ran:
    """There is nothing to wait for; these are the events."""

    events: Sequence[Event] = ()


async def begin(
    engine: Engine,
    sessions: AgentSessionClient,
    snapshot: AgentSnapshot,
    *,
    new_message: types.Content | None,
    invocation_id: str | None,
    state_delta: JsonObject | None,
    run_config: RunConfig | None,
    user_message: bool,
    root_agent: str,
) -> Running | Ran:
    """Does what was asked for.  Raises: see ``DurableRunner.run_async``."""
    if snapshot.status is SessionStatus.BLOCKED:
        raise blocked(snapshot.session_id, snapshot.error or ErrorInfo(code="", message="the session is blocked"))

    def reader(
        turn_id: str, announced: Sequence[Interrupt] = (), pending: Sequence[Interrupt] = (), *, opened: bool = False
    ) -> TurnEvents:
        return TurnEvents(
            snapshot.session_id,
            turn_id,
            announced=[one.interrupt_id for one in announced],
            pending=pending,
            user_message=user_message,
            root_agent=root_agent,
            opened=opened,
        )

    responses = responses_in(new_message)
    if (responses or new_message is None) and state_delta:
        raise WrongCall("state_delta goes with a message of words; an answer and an invocation_id alone carry none")
    if responses:
        turn_id = await give_answers(engine, snapshot, responses)
        known = snapshot.pending_interrupts
        goes_on = snapshot.turn is not None and snapshot.turn.turn_id == turn_id
        return Ran() if turn_id is None else Running(turn_id, reader(turn_id, known, known, opened=goes_on))
    if new_message is not None:
        if invocation_id is not None:
            raise WrongCall(
                "pass either a message, which starts a turn of its own, or the invocation_id of a turn to attach to"
            )
        turn_id = await _send(sessions, snapshot.session_id, new_message, state_delta, run_config)
        return Running(turn_id, reader(turn_id))
    if invocation_id is None:
        raise WrongCall(
            "Running an agent requires either a new_message or an invocation_id to resume a previous invocation. "
            f"Session: {snapshot.session_id}, User: {snapshot.user_id}"
        )
    opened = await _is_opened(engine, snapshot.session_id, invocation_id)
    reader_of_turn = reader(invocation_id, (), snapshot.pending_interrupts, opened=opened)
    return await _attach(engine, snapshot, reader_of_turn, invocation_id)


# ---------------------------------------------------------------- a message


async def _send(
    sessions: AgentSessionClient,
    session_id: str,
    message: types.Content,
    state_delta: JsonObject | None,
    run_config: RunConfig | None,
) -> str:
    parts = message.parts or []
    if not parts:
        raise WrongCall("No parts in the new_message.")
    if any(part.function_call for part in parts):
        raise WrongCall("User message cannot contain function calls.")
    only_text = len(parts) == 1 and parts[0].text and parts[0].model_fields_set == {"text"}
    return await sessions.send_user_message(
        session_id,
        text_of(message),
        state_delta=state_delta,
        run_config=run_config,
        # Whatever role the caller gave: an inbound message is a user's.
        content=None if only_text else types.Content(role="user", parts=parts),
    )


# ---------------------------------------------------------------- a turn that is there already


async def _attach(engine: Engine, snapshot: AgentSnapshot, reader: TurnEvents, turn_id: str) -> Running | Ran:
    turn = snapshot.turn
    if turn is None or turn.turn_id != turn_id:
        if await _is_over(engine, snapshot.session_id, turn_id):
            return Ran()
        raise TurnNotFound(
            f"session {snapshot.session_id!r} has no turn {turn_id!r}, or it is still queued",
            session_id=snapshot.session_id,
            turn_id=turn_id,
        )
    if turn.status is TurnStatus.FAILED and turn.error is not None:
        raise rebuilt(turn.error)
    if turn.status.ended:
        return Ran()
    if snapshot.status is SessionStatus.WAITING:
        return Ran(reader.suspend())
    return Running(turn_id, reader)


async def _is_opened(engine: Engine, session_id: str, turn_id: str) -> bool:
    """Whether the opening message of a turn is stored."""
    try:
        return (await engine.store.read_recorded_turn(session_id, turn_id)).stored_messages > 0
    except TurnNotFound:
        return False


async def _is_over(engine: Engine, session_id: str, turn_id: str) -> bool:
    """Whether it is a turn that ended before the present one began."""
    try:
        await engine.store.read_recorded_turn(session_id, turn_id)
    except TurnNotFound:
        return False
    return True
