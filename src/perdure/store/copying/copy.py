"""The way into a copy and out of it: which stores they are, workers that have to leave, a move that is given up."""

from __future__ import annotations

import asyncio
from pathlib import Path

from perdure.clock import Clock, SystemClock
from perdure.errors import StoreMoved, StoreUnavailable, UsageError
from perdure.ids import IdSource, RandomIds
from perdure.store.copying.place import Place
from perdure.store.copying.run import RUN, STORE_ID, Copied, Copying, Stage, Told, in_use, opened
from perdure.store.copying.sqlite import SqlitePlace
from perdure.store.opening import POSTGRES_PREFIXES, is_made, new_store, sqlite_path
from perdure.store.sql.marks import MOVED_TO

GROUP = 50
"""Sessions that are copied in one transaction."""

LOOK_EVERY = 0.1
"""Seconds between two looks whether the workers have left."""


def _tell_nobody(stage: Stage, done: int, of: int) -> None:
    pass


async def copy_store(
    source: str,
    destination: str,
    *,
    keep_source: bool = False,
    told: Told = _tell_nobody,
    group: int = GROUP,
    patience: float = 3.0,
    clock: Clock | None = None,
    ids: IdSource | None = None,
) -> Copied:
    """Moves all sessions of a store to another place, which then is the same store: it has its id.

    Stopped at any moment, it goes on where it was when it is run again.

    Args:
        source, destination: addresses of stores.  The destination is made if it is not there, and must be empty.
        keep_source: makes another store with the same sessions, and leaves the source as it is.
        told: called in another thread.
        group: sessions that are copied in one transaction.
        patience: seconds for which workers of the source may take to leave.
        clock, ids: for tests.

    Raises:
        StoreInUse: workers serve the source.
        StoreMoved: the source was moved to another place before.
        UsageError: the destination is not empty, or is the source.
        StoreError: one of them cannot be read or written, or they do not agree in the end.
    """
    clock = clock or SystemClock()
    if not await asyncio.to_thread(is_made, source):
        nowhere = _place(source).address
        raise StoreUnavailable(f"there is no store at {nowhere}; check the address", address=nowhere)
    ends = (_place(source), _place(destination))
    if ends[0].address == ends[1].address:
        raise UsageError(f"{ends[0].address} cannot be copied into itself", address=ends[0].address)
    await _settle(source, ends[0], clock, patience)
    copy = Copying(*ends, (ids or RandomIds()).new_id(), keep_source, told, group)
    return await asyncio.to_thread(copy.run, clock.now_ms())


async def undo_copy(source: str, destination: str) -> None:
    """Gives up a move that is not finished: the source can be used again.

    Raises:
        UsageError: there is none, or it is finished.
        StoreError: one of them cannot be read or written.
    """
    await asyncio.to_thread(_undo, _place(source), _place(destination), await asyncio.to_thread(is_made, destination))


def _place(address: str) -> Place:
    if address.startswith(POSTGRES_PREFIXES):
        new_store(address)  # It says what is missing where PostgreSQL cannot be used.
        from perdure.store.copying.postgres import PostgresPlace

        return PostgresPlace(address)
    return SqlitePlace(Path(sqlite_path(address)).resolve())


async def _settle(address: str, place: Place, clock: Clock, patience: float) -> None:
    """Gives up workers that are dead, and waits for those that are about to leave."""
    store = new_store(address, clock=clock)
    try:
        await store.open()
    except StoreMoved:
        return  # An earlier run saw to it.
    try:
        await store.store_id()
        async with asyncio.timeout(patience):
            while await asyncio.to_thread(_workers, place):
                await store.reap_workers(clock.now_ms())
                await asyncio.sleep(LOOK_EVERY)
    except TimeoutError:
        raise in_use(place, await asyncio.to_thread(_workers, place)) from None
    finally:
        await store.close()


def _workers(place: Place) -> list[str]:
    with opened(place):
        return place.workers()


def _undo(source: Place, destination: Place, made: bool) -> None:
    with opened(source):
        facts = source.meta()
        if facts.get(MOVED_TO) != destination.address:
            raise UsageError(f"{source.address} is not being moved to {destination.address}; nothing was changed")
        if made:
            with opened(destination), destination.transaction():
                if destination.meta().get(STORE_ID) == facts[STORE_ID]:
                    raise UsageError(
                        f"{source.address} was moved to {destination.address}, and that is finished; to come back, "
                        "copy that store to a new place"
                    )
                destination.drop_meta(RUN)  # Should one be under way, it does not finish.
        with source.transaction():
            source.thaw()
            source.drop_meta(MOVED_TO)
