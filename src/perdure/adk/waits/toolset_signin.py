"""Toolsets that need a sign-in before they can list their tools: the live invocation waits for it.

ADK ends the invocation for such a sign-in.  ``install`` puts a wait in its place; outside a durable turn nothing
changes.  A toolset whose sign-in is refused, or not answered in time, is listed without one, and asks no more in this
turn.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable
from functools import wraps
from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.llm_agent import LlmAgent
from google.adk.auth.auth_tool import AuthToolArguments
from google.adk.events.event import Event

from perdure.adk import seams
from perdure.adk.live import determinism
from perdure.adk.live.core import TurnCore, current_turn
from perdure.adk.live.journal import ASIDE
from perdure.adk.live.places import path_of
from perdure.adk.live.runs import Run, current_run
from perdure.adk.marks import is_ours, ours
from perdure.adk.waits import signin
from perdure.adk.waits.credentials import record_aside
from perdure.session.model import InterruptKind
from perdure.session.runner import Answer, Question, QuestionWait


def install() -> None:
    """Makes ADK sign toolsets in through here, once per process."""
    original = seams.resolve_toolset_auth()
    if is_ours(original):
        return

    @wraps(original)
    def resolve(invocation_context: InvocationContext, agent: LlmAgent) -> AsyncGenerator[Event, None]:
        core = current_turn.get()
        if core is None:
            return original(invocation_context, agent)
        return _nothing_but(_sign_in(core, original, invocation_context, agent))

    seams.set_resolve_toolset_auth(ours(resolve))


async def _nothing_but(work: Awaitable[None]) -> AsyncGenerator[Event, None]:
    """Does ``work`` as a generator of events that gives none."""
    await work
    no_events: tuple[Event, ...] = ()
    for event in no_events:
        yield event


async def _sign_in(
    core: TurnCore, original: seams.ResolveToolsetAuth, context: InvocationContext, agent: LlmAgent
) -> None:
    """Asks until every toolset of the agent is signed in, or will not be."""
    run = current_run.get()
    assert run is not None, "an agent always runs in a run"
    number = core.toolset_rounds[run.id] = core.toolset_rounds.get(run.id, 0) + 1
    asked = 0
    while True:
        asked += 1
        group = f"{run.id}|sign-in|{number}.{asked}"
        # What was asked then is asked again, even if somebody has signed in meanwhile.
        questions = core.conductor.journal.questions_of(group)
        if not questions:
            questions = [
                await _question(core, run, group, context, request)
                for request in await _requests(original, context, agent)
                if request.function_call_id not in core.refused_sign_ins
            ]
        if not questions:
            return
        for question, answer in zip(questions, await core.conductor.ask(run, questions), strict=True):
            _take(core, context, question, answer)


async def _requests(
    original: seams.ResolveToolsetAuth, context: InvocationContext, agent: LlmAgent
) -> list[AuthToolArguments]:
    """What ADK would ask for.  Credentials that are there it puts where the toolsets look for them."""
    with determinism.ids_from(context.invocation_id, "sign-in"):  # a replay may not come here
        events = [event async for event in original(context, agent)]
    if events:
        context.end_invocation = False
    calls = [call for event in events for call in event.get_function_calls()]
    return [AuthToolArguments.model_validate(call.args) for call in calls]


async def _question(
    core: TurnCore, run: Run, group: str, context: InvocationContext, request: AuthToolArguments
) -> Question:
    question_id = f"{group}|{request.function_call_id}"
    name = request.function_call_id.removeprefix(seams.TOOLSET_AUTH)
    note = core.conductor.journal.asides.get(_note_key(question_id))
    if note is None:
        note = json.dumps(signin.note_of(request.auth_config, context.session.state))
        await record_aside(core, _note_key(question_id), note)
    return Question(
        question_id=question_id,
        kind=InterruptKind.CREDENTIAL,
        group=group,
        wait=QuestionWait.LIVE,
        tool_name=name,
        arguments={},
        agent_name=context.agent.name if context.agent is not None else "",
        path=path_of(core, run, CallbackContext(context)),
        hint=f"Toolset {name} needs a sign-in before it can list its tools.",
        payload=signin.shown_request(signin.config_of(json.loads(note))),
    )


def _take(core: TurnCore, context: InvocationContext, question: Question, answer: Answer) -> None:
    said: Any = answer.value
    if answer.error is not None or not said.get("approved"):
        core.refused_sign_ins.add(question.question_id.rpartition("|")[2])
        return
    note = json.loads(core.conductor.journal.asides[_note_key(question.question_id)])
    signin.store_answer(context.session.state, {}, note, said.get("payload"))


def _note_key(question_id: str) -> str:
    return f"{ASIDE}sign-in|{question_id}"
