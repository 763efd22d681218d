"""Messages that join a running turn: in front of a model call, as what the user says next.

They are taken in between the building of the request and its callbacks.  So whoever guards what users say gets to see
it, and what ADK decides from the last event of the session (whether a call is resumed, whether a confirmation is there)
is decided already.  A record says what joined, and where (``session.runner.JOINED``).  To the conductor it is one of a
model call: a replay gets it at the same request, in the same order, and differs if it does not come there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.event import Event
from google.adk.flows.llm_flows.base_llm_flow import BaseLlmFlow
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from perdure.adk import seams
from perdure.adk.live.core import TurnCore, turn_of
from perdure.adk.live.runs import Run, current_run
from perdure.adk.marks import is_ours, ours
from perdure.adk.records.history import USER, content_of
from perdure.session.model import STEERED, JoinedMessage, JoinedMessages
from perdure.session.runner import JOINED, ModelCall


def install() -> None:
    """Lets messages join in front of ADK's model calls, once per process."""
    original = seams.call_llm_method()
    if is_ours(original):
        return

    async def _call_llm_async(
        self: BaseLlmFlow, invocation_context: InvocationContext, llm_request: LlmRequest, model_response_event: Event
    ) -> AsyncGenerator[LlmResponse, None]:
        core = turn_of(invocation_context)
        if core is not None and invocation_context.session is core.session:
            joined = await _let_join(core, invocation_context)
            if joined or _converses(invocation_context):
                _bring_up_to_date(core, invocation_context, llm_request)
        async with aclosing(original(self, invocation_context, llm_request, model_response_event)) as responses:
            async for response in responses:
                yield response

    seams.set_call_llm_method(ours(_call_llm_async))


def _converses(invocation: InvocationContext) -> bool:
    """Whether the agent hears what the user says in the course of the session, from here on.

    One that does one turn of its own, or that leaves the conversation out of its requests, would lose it, or lose by it
    what it was asked.
    """
    agent = invocation.agent
    return isinstance(agent, LlmAgent) and agent.include_contents == "default" and agent.mode != "single_turn"


def _run() -> Run:
    run = current_run.get()
    assert run is not None, "an agent always runs in a run"
    return run


async def _let_join(core: TurnCore, invocation: InvocationContext) -> bool:
    """Whether messages joined the turn at this request."""
    run = _run()
    place = core.place_of(run, invocation)
    number = core.requests[place] = core.requests.get(place, 0) + 1
    key, journal = f"{JOINED}{place}|{number}", core.conductor.journal
    if not journal.knows_model_call(key):
        if not core.log.steered() or not _converses(invocation):
            return False
        if not journal.replayed or journal.knows_model_call(core.next_model_key(place)):
            return False  # This request was made without it.
    record = await core.conductor.enter_model(run, key)
    if record is None:
        record = await _join(core, run, key)
    if record is None:
        return False
    for joined in _messages_of(record):  # To this agent it was said, whatever the code makes of it by now.
        await _say(invocation, joined)
    return True


async def _join(core: TurnCore, run: Run, key: str) -> ModelCall | None:
    """Takes along what steers; when that is on disk, gives the record."""
    place = core.conductor.take_place(run)
    joining = asyncio.ensure_future(core.log.join(key, place.seen))
    core.joining.append(joining)
    try:
        record = await core.conductor.parking.wait(asyncio.shield(joining))
    except BaseException:
        core.conductor.leave_place(place)  # Its branch was stopped; ``say_the_rest`` looks after what joined.
        raise
    if record is None:
        core.conductor.leave_place(place)
    else:
        await core.conductor.settle_model(place, record)
    return record


def _messages_of(record: ModelCall) -> tuple[JoinedMessage, ...]:
    return JoinedMessages.model_validate_json(record.response).messages


async def _say(invocation: InvocationContext, joined: JoinedMessage) -> None:
    content = content_of(joined.message)
    changed = await invocation.plugin_manager.run_on_user_message_callback(
        user_message=content, invocation_context=invocation
    )
    event = Event(
        id=joined.message_id,
        invocation_id=invocation.invocation_id,
        author=USER,
        content=content if changed is None else changed,
        isolation_scope=invocation.isolation_scope,
        custom_metadata={STEERED: True},
    )
    await invocation.session_service.append_event(session=invocation.session, event=event)


async def say_the_rest(core: TurnCore) -> None:
    """At the end of an invocation: what joined it and was not said, since the branch that took it along was stopped."""
    if core.invocation is None:
        return
    records = [await core.conductor.parking.wait(joining) for joining in core.joining]
    said = {event.id for event in core.session.events}
    for record in (*core.conductor.journal.joined, *(one for one in records if one is not None)):
        for joined in _messages_of(record):
            if joined.message_id not in said:
                await _say(core.invocation, joined)


def _bring_up_to_date(core: TurnCore, invocation: InvocationContext, request: LlmRequest) -> None:
    """Puts into a request what joined the turn and the agent has not heard: what was said just now, and what ADK leaves
    out, as it does with what was said to another branch between a call of this one and its result."""
    heard = core.heard[core.place_of(_run(), invocation)]
    others = list(request.contents)
    unheard: list[types.Content] = []
    for event in reversed(_said_in(invocation)):
        assert event.content is not None
        at = next((at for at in range(len(others) - 1, -1, -1) if _holds(others[at], event.content)), None)
        if at is not None:
            del others[at]
        elif event.id not in heard:
            unheard.append(event.content.model_copy(deep=True))
        heard.add(event.id)
    request.contents += reversed(unheard)


def _said_in(invocation: InvocationContext) -> list[Event]:
    """What joined the invocation and an agent in its place may hear, oldest first."""
    said: list[Event] = []
    for event in reversed(invocation.session.events):
        if event.invocation_id != invocation.invocation_id:
            break
        if (event.custom_metadata or {}).get(STEERED) and event.isolation_scope == invocation.isolation_scope:
            said.append(event)
    return said[::-1]


def _holds(content: types.Content, other: types.Content) -> bool:
    parts = content.parts or []
    return content.role == other.role and all(part in parts for part in other.parts or [])
