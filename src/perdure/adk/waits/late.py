"""A turn that starts with the answer to a call of an earlier turn.

ADK takes a function response as the end of a pause and goes on under the invocation id of the call.  Here the earlier
turn is over, and the answer starts one of its own.  What runs in it is what ADK runs:

* the agent that asked, and nothing around it, under an id of its own;
* or the invocation that asked, under its id: a workflow, any other tree of agents if the application is resumable, and
  an agent that had delegated to the one that asked.  ADK finds out from the session's events how far that had come;
  what is in no message is *left* by the earlier turn in one of its own, its last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.runners import Runner
from google.adk.sessions.session import Session
from google.genai import types

from perdure.adk.live.core import TurnCore, current_turn
from perdure.adk.records.history import LEFT, content_of
from perdure.adk.waits.carry import Carry
from perdure.errors import UsageError
from perdure.session.model import JsonObject
from perdure.session.runner import QuestionWait, TurnStart


class TurnRunner(Runner):
    """ADK's runner, for the turns of a session."""

    @property
    def goes_on_as_a_whole(self) -> bool:
        """Whether a late answer lets the whole invocation go on that asked, and not only the agent."""
        if not isinstance(self.agent, BaseAgent):
            return True
        config = self.resumability_config
        return config is not None and config.is_resumable and not isinstance(self.agent, LlmAgent)

    def _new_invocation_context(
        self, session: Session, *, invocation_id: str | None = None, **more: Any
    ) -> InvocationContext:
        core = _starts_anew()
        if core is not None:  # before it makes the context, ADK makes an event, and takes the first id for that
            invocation_id = core.start.turn_id
        return super()._new_invocation_context(session, invocation_id=invocation_id, **more)

    def _resolve_invocation_id(
        self, session: Session, new_message: types.Content | None, invocation_id: str | None
    ) -> str | None:
        if _starts_anew() is not None:
            return invocation_id
        return super()._resolve_invocation_id(session, new_message, invocation_id)

    def _resolve_invocation_id_from_fr(
        self, session: Session, new_message: types.Content, *, strict: bool = True
    ) -> str | None:
        if _starts_anew() is not None:
            return None
        return super()._resolve_invocation_id_from_fr(session, new_message, strict=strict)

    def _find_user_message_for_invocation(self, events: list[Event], invocation_id: str) -> types.Content | None:
        """What the user said when the answered call was made."""
        core = _starts_anew()
        if core is not None:
            content = content_of(core.start.message)
            invocation_id = super()._resolve_invocation_id_from_fr(core.session, content, strict=False) or invocation_id
        return super()._find_user_message_for_invocation(events, invocation_id)


def _starts_anew() -> TurnCore | None:
    """The turn, if it starts with answers and is an invocation of its own."""
    core = current_turn.get()
    starts = core is not None and core.start.leg == 1 and bool(core.start.message.answers)
    return core if starts and core is not None and not core.goes_on else None


def goes_on(runner: TurnRunner, events: Sequence[Event], start: TurnStart) -> bool:
    """Whether a turn starts with answers that let the invocation go on that asked.

    An ``LlmAgent`` that has called the agent that asked (a task, a single turn, an agent in a workflow that is a tool)
    goes on when that does: ADK looks for what was done there under the id of the invocation.

    Raises:
        UsageError: the answers are for several invocations.
    """
    asked = [found for one in start.message.answers if (found := _asking(events, [one.question_id])) is not None]
    if start.leg > 1 or not asked:
        return False
    in_call = isinstance(runner.agent, LlmAgent) and any(map(_is_in_call, asked))
    if not (runner.goes_on_as_a_whole or in_call):
        return False
    if len({event.invocation_id for event in asked}) > 1:
        raise UsageError(
            "these answers let different invocations go on, and a turn is one; answer the questions of each earlier "
            "turn by themselves, with answer_question"
        )
    return True


def _is_in_call(event: Event) -> bool:
    """Whether an event comes from inside a call of another agent.  Such runs have the call's id, others a number."""
    segments = [*event.node_info.path.split("/"), *(event.branch or "").split(".")]
    runs = [segment.partition("@")[2] for segment in segments]
    return any(run and not run.isdigit() for run in runs)


async def leave(core: TurnCore, runner: TurnRunner) -> None:
    """At the end of an invocation that somebody may answer later: keeps what the answer's turn has to know."""
    invocation = core.invocation
    late = any(question.wait is QuestionWait.NEXT_TURN for question in core.conductor.floor.announced)
    if invocation is None or not runner.goes_on_as_a_whole or not (late or core.goes_on):
        return
    left = {
        "states": dict(invocation.agent_states),
        "ended": [name for name, ended in invocation.end_of_agents.items() if ended],
        "carry": Carry(silent=(*core.carry.silent, *core.silent_now), steps=core.steps).to_text(),
    }
    event = Event(
        invocation_id=invocation.invocation_id,
        author=runner.agent.name,
        custom_metadata={LEFT: left},
    )
    await invocation.session_service.append_event(core.session, event)


def take_up(events: list[Event], start: TurnStart) -> Carry:
    """Brings the events of a session to where the invocation stopped that a turn's answers let go on.

    Returns:
        What else that had left.
    """
    asked = _asking(events, [answer.question_id for answer in start.message.answers])
    for at in range(len(events) - 1, -1, -1):
        left = (events[at].custom_metadata or {}).get(LEFT)
        if left is not None and asked is not None and events[at].invocation_id == asked.invocation_id:
            events[at + 1 : at + 1] = _markers(events[at], cast(JsonObject, left))
            return Carry.read(left["carry"])
    return Carry()


def _markers(event: Event, left: JsonObject) -> list[Event]:
    """What ADK keeps of how far its agents have come, as its own events say it."""
    actions = {name: EventActions(agent_state=state) for name, state in left["states"].items()}
    actions |= {name: EventActions(end_of_agent=True) for name in left["ended"]}
    return [
        Event(
            id=f"{event.id}|{name}",
            invocation_id=event.invocation_id,
            author=name,
            timestamp=event.timestamp,
            actions=done,
        )
        for name, done in actions.items()
    ]


def _asking(events: Sequence[Event], question_ids: Sequence[str]) -> Event | None:
    """The event with a call that is answered."""
    return next((one for one in reversed(events) if any(c.id in question_ids for c in one.get_function_calls())), None)


def invocation_of_leg(events: Sequence[Event], start: TurnStart) -> str:
    """The id under which a later leg of a turn goes on."""
    asked = _asking(events, [answered.question.question_id for answered in start.answers])
    return start.turn_id if asked is None else asked.invocation_id
