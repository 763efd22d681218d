"""Several processes that write at the same time: no deadlock, nothing claimed twice or left, nothing half-seen."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from tests.support.stores import PostgresBackend
from tests.unit.store.builders import FLOW, NOW, Owner, message, new_session, request, text_message, worker
from tests.unit.store.postgres.conftest import OpenStore

from perdure.errors import LeaseLost, SessionAlreadyExists
from perdure.store.base import Change
from perdure.store.postgres import PostgresStore
from perdure.store.postgres.writer import MAX_NOTICE


async def test_groups_about_the_same_sessions_never_wait_in_a_circle(
    open_store: OpenStore, backend: PostgresBackend
) -> None:
    stores = [await open_store() for _ in range(3)]
    ids = [f"s{n}" for n in range(8)]
    for session_id in ids:
        await stores[0].create_session(new_session(session_id), None, request(), NOW)
    chance = random.Random(7)
    before = backend.server.run("SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'")
    sent: Counter[str] = Counter()
    for turn in range(15):
        orders = [chance.sample(ids, len(ids)) for _ in stores]
        await asyncio.gather(
            *(
                store.accept_message(session_id, f"{n}-{turn}", text_message(), request(), NOW)
                for n, (store, order) in enumerate(zip(stores, orders, strict=True))
                for session_id in order
            )
        )
        sent.update(session_id for order in orders for session_id in order)
    for session_id in ids:
        assert (await stores[0].read_snapshot(session_id, NOW)).queued_messages == sent[session_id]
    assert backend.server.run("SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'") == before


async def test_of_many_who_claim_each_session_has_one_owner_and_none_is_left(open_store: OpenStore) -> None:
    stores = [await open_store() for _ in range(3)]
    for n, store in enumerate(stores):
        await store.register_worker(worker(f"w{n}"), NOW)
    await asyncio.gather(
        *(
            stores[n % 3].create_session(new_session(f"s{n}"), (f"t{n}", text_message()), request(), NOW)
            for n in range(60)
        )
    )

    async def take(n: int) -> list[str]:
        """Claims as long as there is something, as a worker with room does."""
        taken: list[str] = []
        while claimed := await stores[n].claim(f"w{n}", [FLOW], 7, NOW):
            taken += [one.lease.session_id for one in claimed]
        return taken

    taken = await asyncio.gather(*(take(n) for n in range(3)))
    assert Counter(session_id for part in taken for session_id in part) == Counter(f"s{n}" for n in range(60))


async def test_a_session_is_made_once_by_many(open_store: OpenStore) -> None:
    stores = [await open_store() for _ in range(3)]
    for n in range(10):
        same = [store.create_session(new_session(f"s{n}"), ("t", text_message()), request(), NOW) for store in stores]
        assert await asyncio.gather(*same) == ["t"] * 3
        assert (await stores[0].read_snapshot(f"s{n}", NOW)).queued_messages == 1
        others = [
            store.create_session(new_session(f"o{n}"), None, request(None, str(k)), NOW)
            for k, store in enumerate(stores)
        ]
        results = await asyncio.gather(*others, return_exceptions=True)
        assert Counter(type(result) for result in results) == {type(None): 1, SessionAlreadyExists: 2}


async def test_nothing_is_claimed_for_a_worker_that_is_being_taken_out(open_store: OpenStore) -> None:
    """Whichever comes first: no session is owned by a worker that is not there."""
    ours, theirs = await open_store(), await open_store()
    await ours.register_worker(worker("alive"), NOW)
    for n in range(20):
        await theirs.register_worker(worker("dying"), NOW)
        await ours.create_session(new_session(f"s{n}"), (f"t{n}", text_message()), request(), NOW)
        claiming = theirs.claim("dying", [FLOW], 5, NOW)
        leaving = ours.reap_workers(NOW + 100_000)
        claimed, _ = await asyncio.gather(claiming, leaving, return_exceptions=True)
        assert isinstance(claimed, (tuple, LeaseLost)), claimed
        (found,) = await ours.claim("alive", [FLOW], 5, NOW)
        owner = Owner(ours, found)
        await owner.begin(f"t{n}")
        await owner.end(f"t{n}")


async def test_an_item_that_comes_while_its_owner_is_given_up_makes_the_session_due(open_store: OpenStore) -> None:
    ours, theirs = await open_store(), await open_store()
    await ours.register_worker(worker("alive"), NOW)
    for n in range(20):
        await theirs.register_worker(worker("dying"), NOW)
        await ours.create_session(new_session(f"s{n}"), (f"a{n}", text_message()), request(), NOW)
        (claimed,) = await theirs.claim("dying", [FLOW], 5, NOW)
        owner = Owner(theirs, claimed)
        await owner.begin(f"a{n}")
        await owner.end(f"a{n}", release=False)  # an idle session that its owner keeps
        await asyncio.gather(
            ours.reap_workers(NOW + 100_000),
            theirs.accept_message(f"s{n}", f"b{n}", text_message(), request(), NOW),
        )
        (found,) = await ours.claim("alive", [FLOW], 5, NOW)
        assert [item.turn_id for item in found.inbox] == [f"b{n}"]
        again = Owner(ours, found)
        await again.begin(f"b{n}", 2)
        await again.end(f"b{n}")


async def test_shared_state_is_written_by_all(open_store: OpenStore) -> None:
    stores = [await open_store() for _ in range(2)]
    owners: list[Owner] = []
    for n, store in enumerate(stores):
        await store.register_worker(worker(f"w{n}"), NOW)
        await store.create_session(new_session(f"s{n}"), ("t1", text_message()), request(), NOW)
        (claimed,) = await store.claim(f"w{n}", [FLOW], 1, NOW)
        owners.append(Owner(store, claimed))
        await owners[-1].begin()
    for turn in range(20):
        state = {f"app:k{n}": turn for n in range(4)}
        mixed = dict(reversed(state.items()))
        await asyncio.gather(
            *(
                owner.commit(turn_id="t1", messages=(message(turn, state=delta),))
                for owner, delta in zip(owners, (state, mixed), strict=True)
            )
        )
    assert (await stores[0].read_snapshot("s0", NOW)).state == {f"app:k{n}": 19 for n in range(4)}


# ---------------------------------------------------------------- wake-ups


def _heard_by(store: PostgresStore) -> asyncio.Queue[Change]:
    heard = asyncio.Queue[Change]()
    store.listen(heard.put_nowait)
    return heard


async def test_other_processes_hear_what_changed_and_ones_own_come_once(open_store: OpenStore) -> None:
    ours, theirs = await open_store(), await open_store()
    here, there = _heard_by(ours), _heard_by(theirs)
    await ours.create_session(new_session("a"), ("t", text_message()), request(), NOW)
    assert await asyncio.wait_for(there.get(), 10) == Change(frozenset({"a"}), work=True)
    await theirs.create_session(new_session("b"), None, request(), NOW)
    assert here.get_nowait() == Change(frozenset({"a"}), work=True)
    assert await asyncio.wait_for(here.get(), 10) == Change(frozenset({"b"}), work=False)
    assert here.empty()


@pytest.mark.parametrize("name", ["x" * (MAX_NOTICE // 2), "line\nbreak", "nul\0", "é" * 20], ids=len)
async def test_every_name_wakes_somebody(open_store: OpenStore, name: str) -> None:
    ours, theirs = await open_store(), await open_store()
    heard = _heard_by(theirs)
    if len(name) < 1000:
        await ours.create_session(new_session(name), None, request(), NOW)
    else:
        await asyncio.gather(
            *(ours.create_session(new_session(f"{n}{name[:1500]}"), None, request(), NOW) for n in range(8))
        )
    change = await asyncio.wait_for(heard.get(), 10)
    assert change.sessions is None or name in change.sessions or len(name) > 1000


async def test_a_store_of_another_schema_hears_nothing(open_store: OpenStore, new_backend: PostgresBackend) -> None:
    ours = await open_store()
    other = new_backend.new_store()
    await other.open()
    heard, control = _heard_by(other), _heard_by(await open_store())
    await ours.create_session(new_session(), None, request(), NOW)
    await asyncio.wait_for(control.get(), 10)
    assert heard.empty()
    await other.close()
