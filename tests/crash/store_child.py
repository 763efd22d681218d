"""A process of its own with one store open; driven by its standard input, one command per line, one answer per line.

    python -m tests.crash.store_child sqlite <database> <run dir>
    python -m tests.crash.store_child postgresql <address>

Commands: ``create <id>``, ``send <id> <turn>``, ``flood <id> <count>``, ``register <worker>``, ``claim <worker>``,
``begin <turn>``, ``log <text>`` (a message of the open turn), ``settle``, ``hear`` (waits for another process's write).
"""

from __future__ import annotations

import asyncio
import sys

from tests.support.stores import AT_ONCE
from tests.unit.store.builders import FLOW, NOW, Owner, message, new_session, request, text_message, worker

from perdure.errors import PerdureError
from perdure.faults import DurableWrite, arm_from_environment
from perdure.store.base import Change
from perdure.store.postgres import PostgresStore
from perdure.store.postgres import notices as postgres_notices
from perdure.store.sql.store import SqlStore
from perdure.store.sqlite import SqliteStore
from perdure.store.sqlite import notices as sqlite_notices

postgres_notices.SAFETY_POLL = sqlite_notices.SAFETY_POLL = 1000.0  # signals only


class Child:
    """Carries out commands."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._owner: Owner | None = None
        self._logged = 0
        self._heard = asyncio.Queue[Change]()
        store.listen(self._heard.put_nowait)

    async def run(self, command: str, *words: str) -> str:
        store = self._store
        match command, words:
            case "create", (session_id,):
                await store.create_session(new_session(session_id), None, request(), NOW)
            case "send", (session_id, turn_id):
                await store.accept_message(session_id, turn_id, text_message(), request(), NOW)
            case "flood", (session_id, count):
                for n in range(int(count)):
                    await store.accept_message(session_id, f"{session_id}-{n}", text_message(), request(), NOW)
                    say(f"{session_id}-{n}")
            case "register", (worker_id,):
                await store.register_worker(worker(worker_id), NOW)
            case "claim", (worker_id,):
                (claimed,) = await store.claim(worker_id, [FLOW], 1, NOW)
                self._owner = Owner(store, claimed)
                return str(claimed.lease.fence)
            case "begin", (turn_id,):
                await self._own().begin(turn_id)
            case "log", (text,):
                await self._own().commit(turn_id="t1", messages=(message(self._logged, text),))
                self._logged += 1
            case "settle", ():
                await self._own().commit(DurableWrite.STEP_SETTLED, turn_id="t1", messages=(message(0, "settled"),))
            case "hear", ():
                while not self._heard.empty():
                    self._heard.get_nowait()
                say("listening")
                change = await self._heard.get()
                return ",".join(sorted(change.sessions or ())) or "any"
            case _:
                raise ValueError(f"no command: {command} {words}")
        return "ok"

    def _own(self) -> Owner:
        assert self._owner is not None
        return self._owner


def say(line: str) -> None:
    print(line, flush=True)


def new_store(kind: str, place: str, *more: str) -> SqlStore:
    if kind == "sqlite":
        return SqliteStore(place, durability="process", run_dir=more[0])
    return PostgresStore(place, durability="process", leases=AT_ONCE)


async def main(*place: str) -> None:
    arm_from_environment()
    store = new_store(*place)
    await store.open()
    child = Child(store)
    say("open")
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        try:
            say(await child.run(*line.split()))
        except PerdureError as error:
            say(error.code)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
