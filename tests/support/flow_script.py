"""Short words for example tests of the session loop."""

from __future__ import annotations

from tests.support.flow_rules import RULES
from tests.support.flow_world import BROKEN, Pass, World

from perdure.session.flow import call_step_id, interrupt_id_for
from perdure.session.model import ErrorInfo, InterruptKind, InterruptStatus, RecordStatus
from perdure.session.policy import ToolEffect
from perdure.session.state import (
    Command,
    InterruptExpired,
    ModelBlocked,
    ModelFailed,
    ModelFinished,
    PutRecord,
    Reason,
    RequestedCall,
)


def call(
    call_id: str,
    effect: ToolEffect = ToolEffect.READ,
    *,
    group: str = "response 1",
    attempts: int = 3,
    ask: InterruptKind | None = None,
) -> RequestedCall:
    """A call that the model asked for."""
    return RequestedCall(call_id, group, effect, attempts, ask)


def write(call_id: str, *, group: str = "response 1", ask: InterruptKind | None = None) -> RequestedCall:
    """A call that must not be repeated."""
    return call(call_id, ToolEffect.NON_IDEMPOTENT_WRITE, group=group, ask=ask)


def gated(
    call_id: str, effect: ToolEffect = ToolEffect.NON_IDEMPOTENT_WRITE, *, group: str = "response 1"
) -> RequestedCall:
    """A call that somebody has to approve."""
    return call(call_id, effect, group=group, ask=InterruptKind.APPROVAL)


class Script(World):
    """A world in which the rules hold, told what happens by the ids of turns and calls."""

    def __init__(self) -> None:
        super().__init__(rules=RULES)

    # ------------------------------------------------------------ what happens

    def asks(self, *calls: RequestedCall, more: bool = False) -> Pass:
        """The invocation is blocked on these calls."""
        return self.model_reports(ModelBlocked(calls, more))

    def finishes(self) -> Pass:
        return self.model_reports(ModelFinished())

    def fails(self, error: ErrorInfo = BROKEN) -> Pass:
        return self.model_reports(ModelFailed(error))

    def starts(self, call_id: str) -> None:
        self.begin(call_step_id(self.turn_id, call_id))

    def returns(self, call_id: str, status: RecordStatus = RecordStatus.SUCCEEDED) -> None:
        self.settle(call_step_id(self.turn_id, call_id), status)

    def stumbles(self, call_id: str) -> None:
        """An attempt fails, and the step goes on to the next one."""
        self.fail_attempt(call_step_id(self.turn_id, call_id))

    def approve(self, call_id: str) -> None:
        self.answer(interrupt_id_for(self.turn_id, call_id), approved=True)

    def reject(self, call_id: str) -> None:
        self.answer(interrupt_id_for(self.turn_id, call_id), approved=False)

    def expire(self, call_id: str) -> None:
        self.tell(InterruptExpired(interrupt_id_for(self.turn_id, call_id)))

    # ------------------------------------------------------------ what came of it

    def last(self) -> tuple[Command, ...]:
        """The commands of the last reduction."""
        return self.passes[-1].commands

    def history(self) -> list[str]:
        """Name and status of every step, in the order in which they were first stored."""
        return [f"{step.name.value} {step.status.value}" for step in self.journal.steps.values()]

    def record(self, call_id: str, turn_id: str = "t1") -> tuple[RecordStatus, Reason | None]:
        """The record of a call, and why it was decided."""
        put = self._record(call_step_id(turn_id, call_id))
        return put.status, put.reason

    def _record(self, step_id: str) -> PutRecord:
        (put,) = self.journal.records[step_id]
        return put

    def ran(self, call_id: str, turn_id: str = "t1") -> int:
        """How often the tool was run."""
        return self.bodies[call_step_id(turn_id, call_id)]

    def attempts(self, call_id: str, turn_id: str = "t1") -> int:
        """How many attempts are stored."""
        return self.journal.calls[call_step_id(turn_id, call_id)].attempts

    def interrupt(self, call_id: str, turn_id: str = "t1") -> InterruptStatus:
        """How the interrupt of a call stands."""
        ends = self.journal.interrupts[interrupt_id_for(turn_id, call_id)]
        return ends[-1] if ends else InterruptStatus.PENDING

    def running(self) -> set[str]:
        """Ids of the calls that run now."""
        return {job.run.call_id for job in self.jobs.values()}
