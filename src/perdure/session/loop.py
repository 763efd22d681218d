"""One pass of the session loop: the state under way, the commands so far, and the small hands that change both.

``flow.reduce`` makes a ``Loop`` for each input; the rules are functions over it, one module for each concern:
``turn_calls``, ``turn_questions``, ``turn_model``, ``turn_legs``, ``turn_ends``, ``ownership``, and ``flow`` for how a
session goes on.
"""

from __future__ import annotations

from dataclasses import replace

from perdure.session.model import InterruptKind, RecordStatus, StepName, StepStatus
from perdure.session.policy import step_name_for
from perdure.session.state import Call, Command, Ending, ModelStep, OpenTurn, PutStep, SessionState

RECORD_TO_STEP: dict[RecordStatus, StepStatus] = {
    RecordStatus.SUCCEEDED: StepStatus.SUCCEEDED,
    RecordStatus.FAILED: StepStatus.FAILED,
    RecordStatus.REJECTED: StepStatus.REJECTED,
    RecordStatus.OUTCOME_UNKNOWN: StepStatus.OUTCOME_UNKNOWN,
}


def await_step_id(turns: int) -> str:
    """Id of the ``AwaitUserMessage`` step behind ``turns`` turns."""
    return f"await/{turns + 1}"


def call_step_id(turn_id: str, call_id: str, leg: int = 1) -> str:
    """Id of the step that runs a tool call."""
    return f"{turn_id}/call/{call_id}" if leg == 1 else f"{turn_id}/leg/{leg}/call/{call_id}"


def approval_step_id(turn_id: str, asker_id: str, number: int = 1) -> str:
    """Id of the step that waits for a person's yes or no; ``number``: of those that this call or question raised."""
    return f"{turn_id}/approve/{asker_id}{_suffix(number)}"


def answer_step_id(turn_id: str, asker_id: str, number: int = 1) -> str:
    """Id of the step that waits for any other answer; ``number`` as for approvals."""
    return f"{turn_id}/answer/{asker_id}{_suffix(number)}"


def interrupt_id_for(turn_id: str, asker_id: str, number: int = 1) -> str:
    """Ours, stable over restarts, distinct even for equal calls (their ids differ)."""
    return f"{turn_id}:{asker_id}{_suffix(number)}"


def _suffix(number: int) -> str:
    return "" if number == 1 else f":{number}"


def wait_step_name(kind: InterruptKind) -> StepName:
    """The step that waits for an answer of this kind."""
    yes_or_no = kind in (InterruptKind.APPROVAL, InterruptKind.CONFIRMATION)
    return StepName.AWAIT_TOOL_APPROVAL if yes_or_no else StepName.AWAIT_ANSWER


class Loop:
    """One reduction under way.

    Attributes:
        before: the state that it began with.
        queue, turns, await_step_id, late, closed, blocked, checking, draining: as in ``SessionState``, under way.
        commands: so far, in order.
    """

    def __init__(self, before: SessionState) -> None:
        self.before = before
        self.queue = before.queue
        self.turns = before.turns
        self.await_step_id = before.await_step_id
        self.late = before.late
        self.closed = before.closed
        self.blocked = before.blocked
        self.checking = before.checking
        self.draining = before.draining
        self.commands: list[Command] = []
        self._turn = before.turn

    def state(self) -> SessionState:
        """The state that it has come to."""
        return SessionState(
            session_id=self.before.session_id,
            queue=self.queue,
            turns=self.turns,
            await_step_id=self.await_step_id,
            turn=self._turn,
            late=self.late,
            closed=self.closed,
            blocked=self.blocked,
            checking=self.checking,
            draining=self.draining,
        )

    def do(self, *commands: Command) -> None:
        """Adds commands, in order."""
        self.commands.extend(commands)

    # ------------------------------------------------------------ the open turn

    @property
    def turn(self) -> OpenTurn:
        """The open turn.  Ask only where there is one."""
        assert self._turn is not None
        return self._turn

    @turn.setter
    def turn(self, turn: OpenTurn) -> None:
        self._turn = turn

    @property
    def goes_on(self) -> bool:
        """Whether a turn is open and not about to end."""
        return self._turn is not None and self._turn.ending is None

    @property
    def halted(self) -> bool:
        """Whether the session is blocked, and nobody is finding out whether other code fits."""
        return self.blocked is not None and not self.checking

    def open_turn(self, turn_id: str | None = None) -> OpenTurn | None:
        """The open turn, if there is one and ``turn_id`` means it (``None`` means any)."""
        return self._turn if self._turn is not None and turn_id in (None, self._turn.turn_id) else None

    def end_with(self, ending: Ending) -> None:
        """Decides how the open turn ends.  It ends when nothing of it runs any more."""
        self.turn = replace(self.turn, model=None, ending=ending)

    def no_turn(self) -> None:
        """The open turn is over."""
        self._turn = None

    # ------------------------------------------------------------ what it waits for

    def new_wait(self, kind: InterruptKind, asker_id: str) -> tuple[str, str]:
        """A call or question asks a person.  Returns the ids of its interrupt and of the step that waits for it."""
        turn = self.turn
        number = turn.raised.get(asker_id, 0) + 1
        self.turn = replace(turn, raised={**turn.raised, asker_id: number})
        name = wait_step_name(kind)
        step_id = (approval_step_id if name is StepName.AWAIT_TOOL_APPROVAL else answer_step_id)(
            turn.turn_id, asker_id, number
        )
        self.do(PutStep(step_id, turn.turn_id, name, StepStatus.PENDING, 0, asker_id))
        return interrupt_id_for(turn.turn_id, asker_id, number), step_id

    def next_rank(self) -> int:
        """The place of what is settled now among all that is."""
        rank = self.turn.settled + 1
        self.turn = replace(self.turn, settled=rank)
        return rank

    # ------------------------------------------------------------ its steps

    def put_call(self, call: Call, step: StepStatus | None = None) -> None:
        """Keeps ``call``; and brings its tool step to ``step``, unless that is ``None``."""
        turn = self.turn
        self.turn = replace(turn, calls={**turn.calls, call.call_id: call})
        if step is not None:
            name = step_name_for(call.effect)
            self.do(PutStep(call.step_id, turn.turn_id, name, step, call.attempts, call.call_id))

    def put_model(self, model: ModelStep, step: StepStatus) -> None:
        """Brings a model step to ``step``, and keeps ``model`` unless that settles it."""
        self.turn = replace(self.turn, model=None if step.settled else model)
        self.do(PutStep(model.step_id, self.turn.turn_id, StepName.RUN_MODEL, step, model.attempts))

    def resume(self) -> None:
        """What the live turn waited for is there."""
        turn = self.turn
        self.turn = replace(turn, steps=turn.steps + 1)
        resume_id = f"{turn.turn_id}/resume/{turn.steps + 1}"
        self.do(PutStep(resume_id, turn.turn_id, StepName.RESUME_TURN, StepStatus.SUCCEEDED, 1))
        if turn.model is None:
            self.new_model_step()

    def new_model_step(self) -> None:
        """The live turn is to be driven on."""
        assert self.turn.model is None, "one model step at a time"
        self.turn = replace(self.turn, steps=self.turn.steps + 1)
        self.put_model(ModelStep(f"{self.turn.turn_id}/model/{self.turn.steps}"), StepStatus.PENDING)
