"""What a call of ``run_async`` asks for: a message is sent, answers are given, or a turn is joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from google.adk.agents.run_config import RunConfig
from google.adk.events.event import Event
from google.genai import types

from perdure.adk.failures import rebuilt
from perdure.adk.history import text_of
from perdure.adk.native import Reply, YesOrNo, answer_in, asked_by, interrupt_id_of, responses_in
from perdure.adk.native_errors import WrongCall
from perdure.adk.turn_events import TurnEvents, blocked
from perdure.client import MAX_PAGE, AgentSessionClient
from perdure.errors import InterruptNotFound, TurnNotFound
from perdure.session.model import (
    AgentSnapshot,
    ErrorInfo,
    Interrupt,
    InterruptKind,
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

    def reader(turn_id: str, announced: Sequence[Interrupt] = (), pending: Sequence[Interrupt] = ()) -> TurnEvents:
        return TurnEvents(
            snapshot.session_id,
            turn_id,
            announced=[one.interrupt_id for one in announced],
            pending=pending,
            user_message=user_message,
            root_agent=root_agent,
        )

    responses = responses_in(new_message)
    if (responses or new_message is None) and state_delta:
        raise WrongCall("state_delta goes with a message of words; an answer and an invocation_id alone carry none")
    if responses:
        turn_id = await _answer(sessions, snapshot, responses)
        if turn_id is None:
            return Ran()
        known = snapshot.pending_interrupts
        return Running(turn_id, reader(turn_id, known, known))
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
    return await _attach(sessions, snapshot, reader(invocation_id, (), snapshot.pending_interrupts), invocation_id)


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


# ---------------------------------------------------------------- answers


async def _answer(
    sessions: AgentSessionClient, snapshot: AgentSnapshot, responses: Sequence[types.FunctionResponse]
) -> str | None:
    """Gives the answers.  Returns the turn that goes on; ``None`` when they were given before and it has ended."""
    answers: list[tuple[Interrupt, YesOrNo | Reply]] = []
    repeated: list[Interrupt] = []
    for response in responses:
        interrupt = asked_by(response, snapshot.pending_interrupts)
        if interrupt is None:
            repeated.append(await _answer_late(sessions, snapshot.session_id, response))
        else:
            answers.append((interrupt, answer_in(response, interrupt.kind)))
    for interrupt, answer in answers:
        await _give(sessions, snapshot.session_id, interrupt, answer)
    open_turn = snapshot.turn if snapshot.turn is not None and not snapshot.turn.status.ended else None
    turn_ids = [interrupt.turn_id for interrupt, _ in answers] or [interrupt.turn_id for interrupt in repeated]
    return turn_ids[0] if open_turn is not None and turn_ids[0] == open_turn.turn_id else None


async def _give(
    sessions: AgentSessionClient, session_id: str, interrupt: Interrupt, answer: YesOrNo | Reply
) -> Interrupt:
    match answer:
        case YesOrNo(approved, payload):
            return await sessions.resolve_interrupt(
                session_id, interrupt.interrupt_id, approved=approved, payload=payload
            )
        case Reply():
            raise InterruptNotFound(f"{interrupt.kind}", session_id=session_id, interrupt_id=interrupt.interrupt_id)
        case _:
            assert_never(answer)


async def _answer_late(sessions: AgentSessionClient, session_id: str, response: types.FunctionResponse) -> Interrupt:
    """An answer to what is not pending: the error that says why, or nothing when it was answered exactly so."""
    interrupt_id = interrupt_id_of(response.id or "")
    answer = answer_in(response, InterruptKind.CONFIRMATION)
    assert isinstance(answer, YesOrNo)
    return await sessions.resolve_interrupt(session_id, interrupt_id, approved=answer.approved, payload=answer.payload)


# ---------------------------------------------------------------- a turn that is there already


async def _attach(
    sessions: AgentSessionClient, snapshot: AgentSnapshot, reader: TurnEvents, turn_id: str
) -> Running | Ran:
    turn = snapshot.turn
    if turn is None or turn.turn_id != turn_id:
        if await _has_spoken(sessions, snapshot.session_id, turn_id):
            return Ran()  # it ended before the last one began
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


async def _has_spoken(sessions: AgentSessionClient, session_id: str, turn_id: str) -> bool:
    """Whether a message of the turn is stored; each turn that begins stores one."""
    cursor: str | None = None
    while True:
        page = await sessions.list_messages(session_id, after=cursor, limit=MAX_PAGE)
        if any(message.turn_id == turn_id for message in page.items):
            return True
        cursor = page.next_cursor
        if cursor is None:
            return False
