"""State at any turn boundary: the session's own keys by turn, shared keys as they were when a turn began."""

from __future__ import annotations

from tests.unit.store.builders import NOW, claim, message, new_session, open_turn, request, text_message, worker

from perdure.store.sql.store import SqlStore


async def _turn(store: SqlStore, number: int, *states: dict[str, object], session_id: str = "s") -> None:
    await store.accept_message(session_id, f"t{number}", text_message(), request(), NOW)
    owner = await claim(store)
    await owner.begin(f"t{number}", number)
    await owner.end(f"t{number}", messages=tuple(message(n, state=dict(state)) for n, state in enumerate(states)))


async def test_each_turn_boundary_keeps_its_own_state(store: SqlStore) -> None:
    await store.register_worker(worker(), NOW)
    await store.create_session(new_session(state={"a": 0, "z": "kept"}), None, request(), NOW)
    await _turn(store, 1, {"a": 1}, {"a": 2, "b": [1]})
    await _turn(store, 2)
    await _turn(store, 3, {"a": None, "b": {"x": 1.5}})
    assert await store.read_turn_state("s", 1) == {"a": 0, "z": "kept"}
    assert await store.read_turn_state("s", 2) == {"a": 2, "b": [1], "z": "kept"}
    assert await store.read_turn_state("s", 3) == {"a": 2, "b": [1], "z": "kept"}
    assert await store.read_turn_state("s", 4) == {"a": None, "b": {"x": 1.5}, "z": "kept"}
    assert (await store.read_snapshot("s", NOW)).state == {"a": None, "b": {"x": 1.5}, "z": "kept"}


async def test_a_repeated_message_sets_no_state_again(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.commit(turn_id="t1", messages=(message(0, state={"k": 1}),))
    await owner.commit(turn_id="t1", messages=(message(1, state={"k": 2}),))
    await owner.commit(turn_id="t1", messages=(message(0, state={"k": 1, "app:x": 1}),))
    assert (await store.read_snapshot("s", NOW)).state == {"k": 2}


async def test_temp_keys_are_never_stored(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.commit(turn_id="t1", messages=(message(0, state={"temp:x": 1, "y": 2}),))
    assert (await store.read_snapshot("s", NOW)).state == {"y": 2}


async def test_shared_keys_reach_other_sessions_at_once(store: SqlStore) -> None:
    await store.create_session(new_session("other"), None, request(), NOW)
    await store.create_session(new_session("foreign-user", user_id="someone"), None, request(), NOW)
    await store.create_session(new_session("foreign-app", app_name="elsewhere"), None, request(), NOW)
    await store.create_session(new_session("starter", state={"app:motd": "hi"}), None, request(), NOW)
    await store.register_worker(worker(), NOW)
    await store.create_session(new_session(), ("t1", text_message()), request(), NOW)
    owner = await claim(store)
    await owner.begin()
    await owner.commit(turn_id="t1", messages=(message(0, state={"app:a": 1, "user:u": 2, "own": 3}),))

    async def state(session_id: str) -> dict[str, object]:
        return (await store.read_snapshot(session_id, NOW)).state

    assert await state("s") == {"own": 3, "app:motd": "hi", "app:a": 1, "user:u": 2}
    assert await state("other") == {"app:motd": "hi", "app:a": 1, "user:u": 2}
    assert await state("foreign-user") == {"app:motd": "hi", "app:a": 1}
    assert await state("foreign-app") == {}


async def test_a_turn_keeps_the_shared_keys_it_began_with(store: SqlStore) -> None:
    await store.register_worker(worker(), NOW)
    await store.create_session(new_session(state={"app:price": 10, "user:name": 'Ann "A"'}), None, request(), NOW)
    await _turn(store, 1)
    await store.create_session(new_session("other", state={"app:price": 20}), None, request(), NOW)
    await _turn(store, 2)
    name = {"user:name": 'Ann "A"'}
    assert await store.read_turn_state("s", 1) == {"app:price": 10, **name}
    assert await store.read_turn_state("s", 2) == {"app:price": 20, **name}
    await store.create_session(new_session("third", state={"app:price": 30}), None, request(), NOW)
    assert await store.read_turn_state("s", 2) == {"app:price": 20, **name}
    assert await store.read_turn_state("s", 3) == {"app:price": 30, **name}


async def test_a_turn_that_began_without_shared_keys_never_sees_any(store: SqlStore) -> None:
    await open_turn(store)
    await store.create_session(new_session("other", state={"app:late": 1}), None, request(), NOW)
    assert await store.read_turn_state("s", 1) == {}
