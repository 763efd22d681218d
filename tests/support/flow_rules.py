"""What must hold in a ``World`` after each input, one function for each rule.

Those with a number are the invariants of ``docs/invariants.md``.  Each looks at what was stored, what was commanded and
what really happened; none asks the loop's own state, except to compare it with these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from tests.support.flow_world import World

from perdure.session.model import InterruptStatus, RecordStatus, SessionStatus, StepName, StepStatus, TurnStatus
from perdure.session.policy import EFFECT_RULES
from perdure.session.runner import QuestionWait
from perdure.session.state import (
    MAX_MODEL_STEP_TAKEOVERS,
    BeginLeg,
    BeginTurn,
    CallPhase,
    CancelRequested,
    CheckCode,
    CloseRequested,
    CloseSession,
    CodeDiffers,
    DropMessage,
    DropTurn,
    EndLeg,
    EndTurn,
    HandOut,
    InterruptAnswered,
    JoinRequested,
    JoinTurn,
    MessageArrived,
    ModelBlocked,
    ModelStepSettled,
    OpenTurn,
    PutRecord,
    PutStep,
    Reason,
    RunCall,
    RunModel,
    SessionState,
    SettleInterrupt,
    SettleQuestion,
    StopStep,
    TakenOver,
    UnblockSession,
)

NEVER_RAN = {Reason.NOT_RUN, Reason.REJECTED, Reason.EXPIRED}


def j1_messages_are_handled_in_order_none_lost_none_doubled(world: World) -> None:
    journal = world.journal
    handled = [*journal.begun, *journal.dropped, *(message_id for message_id, _ in journal.joined)]
    assert len(set(handled)) == len(handled), f"J1: handled twice: {handled}"
    waiting = [turn_id for turn_id in world.accepted if turn_id not in handled and turn_id not in world.undelivered]
    assert list(world.state.queue) == waiting, f"J1: queued {world.state.queue}, but {waiting} wait"
    assert journal.begun == [t for t in world.accepted if t in journal.begun], f"J1: order of {journal.begun}"
    if not world.passes:
        return
    done = world.passes[-1]
    for command in done.commands:
        match command:
            case DropMessage(turn_id):
                asked = isinstance(done.given, CloseRequested) or done.given == CancelRequested(turn_id)
                late = isinstance(done.given, MessageArrived) and done.before.closed
                assert asked or late, f"J1: nobody asked to drop {turn_id}"
            case JoinTurn(turn_id, message_id):
                assert isinstance(done.given, JoinRequested), f"J18: nobody asked {message_id} to join"
                open_turn = done.before.turn
                assert open_turn is not None, f"J18: {message_id} joined no turn"
                assert (open_turn.turn_id, open_turn.ending) == (turn_id, None), f"J18: {message_id} joined another"
            case BeginTurn(turn_id, number):
                assert number == journal.begun.index(turn_id) + 1, "J1: turns are numbered in order"
            case _:
                pass


def j2_a_single_attempt_call_is_started_at_most_once(world: World) -> None:
    for step_id, row in world.journal.calls.items():
        if EFFECT_RULES[row.requested.effect].single_attempt:
            ran = world.bodies[step_id]
            assert ran <= 1 + row.asks, f"J2: {step_id} ran {ran} times, and asked {row.asks} times"
    for command in world.passes[-1].commands if world.passes else ():
        if isinstance(command, RunCall) and command.single_attempt:
            marks = [put for put in world.journal.puts[command.step_id] if put.status is not StepStatus.PENDING]
            asks = world.journal.calls[command.step_id].asks
            assert len(marks) <= asks, f"J2: {command.step_id} is run although it has a start mark"


def j3_a_settled_step_never_changes(world: World) -> None:
    for step_id, puts in world.journal.puts.items():
        settled = [put for put in puts if put.status.settled]
        assert len(settled) <= 1, f"J3: {step_id} is settled twice"
        assert not settled or puts[-1] is settled[0], f"J3: {step_id} is put after it was settled"
    for step_id, records in world.journal.records.items():
        assert len(records) == 1, f"J3: {step_id} has {len(records)} records"


def j4_no_call_is_without_a_record_when_its_turn_ends(world: World) -> None:
    journal = world.journal
    ended = {turn_id for turn_id, row in journal.turns.items() if row.status.ended}
    for step_id, row in journal.calls.items():
        if row.turn_id in ended:
            assert step_id in journal.records, f"J4: {step_id} has no record"
    late = journal.late()
    may_stay = {row.step_id for row in late.values()}
    for step in journal.steps.values():
        settled = step.turn_id not in ended or step.status.settled or step.step_id in may_stay
        assert settled, f"J4: {step.step_id} is open behind its turn"
    turn_id = journal.open_turn.turn_id if journal.open_turn is not None else None
    calls = journal.calls_of(turn_id).values() if turn_id is not None else ()
    questions = journal.questions_of(turn_id).values() if turn_id is not None else ()
    asking = {row.interrupt_id for row in calls if row.record is None}
    asking |= {row.interrupt_id for row in questions if not row.settled}
    for interrupt_id in journal.pending_interrupts():
        needed = interrupt_id in asking or interrupt_id in late
        assert needed, f"J4: {interrupt_id} waits for an answer that nobody needs"


def j4_a_record_says_what_happened(world: World) -> None:
    for done in world.passes[-1:]:
        for put in done.commands:
            if not isinstance(put, PutRecord) or put.reason is None:
                continue
            row = world.journal.calls[put.step_id]
            if put.reason in NEVER_RAN:
                # One that a person did not let through may have tried before it asked.
                idle = row.asks > 0 and put.reason is not Reason.NOT_RUN
                idle = idle or world.bodies[put.step_id] == row.asks
                assert idle, f"J4: {put.step_id} ran, and its record says that it did not"
            else:
                assert row.attempts > row.asks, f"J4: {put.step_id} never started, but its record says so"


def j6_an_interrupt_is_answered_at_most_once(world: World) -> None:
    journal = world.journal
    assert len(set(journal.raised)) == len(journal.raised), "J6: an interrupt id is used twice"
    for interrupt_id, ends in journal.interrupts.items():
        assert len(ends) <= 1, f"J6: {interrupt_id} was settled as {ends}"
        assert interrupt_id in journal.raised, f"J6: {interrupt_id} was never raised"


def j7_a_turn_that_ended_leaves_the_session_usable(world: World) -> None:
    state = world.state
    if state.turn is not None or state.closed:
        return
    assert state.blocked is None, "J7: blocked without a turn"
    assert not state.checking, "J7: checks the code of no turn"
    assert not state.queue or state.draining, "J7: messages wait for nothing"
    waits = [step for step in _await_steps(world) if not step.status.settled]
    assert [step.step_id for step in waits] == [state.await_step_id], "J7: one open AwaitUserMessage"


def _await_steps(world: World) -> list[PutStep]:
    return [step for step in world.journal.steps.values() if step.name is StepName.AWAIT_USER_MESSAGE]


def waiting_means_that_nothing_can_go_on_without_an_answer(world: World) -> None:
    state, turn = world.state, world.state.turn
    if turn is None or turn.ending is not None or state.blocked is not None or state.closed:
        assert state.status is not SessionStatus.WAITING, "waiting: without an open turn"
        return
    phases = {row.phase for row in world.journal.calls_of(turn.turn_id).values()}
    questions = world.journal.questions_of(turn.turn_id).values()
    asked = any(not row.settled for row in questions)
    frontier = world.journal.turns[turn.turn_id].at_frontier
    can_go_on = turn.model is not None or CallPhase.DUE in phases or CallPhase.STARTED in phases
    can_go_on = can_go_on or (frontier and not asked)
    assert (state.status is SessionStatus.WAITING) == (not can_go_on), f"waiting: {state.status} with {phases}"
    assert can_go_on or asked or CallPhase.AWAITING in phases, "waiting: for nothing"
    stored = world.journal.turns[turn.turn_id].status
    assert (stored is TurnStatus.WAITING) == turn.suspended, f"waiting: the store says {stored}"


def what_can_go_on_is_going_on(world: World) -> None:
    """Whatever is due was given to the engine: nothing waits for an input that nobody will send."""
    state, turn = world.state, world.state.turn
    checked = turn.turn_id if turn is not None and state.checking else None
    assert world.check == checked, f"going on: {checked} waits for a check, and that of {world.check} is under way"
    if turn is None or state.blocked is not None or state.draining or state.checking:
        return
    if turn.ending is not None:
        assert world.jobs, "going on: an ending turn waits for nothing"
        return
    for call_id, row in world.journal.calls_of(turn.turn_id).items():
        if row.phase in (CallPhase.DUE, CallPhase.STARTED):
            assert turn.calls[call_id].step_id in world.jobs, f"going on: nobody runs {call_id}"
    assert not (turn.over and turn.all_answered), "going on: the next leg does not begin"
    if turn.at_frontier:
        assert world.jobs or turn.over, "going on: an ending leg waits for nothing"
        return
    assert world.model is not None or turn.model is None, "going on: nobody drives the live turn"
    assert world.model is not None or not world.owed, "going on: the live turn has something and is not driven"


def a_branch_goes_on_when_its_own_group_is_settled(world: World) -> None:
    state, turn = world.state, world.state.turn
    if turn is None or turn.ending is not None or state.blocked is not None or state.checking or state.draining:
        return
    if turn.at_frontier:
        return  # Its invocation is over.
    if world.live is not None:
        missing = world.journal.complete_calls(turn.turn_id) - world.live
        assert not missing, f"branch: the live turn lacks the records of {missing}"
        missing = world.journal.complete_questions(turn.turn_id) - world.answered
        assert not missing, f"branch: the live turn lacks the answers to {missing}"


def records_are_handed_out_in_order_and_only_when_complete(world: World) -> None:
    for done in world.passes[-1:]:
        for command in done.commands:
            if isinstance(command, RunModel | HandOut):
                calls = world.journal.calls_of(world.turn_id)
                ranks = [calls[call_id].rank for call_id in command.call_ids]
                assert ranks == sorted(ranks), f"order: handed out {command.call_ids} with ranks {ranks}"
                complete = world.journal.complete_calls(world.turn_id)
                assert set(command.call_ids) <= complete, f"order: {command.call_ids} handed out too early"
                questions = world.journal.questions_of(world.turn_id)
                ranks = [questions[question_id].rank for question_id in command.question_ids]
                assert ranks == sorted(ranks), f"order: handed out {command.question_ids} with ranks {ranks}"
                complete = world.journal.complete_questions(world.turn_id)
                assert set(command.question_ids) <= complete, f"order: {command.question_ids} handed out too early"


def nothing_runs_that_runs_already(world: World) -> None:
    assert world.overlaps == [], f"overlap: {world.overlaps}"


def what_runs_is_stopped_before_it_is_forgotten(world: World) -> None:
    for done in world.passes[-1:]:
        stopped = {command.step_id for command in done.commands if isinstance(command, StopStep)}
        assert stopped <= done.running, f"stop: {stopped} where {set(done.running)} ran"
        if DropTurn() in done.commands:
            assert stopped == done.running, f"stop: only {stopped} of {set(done.running)}"


def the_live_turn_is_not_driven_for_nothing(world: World) -> None:
    """An invocation that waits for calls would be driven for ever."""
    for done in world.passes[-1:]:
        turn = done.after.turn
        blocked = isinstance(done.given, ModelStepSettled) and isinstance(done.given.outcome, ModelBlocked)
        if blocked and done.before.turn is not None and turn is not None and turn.number == done.before.turn.number:
            drives = any(isinstance(command, RunModel) for command in done.commands)
            assert done.owed or not drives, "for nothing: the live turn has nothing new, and is driven"


def what_runs_was_put_and_agreed_to_before(world: World) -> None:
    for done in world.passes[-1:]:
        for position, command in enumerate(done.commands):
            if not isinstance(command, RunCall | RunModel):
                continue
            put = world.journal.steps.get(command.step_id)
            assert put is not None, f"put: {command.step_id} runs and is not stored"
            later = [c for c in done.commands[position:] if isinstance(c, PutStep) and c.step_id == command.step_id]
            assert not later, f"put: {command.step_id} is stored after it was told to run"
            if isinstance(command, RunCall):
                row = world.journal.calls[command.step_id]
                ends = world.journal.interrupts.get(row.interrupt_id or "", [])
                agreed = (row.requested.ask is None and not row.asks) or ends == [InterruptStatus.APPROVED]
                assert agreed, f"put: {command.step_id} runs although nobody agreed"
        if done.after.draining or done.after.checking or done.after.blocked is not None:
            new = [c for c in done.commands if isinstance(c, RunCall | RunModel | HandOut | BeginTurn)]
            assert not new, f"put: {new} is started although nothing may start"


def attempts_never_exceed_their_number(world: World) -> None:
    for step_id, row in world.journal.calls.items():
        allowed = row.asks + (1 if EFFECT_RULES[row.requested.effect].single_attempt else row.requested.max_attempts)
        assert row.attempts <= allowed, f"attempts: {step_id} has {row.attempts} of {allowed}"
        assert world.bodies[step_id] <= allowed, f"attempts: {step_id} ran {world.bodies[step_id]} times of {allowed}"
    for step_id, drives in world.drives.items():
        assert drives <= MAX_MODEL_STEP_TAKEOVERS, f"attempts: {step_id} was driven by {drives} workers"
        assert world.journal.steps[step_id].attempts == drives, f"attempts: {drives} drives of {step_id}"
    for job in world.jobs.values():
        stored = world.journal.calls[job.run.step_id].attempts
        expected = job.attempt if job.began or not job.run.single_attempt else job.attempt - 1
        assert stored == expected, f"attempts: {job} and {stored} stored"


def attempts_are_never_forgotten(world: World) -> None:
    """Only those are taken back of which it is known that they never began."""
    for done in world.passes[-1:]:
        if isinstance(done.given, CodeDiffers):
            return
        puts = Counter(c.step_id for c in done.commands if isinstance(c, PutStep) and c.call_id is not None)
        for step_id, new in puts.items():
            numbers = [put.attempts for put in world.journal.puts[step_id][-new - 1 :]]
            assert numbers == sorted(numbers), f"attempts: {step_id} forgot one of {numbers}"


def a_turn_that_kills_its_workers_is_given_up(world: World) -> None:
    if world.counts_deaths and world.state.turn is not None and world.state.turn.ending is None:
        assert world.deaths < MAX_MODEL_STEP_TAKEOVERS, f"deaths: {world.deaths} in a row"


def a_rejected_call_has_no_tool_step(world: World) -> None:
    for step_id, row in world.journal.calls.items():
        if row.record is RecordStatus.REJECTED and not row.asks:
            assert step_id not in world.journal.steps, f"rejected: {step_id} became a step"
            approval = world.journal.steps[row.approval_step_id or ""]
            assert approval.status is StepStatus.REJECTED, f"rejected: {approval}"


def ends_are_stored_in_order(world: World) -> None:
    """The turn before its session, the old turn before the new one, all that belongs to a turn before its end."""
    for done in world.passes[-1:]:
        kinds = [type(command) for command in done.commands]
        counts = Counter(kinds)
        assert max(counts[EndTurn], counts[BeginTurn], counts[CloseSession]) <= 1, f"ends: {kinds}"
        if EndTurn not in kinds:
            continue
        end = kinds.index(EndTurn)
        for later in (BeginTurn, CloseSession):
            assert later not in kinds or kinds.index(later) > end, f"ends: {later.__name__} before EndTurn"
        ended = done.before.turn.turn_id if done.before.turn is not None else None
        for command in done.commands[end:]:
            assert not isinstance(command, PutRecord), "ends: a record behind the end of its turn"
            assert not (isinstance(command, PutStep) and command.turn_id == ended), "ends: a step behind its turn"


def what_is_stored_is_enough_to_go_on(world: World) -> None:
    """A new owner begins with what the former one had, apart from what only one worker knows."""
    stored = world.journal.rebuild()
    assert _stored_part(stored, world) == _stored_part(world.state, world), "rebuilt: the store does not say all"


def _stored_part(state: SessionState, world: World) -> SessionState:
    turn = state.turn
    return replace(state, queue=(), checking=False, draining=False, turn=turn and _stored_turn(turn, world))


def _stored_turn(turn: OpenTurn, world: World) -> OpenTurn:
    complete = world.journal.complete_calls(turn.turn_id)
    calls = {
        call_id: replace(call, issued=False, handed_out=call_id in complete) for call_id, call in turn.calls.items()
    }
    model = turn.model and replace(turn.model, issued=False)
    ending = turn.ending if world.journal.keeps_endings else None
    answered = world.journal.complete_questions(turn.turn_id)
    questions = {name: replace(one, handed_out=name in answered) for name, one in turn.questions.items()}
    kept = replace(turn, steps=0, drive_again=False, over=False, calls=calls, model=model, ending=ending)
    return replace(kept, questions=questions)


def a_new_owner_begins_afresh(world: World) -> None:
    """It starts what is due, unless it has to find out first whether its code fits."""
    for done in world.passes[-1:]:
        checks = [command for command in done.commands if isinstance(command, CheckCode)]
        if not isinstance(done.given, TakenOver):
            assert not checks, "owner: only a new one checks its code"
            continue
        assert not done.after.draining, "owner: leaves before it came"
        assert bool(checks) == done.after.checking, f"owner: {checks}, and checking is {done.after.checking}"
        before, after = done.before.turn, done.after.turn
        goes_on = before is not None and after is not None and before.turn_id == after.turn_id and after.ending is None
        must = done.given.check or done.before.blocked is not None
        if before is not None and before.at_frontier:
            continue  # its invocation is over
        assert checks or not (goes_on and must), "owner: does not check its code"


def blocked_and_unblocked_take_turns(world: World) -> None:
    for done in world.passes[-1:]:
        freed = done.before.blocked is not None and done.after.blocked is None
        assert (UnblockSession() in done.commands) == freed, f"blocked: {done.before.blocked} to {done.after.blocked}"


def what_no_longer_applies_changes_nothing(world: World) -> None:
    for done in world.passes[-1:]:
        if done.meaningless:
            assert done.after == done.before, f"nonsense: {done.given} changed the state"
            assert done.commands == (), f"nonsense: {done.given} gave {done.commands}"


def a_no_is_kept(world: World) -> None:
    """Whoever asked, and whenever: what a person rejected does not run."""
    for done in world.passes[-1:]:
        if not isinstance(done.given, InterruptAnswered) or done.given.approved or done.meaningless:
            continue
        wanted = {InterruptStatus.REJECTED, InterruptStatus.WITHDRAWN}
        ends = {c.status for c in done.commands if isinstance(c, SettleInterrupt)}
        assert ends <= wanted, f"no: {done.given} became {ends}"


def j12_a_question_has_one_answer_for_whoever_waits(world: World) -> None:
    journal = world.journal
    assert all(count == 1 for count in journal.settled_questions.values()), f"J12: {journal.settled_questions}"
    if not world.passes:
        return
    for command in world.passes[-1].commands:
        if not isinstance(command, SettleQuestion):
            continue
        row = journal.questions[command.interrupt_id]
        (end,) = journal.interrupts[command.interrupt_id]
        has_answer = end is not InterruptStatus.WITHDRAWN and row.requested.wait is not QuestionWait.NEXT_TURN
        assert (command.question_id is not None) == has_answer, f"J12: {command} of a question that is {end}"
        if has_answer:
            assert command.expired == (end is InterruptStatus.EXPIRED), f"J12: {command} is {end}"


def j12_a_late_answer_starts_one_turn(world: World) -> None:
    """And nothing of it reaches the turn that asked."""
    state, journal = world.state, world.journal
    assert state.late.keys() == journal.late().keys(), f"J12: {list(state.late)} and {list(journal.late())} are open"
    if not state.closed:
        return
    assert not state.late, "J12: a closed session asks"


def j13_a_leg_begins_when_every_question_of_the_one_before_has_its_answer(world: World) -> None:
    for done in world.passes[-1:]:
        before = done.before.turn
        ended = [command.leg for command in done.commands if isinstance(command, EndLeg)]
        begun = [command.leg for command in done.commands if isinstance(command, BeginLeg)]
        if ended:
            assert before is not None, "J13: a leg of no turn"
            assert ended == [before.leg], f"J13: {ended} ended, and {before.leg} ran"
        if not begun:
            continue
        assert before is not None, "J13: a leg of no turn"
        assert begun == [before.leg + 1], f"J13: {begun} follows {before.leg}"
        for row in world.journal.calls.values():
            if (row.turn_id, row.leg) == (before.turn_id, before.leg):
                assert row.record is not None, "J13: a call of the leg before has no record"
        rows = [r for r in world.journal.questions.values() if (r.turn_id, r.leg) == (before.turn_id, before.leg)]
        frontier = [row for row in rows if row.requested.wait is QuestionWait.NEXT_LEG]
        assert frontier, "J13: the leg before asked nothing"
        assert all(row.rank for row in frontier), "J13: a question of the leg before has no answer"
        assert all(row.settled for row in rows), "J13: a question of the leg before is open"


RULES: tuple[Callable[[World], None], ...] = (
    j1_messages_are_handled_in_order_none_lost_none_doubled,
    j2_a_single_attempt_call_is_started_at_most_once,
    j3_a_settled_step_never_changes,
    j4_no_call_is_without_a_record_when_its_turn_ends,
    j4_a_record_says_what_happened,
    j6_an_interrupt_is_answered_at_most_once,
    j7_a_turn_that_ended_leaves_the_session_usable,
    waiting_means_that_nothing_can_go_on_without_an_answer,
    what_can_go_on_is_going_on,
    a_branch_goes_on_when_its_own_group_is_settled,
    records_are_handed_out_in_order_and_only_when_complete,
    nothing_runs_that_runs_already,
    what_runs_is_stopped_before_it_is_forgotten,
    the_live_turn_is_not_driven_for_nothing,
    what_runs_was_put_and_agreed_to_before,
    attempts_never_exceed_their_number,
    attempts_are_never_forgotten,
    a_turn_that_kills_its_workers_is_given_up,
    a_rejected_call_has_no_tool_step,
    ends_are_stored_in_order,
    what_is_stored_is_enough_to_go_on,
    a_new_owner_begins_afresh,
    blocked_and_unblocked_take_turns,
    what_no_longer_applies_changes_nothing,
    a_no_is_kept,
    j12_a_question_has_one_answer_for_whoever_waits,
    j12_a_late_answer_starts_one_turn,
    j13_a_leg_begins_when_every_question_of_the_one_before_has_its_answer,
)
