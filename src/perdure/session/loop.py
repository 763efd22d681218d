"""One pass of the session loop: the state under way, the commands so far, and the small hands that change both.

``flow.reduce`` makes a ``Loop`` for each input; the rules are functions over it, one module for each concern:
``turn_calls``, ``turn_model``, ``turn_ends``, ``ownership``, and ``flow`` for how a session goes on.
"""

from __future__ import annotations

from dataclasses import replace

from perdure.session.model import RecordStatus, StepName, StepStatus
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


def call_step_id(turn_id: str, call_id: str) -> str:
    """Id of the step that runs a tool call."""
    return f"{turn_id}/call/{call_id}"


def approval_step_id(turn_id: str, call_id: str) -> str:
    """Id of the step that waits for a person's word on a tool call."""
    return f"{turn_id}/approve/{call_id}"


def interrupt_id_for(turn_id: str, call_id: str) -> str:
    """Ours, stable over restarts, distinct even for equal calls (their ids differ)."""
    return f"{turn_id}:{call_id}"


class Loop:
    """One reduction under way.  ``before`` is the state that it began with."""

    def __init__(self, before: SessionState) -> None:
        self.before = before
        self.state = before
        self.commands: list[Command] = []

    def do(self, *commands: Command) -> None:
        """Adds commands, in order."""
        self.commands.extend(commands)

    # ------------------------------------------------------------ the open turn

    @property
    def turn(self) -> OpenTurn:
        """The open turn.  Ask only where there is one."""
        assert self.state.turn is not None
        return self.state.turn

    def open_turn(self, turn_id: str | None) -> OpenTurn | None:
        """The open turn, if there is one and ``turn_id`` means it (``None`` means any)."""
        turn = self.state.turn
        return turn if turn is not None and turn_id in (None, turn.turn_id) else None

    def put_turn(self, turn: OpenTurn) -> None:
        self.state = replace(self.state, turn=turn)

    def end_with(self, ending: Ending) -> None:
        """Decides how the open turn ends.  It ends when nothing of it runs any more."""
        self.put_turn(replace(self.turn, model=None, ending=ending))

    # ------------------------------------------------------------ its steps

    def put_call(self, call: Call, step: StepStatus | None = None) -> None:
        """Keeps ``call``; and brings its tool step to ``step``, unless that is ``None``."""
        turn = self.turn
        self.put_turn(replace(turn, calls={**turn.calls, call.call_id: call}))
        if step is not None:
            name = step_name_for(call.effect)
            self.do(PutStep(call.step_id, turn.turn_id, name, step, call.attempts, call.call_id))

    def put_model(self, model: ModelStep, step: StepStatus) -> None:
        """Keeps ``model``, unless ``step`` settles it."""
        self.put_turn(replace(self.turn, model=None if step.settled else model))
        self.do(PutStep(model.step_id, self.turn.turn_id, StepName.RUN_MODEL, step, model.attempts))

    def new_model_step(self) -> None:
        """The live turn is to be driven on."""
        turn = self.turn
        assert turn.model is None, "one model step at a time"
        self.put_turn(replace(turn, steps=turn.steps + 1))
        self.put_model(ModelStep(f"{turn.turn_id}/model/{self.turn.steps}"), StepStatus.PENDING)
