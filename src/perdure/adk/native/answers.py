"""Function responses as answers to what a session asks: all of a message's, or none."""

from __future__ import annotations

from collections.abc import Sequence

from google.genai import types

from perdure.adk.native.errors import WrongCall
from perdure.adk.native.forms import Reply, YesOrNo, answer_in, asked_by, interrupt_id_of
from perdure.adk.records.history import events_of
from perdure.client import MAX_PAGE
from perdure.client.answers import reply, verdict
from perdure.engine.base import Engine
from perdure.errors import InterruptNotFound
from perdure.ids import new_turn_id
from perdure.session.loop import interrupt_id_for
from perdure.session.model import AgentSnapshot, Interrupt
from perdure.session.values import fingerprint
from perdure.store.base import GivenAnswer, Request


async def give_answers(
    engine: Engine, snapshot: AgentSnapshot, responses: Sequence[types.FunctionResponse]
) -> str | None:
    """Gives the answers.  Once: the identical answers again change nothing.

    Returns:
        The turn that goes on, or that the answers start; ``None`` when they were given before and nothing goes on.

    Raises:
        WrongCall: a response is none that ADK would take, or they belong to different turns.
        InterruptNotFound, InterruptAlreadyResolved, InterruptExpired, InterruptWithdrawn, SessionBlocked, SessionClosed
    """
    asked = [await _interrupt(engine, snapshot, response) for response in responses]
    given = {
        interrupt.interrupt_id: _answer(response, interrupt)
        for response, interrupt in zip(responses, asked, strict=True)
    }
    turn_ids = {interrupt.turn_id for interrupt in asked}
    if len(turn_ids) > 1:
        raise WrongCall(
            f"Function responses resolve to multiple invocations: {turn_ids}. All function responses in a single "
            "message must belong to the same invocation."
        )
    request = Request(None, fingerprint("answers", sorted(given)))
    new_turn = new_turn_id(engine.ids)
    await engine.store.answer_interrupts(
        snapshot.session_id, given, request, engine.clock.now_ms(), turn_id=new_turn, whole=False
    )
    await engine.notify(snapshot.session_id)
    open_turn = snapshot.turn is not None and not snapshot.turn.status.ended and snapshot.turn.turn_id in turn_ids
    if open_turn:
        return turn_ids.pop()
    pending = {one.interrupt_id for one in snapshot.pending_interrupts}
    return new_turn if given.keys() & pending else None


def _answer(response: types.FunctionResponse, interrupt: Interrupt) -> GivenAnswer:
    match answer_in(response, interrupt.kind):
        case YesOrNo(approved, payload):
            return verdict(approved, payload, None, None)
        case Reply(value):
            return reply(value, f"the response to {response.id}", None)


async def _interrupt(engine: Engine, snapshot: AgentSnapshot, response: types.FunctionResponse) -> Interrupt:
    """What a response answers, pending or not.

    Raises:
        InterruptNotFound
    """
    pending = asked_by(response, snapshot.pending_interrupts)
    if pending is not None:
        return pending
    session_id, call_id = snapshot.session_id, response.id or ""
    try:
        return await engine.store.read_interrupt(session_id, interrupt_id_of(call_id))
    except InterruptNotFound:
        turn_id = await _turn_of(engine, session_id, call_id)
        if turn_id is None:
            raise
    # The call itself asked, and perhaps more than once.
    found, number = await engine.store.read_interrupt(session_id, interrupt_id_for(turn_id, call_id)), 2
    while True:
        try:
            again = interrupt_id_for(turn_id, call_id, number)
            found, number = await engine.store.read_interrupt(session_id, again), number + 1
        except InterruptNotFound:
            return found


async def _turn_of(engine: Engine, session_id: str, call_id: str) -> str | None:
    """The turn in which a function call was made; ``None`` when there is no such call in the log."""
    after: int | None = None
    while True:
        page = await engine.store.list_messages(session_id, after, MAX_PAGE)
        for message, event in zip(page.items, events_of([one.framework_item for one in page.items]), strict=True):
            if any(call.id == call_id for call in event.get_function_calls()):
                return message.turn_id
        if page.next_cursor is None:
            return None
        after = int(page.next_cursor)
