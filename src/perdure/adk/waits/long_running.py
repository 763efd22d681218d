"""Long-running tools: where the live invocation waits for a result that comes from outside.

ADK ends an invocation when it sees the call of a long-running tool, and finds out from the session's events how to go
on when the result comes.  A durable turn decides when it sees what the tool returned:

* nothing: the agent's own loop waits for the answer, appends it as ADK's runner would, and goes on;
* a first result: nobody waits; the answer that comes later starts a turn.

``install`` puts this around the four functions of ADK in which that is decided; outside a durable turn nothing changes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, cast

from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.flows.llm_flows.base_llm_flow import BaseLlmFlow
from google.genai import types

from perdure.adk import seams
from perdure.adk.live.calls import answers_key
from perdure.adk.live.core import TurnCore, current_turn
from perdure.adk.live.runs import current_run, entered
from perdure.adk.marks import is_ours, ours
from perdure.adk.records.history import USER
from perdure.session.model import InterruptKind, JsonObject, RecordStatus
from perdure.session.runner import Answer, Question, QuestionWait


@dataclass(slots=True, eq=False)
class _FlowRun:
    """One run of an agent's loop.  ``open``: its calls of long-running tools without a response, and their events."""

    open: dict[str, tuple[types.FunctionCall, Event]] = field(
        default_factory=dict[str, tuple[types.FunctionCall, Event]]
    )


_current_flow: ContextVar[_FlowRun | None] = ContextVar("perdure_current_flow", default=None)
_as_adk: ContextVar[bool] = ContextVar("perdure_pauses_as_adk", default=False)
"""Inside ADK's own decision how to resume, what pauses is what ADK says."""


def install() -> None:
    """Makes ADK wait for long-running tools through here, once per process."""
    original = seams.pausing_functions()
    if is_ours(original.run_flow):
        return

    @wraps(original.run_flow)
    def run_async(self: BaseLlmFlow, invocation_context: InvocationContext) -> AsyncGenerator[Event, None]:
        core = current_turn.get()
        if core is None:
            return original.run_flow(self, invocation_context)
        return _run_flow(core, original.run_flow, self, invocation_context)

    @wraps(original.decide_step_resume)
    def decide_step_resume(invocation_context: InvocationContext, tools_dict: dict[str, Any]) -> Any:
        flow = _current_flow.get()
        if flow is not None and flow.open:
            return seams.PAUSE
        token = _as_adk.set(True)
        try:
            return original.decide_step_resume(invocation_context, tools_dict)
        finally:
            _as_adk.reset(token)

    @wraps(original.should_pause)
    def should_pause_invocation(self: InvocationContext, event: Event) -> bool:
        core = current_turn.get()
        if core is None or _as_adk.get():
            return original.should_pause(self, event)
        if event.partial:
            return False  # the calls of a streamed response are those of its last event
        if first_results(core, event):
            return True
        if event.long_running_tool_ids and event.long_running_tool_ids <= core.long_running:
            return False
        return original.should_pause(self, event)

    @wraps(original.track_event)
    def track_event_in_context(self: Any, event: Event, ctx: Any) -> None:
        original.track_event(self, event, ctx)
        core = current_turn.get()
        if core is not None:
            interrupts = seams.interrupts_of(ctx)
            interrupts -= (event.long_running_tool_ids or set()) if event.partial else set()
            interrupts -= core.long_running & (event.long_running_tool_ids or set())
            interrupts |= {call.id for call in first_results(core, event) if call.id}

    seams.set_pausing_functions(
        seams.PausingFunctions(ours(run_async), decide_step_resume, should_pause_invocation, track_event_in_context)
    )


def first_results(core: TurnCore, event: Event) -> list[types.FunctionResponse]:
    """The first results of long-running tools in an event: what the tools themselves returned, not nothing."""
    if event.author == USER or event.partial or not core.long_running:
        return []
    return [response for response in event.get_function_responses() if _is_first_result(core, response)]


def _is_first_result(core: TurnCore, response: types.FunctionResponse) -> bool:
    if response.id not in core.long_running:
        return False
    call = core.conductor.floor.call(response.id)
    return call is not None and call.record is not None and call.record.status is RecordStatus.SUCCEEDED


def late_questions(core: TurnCore, event: Event) -> list[Question]:
    """What nobody waits for when the tools of an event have given their first results."""
    return [
        _question(core, types.FunctionCall(id=response.id, name=response.name), event.author, response.response)
        for response in first_results(core, event)
    ]


def announce_open_call(core: TurnCore, call: types.FunctionCall, agent_name: str, event: Event | None) -> None:
    """Asks for what a call of a long-running tool leaves open, at once if the calls beside it are not done yet.

    Args:
        event: its response; ``None``: there is none, and the agent's loop will wait for it.
    """
    known = core.conductor.floor.call(call.id or "")
    if known is None or call.id not in core.long_running:
        return
    if all(other.done for other in known.group.batch.calls.values() if other is not known):
        return
    questions = [_question(core, call, agent_name)] if event is None else late_questions(core, event)
    for question in questions:
        core.conductor.announce(question)


async def _run_flow(
    core: TurnCore, run_flow: seams.RunFlow, flow: BaseLlmFlow, context: InvocationContext
) -> AsyncGenerator[Event, None]:
    """An agent's loop, which goes on when what its long-running tools left open is answered."""
    current = _FlowRun()
    while True:
        async with aclosing(entered(_current_flow, current, run_flow(flow, context))) as events:
            async for event in events:
                _note(core, current, event)
                if event.actions.transfer_to_agent and current.open:
                    # The agent is left for good: there is no later place for the answer.
                    async for answer in _answered(core, current, context):
                        yield answer
                yield event
        if not current.open:
            return
        async for answer in _answered(core, current, context):
            yield answer


def _note(core: TurnCore, flow: _FlowRun, event: Event) -> None:
    """Keeps account of the calls that are open.  Those of an agent that runs inside this loop are its own business."""
    if event.partial:
        return
    ids = event.long_running_tool_ids or set()
    for call in event.get_function_calls():
        if call.id and call.id in ids and call.id not in core.long_running:
            core.long_running.add(call.id)
            flow.open[call.id] = (call, event)
    for response in event.get_function_responses():
        flow.open.pop(response.id or "", None)


async def _answered(core: TurnCore, flow: _FlowRun, context: InvocationContext) -> AsyncGenerator[Event, None]:
    """Waits for what is open.  Yields the answers, unless they go into the turn's own session: ADK's runner does so."""
    asking, flow.open = flow.open, {}
    agent_name = context.agent.name if context.agent is not None else ""
    questions = [_question(core, call, agent_name) for call, _ in asking.values()]
    run = current_run.get()
    assert run is not None, "an agent always runs in a run"
    answers = await core.conductor.ask(run, questions)
    (_, call_event), *_ = asking.values()
    event = Event(
        invocation_id=context.invocation_id,
        author=USER,
        content=types.Content(role=USER, parts=list(map(_part, questions, answers))),
        actions=_actions_of(core, asking),
        branch=call_event.branch,
        isolation_scope=call_event.isolation_scope,
    )
    seams.stamp_run_metadata(event, context.run_config)
    if context.session is core.session:
        await context.session_service.append_event(context.session, event)
    else:  # an agent that runs as a tool: the tool counts open calls by what it sees
        yield event


def _actions_of(core: TurnCore, call_ids: Iterable[str]) -> EventActions:
    """What the tools did to state and artifacts.  Without a response to carry it, ADK would lose it."""
    actions = EventActions()
    for done in filter(None, map(core.unsaid.get, call_ids)):
        actions.state_delta.update(done.state_delta)
        actions.artifact_delta.update(done.artifact_delta)
    return actions


def _question(core: TurnCore, call: types.FunctionCall, agent_name: str, first: JsonObject | None = None) -> Question:
    """What is asked for a call.  ``first``: its first result, if it gave one."""
    known = core.conductor.floor.call(call.id or "")
    assert known is not None, "a call is on the floor before it is answered"
    request = known.request
    arguments: JsonObject = request.arguments if request is not None else dict(call.args or {})
    name = call.name or ""
    kind, hint, payload = InterruptKind.LONG_RUNNING, f"Tool {name!r} waits for its result.", first
    if first is not None:
        hint = f"Tool {name!r} gave a first result; what it gives later starts a turn."
    if name == seams.REQUEST_INPUT:
        kind, hint = InterruptKind.INPUT, str(arguments.get("message", ""))
        payload = {key: value for key, value in arguments.items() if key != "message"} or None
    return Question(
        question_id=call.id or "",
        kind=kind,
        group=answers_key(known.group.batch.key),
        wait=QuestionWait.LIVE if first is None else QuestionWait.NEXT_TURN,
        tool_name=name,
        arguments=arguments,
        agent_name=agent_name,
        path=request.path if request is not None else "",
        hint=hint,
        payload=payload,
    )


def _part(question: Question, answer: Answer) -> types.Part:
    value: object = answer.value
    response = cast(JsonObject, value) if isinstance(value, dict) else {"result": value}
    if answer.error is not None:
        response = {"error": answer.error.message}
    part = types.FunctionResponse(id=question.question_id, name=question.tool_name, response=response)
    return types.Part(function_response=part)
