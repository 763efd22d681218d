"""Messages that join a running turn: in front of a model call, as what the user says next.

They are taken in between the building of the request and its callbacks.  So whoever guards what users say gets to see
it, and what ADK decides from the last event of the session (whether a call is resumed, whether a confirmation is there)
is decided already.  A record says what joined, and where (``session.runner.JOINED``); a replay gets it from there.
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

from perdure.adk import seams
from perdure.adk.live.core import TurnCore, turn_of
from perdure.adk.live.parking import TurnDropped
from perdure.adk.live.runs import current_run
from perdure.adk.marks import is_ours, ours
from perdure.adk.records.history import USER, content_of
from perdure.session.model import STEERED, JoinedMessages
from perdure.session.runner import JOINED


def install() -> None:
    """Lets messages join in front of ADK's model calls, once per process."""
    original = seams.call_llm_method()
    if is_ours(original):
        return

    async def _call_llm_async(
        self: BaseLlmFlow, invocation_context: InvocationContext, llm_request: LlmRequest, model_response_event: Event
    ) -> AsyncGenerator[LlmResponse, None]:
        core = turn_of(invocation_context)
        if core is not None and _converses(core, invocation_context):
            await _join(core, invocation_context, llm_request)
        async with aclosing(original(self, invocation_context, llm_request, model_response_event)) as responses:
            async for response in responses:
                yield response

    seams.set_call_llm_method(ours(_call_llm_async))


def _converses(core: TurnCore, invocation: InvocationContext) -> bool:
    """Whether the agent hears what the user says in the course of the session, from here on.

    One that is called as a tool, that does one turn of its own, or that leaves the conversation out of its requests
    would lose it, or lose by it what it was asked.
    """
    agent = invocation.agent
    return (
        invocation.session is core.session
        and isinstance(agent, LlmAgent)
        and agent.include_contents == "default"
        and agent.mode != "single_turn"
    )


async def _join(core: TurnCore, invocation: InvocationContext, request: LlmRequest) -> None:
    run = current_run.get()
    assert run is not None, "an agent always runs in a run"
    place = core.place_of(run, invocation)
    number = core.requests[place] = core.requests.get(place, 0) + 1
    key, journal = f"{JOINED}{place}|{number}", core.conductor.journal
    recorded = journal.asides.get(key)
    if recorded is None and not core.log.steered():
        return
    if recorded is None and (not journal.replayed or journal.knows_model_call(core.next_model_key(place))):
        return  # This call was made without it.
    # A branch may be stopped at any moment.  What has joined the turn by then is said all the same.
    joining = asyncio.create_task(_take_along(core, invocation, request, key, recorded), name=f"perdure {key}")
    try:
        await asyncio.shield(joining)
    except asyncio.CancelledError:
        try:
            core.conductor.parking.guard()
        except TurnDropped:
            joining.cancel()
            raise
        await joining
        raise


async def _take_along(
    core: TurnCore, invocation: InvocationContext, request: LlmRequest, key: str, recorded: str | None
) -> None:
    if recorded is None:
        messages = await core.log.join(key)
    else:
        messages = JoinedMessages.model_validate_json(recorded).messages
    for joined in messages:
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
        assert event.content is not None
        request.contents.append(event.content.model_copy(deep=True))
