"""The runs, groups and calls of one live invocation, and what can be read off them.  Knows nothing of the journal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from perdure.adk.live.calls import Batch, Call, Group, GroupState, apart_key
from perdure.adk.live.questions import Asked, AskedGroup
from perdure.adk.live.runs import Run, held_run
from perdure.errors import UsageError
from perdure.session.runner import CallRequest, Question


class Floor:
    """Where everything in the invocation stands.

    Args:
        ids: the ids that ADK is to get in the run of this id.

    Attributes:
        root: the invocation.
        changes: counts what happened, so that one can see whether anything did.
    """

    def __init__(self, ids: Callable[[str], Iterator[str]]) -> None:
        self._ids = ids
        self.root = Run("", None, ids(""))
        self.changes = 0
        self._groups: dict[str, Group] = {}
        self._calls: dict[str, Call] = {}
        self._unreported: list[Batch] = []
        self._asked: dict[str, AskedGroup] = {}
        self._unreported_questions: list[Asked] = []
        self._announced: dict[str, Question] = {}
        self._unreported_announced: list[Question] = []
        self.given_up_questions: set[str] = set()
        self._key_of_call: dict[str, str] = {}
        self._groups_of_key: dict[str, int] = {}
        self._model_keys: list[tuple[Run, str]] = []

    # ------------------------------------------------------------ runs

    def begin_run(self, parent: Run, name: str, *, scope: str | None = None, place: str | None = None) -> Run:
        """Begins a run inside another, or below what that other holds.

        ``scope`` and ``place`` are the parent's unless given.
        """
        self.changes += 1
        run_id = parent.child_id(name)
        held = held_run()
        above = held if held is not None and held.is_below(parent) else parent
        run = Run(
            run_id,
            above,
            self._ids(run_id),
            scope=parent.scope if scope is None else scope,
            place=parent.place if place is None else place,
        )
        above.children.append(run)
        return run

    def end_run(self, run: Run) -> None:
        """Takes a run out of the tree.  What is still below it goes on below its parent."""
        self.changes += 1
        if run.parent is None or run not in run.parent.children:
            return
        run.parent.children.remove(run)
        for child in run.children:
            child.parent = run.parent
        run.parent.children += run.children

    @property
    def at_rest(self) -> bool:
        """Whether nothing can move by itself."""
        return self.root.at_rest

    @property
    def blocked(self) -> bool:
        """Whether everything waits for records."""
        return self.root.at_rest and not self.gated()

    @property
    def still(self) -> bool:
        """Whether no code of the invocation runs at this moment, models apart."""
        return self.root.still

    def gated(self) -> list[Run]:
        """The runs that want to make a model call."""
        return [run for run in self.root.walk() if run.gate is not None]

    # ------------------------------------------------------------ calls and groups

    def note_model_call(self, run: Run, key: str, call_ids: Iterable[str]) -> None:
        """A model call was answered; its response has these calls."""
        run.model_key = key
        self._model_keys.append((run, key))
        for call_id in call_ids:
            self._key_of_call[call_id] = key

    def note_group(self, key: str, call_ids: Iterable[str]) -> None:
        """The group of these calls is to have this key."""
        for call_id in call_ids:
            self._key_of_call[call_id] = key

    def add_call(self, run: Run, call_id: str) -> None:
        """Makes a call that the model did not write one of the run's last model call, if it made one."""
        if run.model_key:
            self._key_of_call[call_id] = run.model_key

    def knows(self, call_id: str) -> bool:
        """Whether a model response of this turn has a call of this id."""
        return call_id in self._key_of_call

    def open_batch(self, run: Run, call_ids: Sequence[str], apart: Collection[str] = ()) -> Batch:
        """Begins the batch of these calls.  Its key is that of the model call; with a number if that had another.

        Args:
            apart: those that are groups of their own.
        """
        self.changes += 1
        base = next((self._key_of_call[i] for i in call_ids if i in self._key_of_call), None)
        if base is None:  # a callback made them up
            base = f"{run.model_key or run.id}|callback"
        count = self._groups_of_key[base] = self._groups_of_key.get(base, 0) + 1
        batch = Batch(base if count == 1 else f"{base}/{count}", run)
        together = Group(batch.key, batch)
        for call_id in call_ids:
            group = Group(apart_key(batch.key, call_id), batch) if call_id in apart else together
            self._calls[call_id] = group.calls[call_id] = batch.calls[call_id] = Call(call_id, group)
            if group not in batch.groups:
                batch.groups.append(group)
                self._groups[group.key] = group
        run.unaccounted += len(batch.groups)
        return batch

    def to_request(self, call_id: str, run: Run) -> Call:
        """The call that is about to be requested.

        Raises:
            UsageError: it is requested already.
        """
        call = self._calls.get(call_id)
        if call is None:
            call = self.open_batch(run, [call_id]).calls[call_id]
        if call.request is not None:
            raise UsageError(
                f"two tool calls have the same id, {call_id!r}: a callback made one of them up; leave the id out"
            )
        return call

    def account(self, call_id: str) -> Batch | None:
        """It is known what becomes of a call.  Returns its batch if that is now known of all its calls."""
        call = self._calls.get(call_id)
        if call is None or call.accounted:
            return None
        self.changes += 1
        call.accounted = True
        batch = call.group.batch
        if not batch.accounted:
            return None
        for group in batch.groups:
            self._move(group, GroupState.WAITING if group.open_calls else GroupState.CLOSED)
        if batch.open_calls:
            self._unreported.append(batch)
        return batch

    def let_go_on(self, calls: Sequence[Call]) -> None:
        """Calls of a group have their records.  While others of the batch wait, it is not seen that the run moves."""
        for call in calls:
            if not call.done and any(not other.done for other in call.group.batch.calls.values() if other not in calls):
                call.moving = True
                call.group.owner.busy += 1

    def end_call(self, call: Call) -> None:
        """ADK is through with a call."""
        self.changes += 1
        call.done = True
        if call.moving:
            call.moving = False
            call.group.owner.busy -= 1

    def give_up(self, call: Call) -> None:
        """ADK no longer waits for a call."""
        self.changes += 1
        call.given_up = True
        if not call.group.open_calls:
            self.close_group(call.group)

    def close_batch(self, batch: Batch) -> None:
        """Nobody waits for the batch any more."""
        for group in batch.groups:
            self.close_group(group)

    def close_group(self, group: Group) -> None:
        """Nobody waits for the group any more."""
        self.changes += 1
        self._move(group, GroupState.CLOSED)

    def _move(self, group: Group, state: GroupState) -> None:
        run = group.owner
        run.unaccounted -= group.state is GroupState.UNACCOUNTED
        run.waiting += (state is GroupState.WAITING) - (group.state is GroupState.WAITING)
        group.state = state
        if state is GroupState.CLOSED:
            self._groups.pop(group.key, None)

    def group(self, key: str) -> Group | None:
        """The group of this key that is not closed."""
        return self._groups.get(key)

    def waiting_groups(self) -> list[Group]:
        """The groups that wait for records, and of whose calls everything else is known."""
        return [group for group in self._groups.values() if group.state is GroupState.WAITING]

    def call(self, call_id: str) -> Call | None:
        """The call of this id."""
        return self._calls.get(call_id)

    def requested_call(self, call_id: str) -> Call | None:
        """A requested call of whose batch it is known what becomes of each call."""
        call = self._calls.get(call_id)
        return call if call is not None and call.request is not None and call.group.batch.accounted else None

    # ------------------------------------------------------------ questions

    def open_questions(self, group: AskedGroup) -> None:
        """A run waits for the answers to these questions."""
        self.changes += 1
        group.owner.waiting += 1
        self._asked[group.key] = group
        self._unreported_questions += [asked for asked in group.asked.values() if asked.fresh]

    def close_questions(self, group: AskedGroup) -> None:
        """Nobody waits for the answers any more."""
        self.changes += 1
        group.owner.waiting -= 1
        del self._asked[group.key]

    def give_up_questions(self, group: AskedGroup) -> None:
        """The run that asked was stopped."""
        self.given_up_questions.add(group.key)
        self._unreported_questions = [one for one in self._unreported_questions if one not in group.asked.values()]
        self.close_questions(group)

    def announce(self, question: Question, *, fresh: bool) -> None:
        """A question may be answered although nobody waits for it yet.

        Args:
            fresh: the engine is to be told of it.
        """
        self.changes += 1
        self._announced[question.question_id] = question
        if fresh:
            self._unreported_announced.append(question)

    @property
    def announced(self) -> Collection[Question]:
        """All questions that were announced."""
        return self._announced.values()

    def is_announced(self, question_id: str) -> bool:
        """Whether the question of this id was announced."""
        return question_id in self._announced

    def is_early(self, key: str) -> bool:
        """Whether questions of this group were announced and nobody waits for them yet."""
        return key not in self._asked and any(question.group == key for question in self._announced.values())

    def questions(self, key: str) -> AskedGroup | None:
        """The questions of this group, if somebody waits for their answers."""
        return self._asked.get(key)

    def open_question_groups(self) -> list[AskedGroup]:
        """All groups of questions for whose answers somebody waits."""
        return list(self._asked.values())

    # ------------------------------------------------------------ what the engine is to be told

    @property
    def has_unreported(self) -> bool:
        """Whether there are calls or questions that the engine was not told of."""
        return bool(self._unreported_questions) or self._has_unreported_calls

    @property
    def has_announced(self) -> bool:
        """Whether there are announced questions that the engine was not told of.  They can wait until nothing moves."""
        return bool(self._unreported_announced)

    def take_unreported_questions(self) -> tuple[Question, ...]:
        """The questions of both kinds; from now on the engine knows of them."""
        announced, self._unreported_announced = self._unreported_announced, []
        asked, self._unreported_questions = self._unreported_questions, []
        return (*announced, *(one.question for one in asked))

    @property
    def _has_unreported_calls(self) -> bool:
        return any(call.fresh for batch in self._unreported for call in batch.open_calls)

    def take_unreported_calls(self) -> tuple[CallRequest, ...]:
        """Those calls; from now on the engine knows of them.  The journal's own are left out."""
        batches, self._unreported = self._unreported, []
        return tuple(call.request for batch in batches for call in batch.open_calls if call.fresh and call.request)

    def forget_model_keys(self, run: Run) -> None:
        """What the run goes on with now belongs to a step that the engine was told of before."""
        self._model_keys = [entry for entry in self._model_keys if entry[0] is not run]

    def take_model_keys(self) -> tuple[str, ...]:
        """Keys of the model calls answered since this was last asked, without those of earlier steps."""
        keys = tuple(key for _, key in self._model_keys)
        self._model_keys.clear()
        return keys
