"""Inputs that mean nothing in the state that a ``World`` is in: they come late, twice, or for something else."""

from __future__ import annotations

from tests.support.flow_world import BROKEN, DIFFERENT, World

from perdure.session.model import InterruptKind, RecordStatus
from perdure.session.state import (
    AttemptFailed,
    AttemptStarted,
    CallAsked,
    CallSettled,
    CancelRequested,
    CloseRequested,
    CodeDiffers,
    CodeFits,
    DrainRequested,
    Input,
    InterruptAnswered,
    InterruptExpired,
    JoinRequested,
    MessageArrived,
    ModelBlocked,
    ModelFailed,
    ModelFinished,
    ModelStepSettled,
    TurnHasNews,
)


def nonsense(world: World) -> list[Input]:
    """Never empty.  What the list holds depends on the state."""
    state = world.state
    return [
        *_about_steps(["nowhere/call/c1", *world.stopped, *world.journal.steps, *world.journal.calls], world),
        *_about_running_steps(world),
        *(InterruptAnswered(interrupt_id) for interrupt_id in world.journal.late()),
        *(answer for interrupt_id in _settled_interrupts(world) for answer in _answers(interrupt_id)),
        CancelRequested("nowhere"),
        JoinRequested("nowhere", tuple(state.queue)),
        *([JoinRequested(state.turn.turn_id, ("nobody",))] if state.turn is not None else []),
        *(CancelRequested(turn_id) for turn_id, row in world.journal.turns.items() if row.status.ended),
        TurnHasNews("nowhere"),
        CodeFits("nowhere"),
        CodeDiffers(DIFFERENT, "nowhere"),
        *([] if state.checking else [CodeFits()]),
        *([CodeDiffers(DIFFERENT), TurnHasNews()] if state.blocked is not None and not state.checking else []),
        *([CodeDiffers(DIFFERENT), TurnHasNews(), CancelRequested()] if state.turn is None else []),
        *([CloseRequested()] if state.closed else [MessageArrived(turn_id) for turn_id in _known_messages(world)]),
        *([DrainRequested()] if state.draining else []),
    ]


def _about_steps(step_ids: list[str], world: World) -> list[Input]:
    """Reports about steps that do not run."""
    running = {*world.jobs, world.model.step_id if world.model is not None else ""}
    idle = dict.fromkeys(step_id for step_id in step_ids if step_id not in running)
    return [report for step_id in idle for report in _reports(step_id)]


def _reports(step_id: str) -> list[Input]:
    return [
        AttemptStarted(step_id),
        AttemptFailed(step_id),
        CallAsked(step_id, InterruptKind.CONFIRMATION),
        CallSettled(step_id, RecordStatus.SUCCEEDED),
        ModelStepSettled(step_id, ModelBlocked(())),
        ModelStepSettled(step_id, ModelFinished()),
        ModelStepSettled(step_id, ModelFailed(BROKEN)),
    ]


def _about_running_steps(world: World) -> list[Input]:
    """Reports that do not suit the step, or the moment."""
    found: list[Input] = []
    for step_id, job in world.jobs.items():
        found.append(ModelStepSettled(step_id, ModelFinished()))
        if job.began or not job.run.single_attempt:
            found.append(AttemptStarted(step_id))
        if not job.began and job.run.single_attempt:
            found.append(CallAsked(step_id, InterruptKind.CREDENTIAL))
        if job.run.single_attempt or job.attempt - job.run.asks == world.journal.calls[step_id].requested.max_attempts:
            found.append(AttemptFailed(step_id))
    if world.model is not None:
        found += [CallSettled(world.model.step_id, RecordStatus.SUCCEEDED), AttemptStarted(world.model.step_id)]
    return found


def _settled_interrupts(world: World) -> list[str]:
    return ["nowhere:c1", *(name for name, ends in world.journal.interrupts.items() if ends)]


def _answers(interrupt_id: str) -> list[Input]:
    return [
        InterruptAnswered(interrupt_id, approved=True),
        InterruptAnswered(interrupt_id, approved=False),
        InterruptExpired(interrupt_id),
    ]


def _known_messages(world: World) -> list[str]:
    turn = world.state.turn
    return [*world.state.queue, *([turn.turn_id] if turn is not None else [])]
