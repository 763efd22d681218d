"""The copy itself: marks, sessions in groups, the comparison, the end.  It may be stopped anywhere and run again.

The order is what makes that safe.  First the destination is marked as an unfinished copy and takes no workers, then the
source is marked as moved and takes no writes; from here on neither can be used.  Sessions are copied in transactions,
each of them whole or not at all.  When both stores are found equal, one transaction makes the destination a store like
any other.  At no moment can both be used (J14), and from the first mark on nothing is written to the source but marks.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from perdure.errors import StoreError, StoreInUse, UsageError
from perdure.store.copying.digests import Compared, Differs, Sums
from perdure.store.copying.place import EVERYTHING, Place, Span
from perdure.store.copying.tables import OF_SESSION, OWN_META, SHARED
from perdure.store.sql.marks import COPY_OF, MOVED_TO, refuse_marked

STORE_ID = "store_id"

RUN = "copy_run"
"""The run that may write the destination: the last one that began, until it is given up."""


class Stage(enum.Enum):
    """How far a copy has come."""

    MARKED = "marked"
    COPYING = "copying"
    COMPARING = "comparing"
    DONE = "done"


Told = Callable[[Stage, int, int], None]
"""Hears of progress: the stage, and of how many sessions how many are through."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What came of a copy.

    Attributes:
        source, destination: addresses, without passwords.
        sessions: how many there are.
        compared: the tables that were found the same in both stores.
        kept_source: the source is a store of its own still.
        before: an earlier run had done it all; nothing was compared.
    """

    source: str
    destination: str
    sessions: int
    compared: tuple[Compared, ...]
    kept_source: bool
    before: bool = False


@contextmanager
def opened(*places: Place) -> Generator[None]:
    """Connects to places, for the length of a block."""
    with ExitStack() as stack:
        for place in places:
            stack.enter_context(place.reporting())
            place.open()
            stack.callback(place.close)
        yield


def in_use(place: Place, workers: list[str]) -> StoreInUse:
    """The error for a source that workers serve."""
    return StoreInUse(
        f"{place.address} is served by {len(workers)} worker(s) ({', '.join(workers[:5])}); stop them first: told by "
        "SIGTERM, 'perdure serve' finishes what runs, gives its sessions back and ends",
        address=place.address,
        workers=workers,
    )


class Copying:
    """One run."""

    def __init__(
        self, source: Place, destination: Place, run_id: str, keep_source: bool, told: Told, group: int
    ) -> None:
        self.source = source
        self.destination = destination
        self.run_id = run_id
        self.keep_source = keep_source
        self.told = told
        self.group = group

    def run(self, now_ms: int) -> Copied:
        self.destination.prepare(now_ms)
        with opened(self.source, self.destination):
            if not self._mark():
                count = len(self.source.session_keys())
                return Copied(self.source.address, self.destination.address, count, (), kept_source=False, before=True)
            self.told(Stage.MARKED, 0, 0)
            with self.source.snapshot():
                keys = self.source.session_keys()
                self._copy_rows(keys)
                compared = self._compare(keys)
                self._finish()
            self.told(Stage.DONE, len(keys), len(keys))
        return Copied(self.source.address, self.destination.address, len(keys), compared, self.keep_source)

    # ------------------------------------------------------------ marks

    def _mark(self) -> bool:
        """Marks both ends.  ``False``: an earlier run has done everything."""
        facts = self.source.meta()
        with self.destination.transaction():
            theirs = self.destination.meta()
            going_on = theirs.get(COPY_OF, "").partition(" ")[0] == facts[STORE_ID]
            if MOVED_TO in facts and theirs.get(STORE_ID) == facts[STORE_ID] and not self.keep_source:
                return False
            if MOVED_TO in facts and (self.keep_source or not going_on):
                refuse_marked(self.source.address, facts)
            if not going_on:
                self._claim(theirs, f"{facts[STORE_ID]} {self.source.address}")
            self.destination.put_meta(RUN, self.run_id)
        if not self.keep_source:
            self._freeze()
        return True

    def _claim(self, theirs: dict[str, str], copy_of: str) -> None:
        """Marks an empty destination."""
        refuse_marked(self.destination.address, theirs)
        if not self.destination.is_empty() or self.destination.workers():
            raise UsageError(
                f"{self.destination.address} is not empty (or workers serve it); choose a new file, or another schema",
                address=self.destination.address,
            )
        self.destination.put_meta(COPY_OF, copy_of)
        self.destination.keep_workers_out(self.source.address)

    def _freeze(self) -> None:
        """From here on nobody writes the source, whoever has it open."""
        with self.source.transaction():
            if MOVED_TO in self.source.meta():
                return
            self.source.freeze(self.destination.address)
            self.source.put_meta(MOVED_TO, self.destination.address)
            if workers := self.source.workers():
                raise in_use(self.source, workers)

    @contextmanager
    def _writing(self) -> Generator[None]:
        """A transaction of the destination, while this run is the one that may write it."""
        with self.destination.transaction():
            if self.destination.meta().get(RUN) != self.run_id:
                raise StoreError(
                    f"another run of the copy has begun to write {self.destination.address}, or the move was given up; "
                    "this run ends here",
                    address=self.destination.address,
                )
            yield

    # ------------------------------------------------------------ rows

    def _copy_rows(self, keys: list[int]) -> None:
        for done, span in self._spans(keys):
            with self._writing():
                self.destination.copy_sessions(self.source, span)
                self.told(Stage.COPYING, done, len(keys))
        with self._writing():
            for key in set(self.destination.session_keys()) - set(keys):
                self.destination.drop_session(key)
            self.destination.copy_shared(self.source)

    def _compare(self, keys: list[int]) -> tuple[Compared, ...]:
        """Compares everything, each table of each session by itself."""
        sums, shared = [Sums(table) for table in OF_SESSION], Sums(SHARED)
        try:
            for done, span in self._spans(keys):
                for one in sums:
                    one.compare(self.source, self.destination, span)
                self.told(Stage.COMPARING, done, len(keys))
            shared.compare(self.source, self.destination, EVERYTHING)
        except Differs as found:
            raise self._differ(found) from None
        return tuple(one.result() for one in (*sums, shared))

    def _spans(self, keys: list[int]) -> Iterator[tuple[int, Span]]:
        """The sessions in groups: how many are through after each, and from where to where it goes."""
        for first in range(0, len(keys), self.group):
            group = keys[first : first + self.group]
            yield first + len(group), (group[0], group[-1])

    def _differ(self, found: Differs) -> StoreError:
        return StoreError(
            f"{found.table} of session {found.session_key} is not the same in {self.source.address} and "
            f"{self.destination.address}: something else wrote one of them; nothing is lost, run the copy into a new "
            "place",
            address=self.destination.address,
        )

    def _finish(self) -> None:
        """The destination becomes a store like any other: the same one, unless the source is kept."""
        left = OWN_META | ({STORE_ID} if self.keep_source else frozenset[str]())
        with self._writing():
            for name, value in self.source.meta().items():
                if name not in left:
                    self.destination.put_meta(name, value)
            self.destination.take_note()
            self.destination.let_workers_in()
            self.destination.drop_meta(COPY_OF)
            self.destination.drop_meta(RUN)
