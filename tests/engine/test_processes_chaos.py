"""Everything at once, from two client processes and on three workers that die, stand still and leave: at the end the
stored histories keep every rule."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections import defaultdict
from contextlib import AsyncExitStack, ExitStack, closing, suppress
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.session_rules import DELTAS, check_rules, read_stored
from tests.support.troupe import World, answer, until

from perdure import (
    AgentEvent,
    AgentSessionClient,
    AgentSnapshot,
    Conflict,
    NotFound,
    SessionNotFound,
    SessionStatus,
    StepRecord,
    TurnStatus,
    WorkerOptions,
)
from perdure.testing import WorkerChild

SESSIONS = [f"s{number}" for number in range(8)]
CALLS = 120
"""What each client does."""
BLOWS = 5
"""What happens to workers."""
LEASE = 0.5
WORDS = ("model", "read", "idem", "write", "par", "moody", "fail", "read:~", "write:~", "par:~", "model:~")
PLACES = [("local-sqlite", 1), ("local-sqlite", 2), ("local-sqlite", 3), ("temporal-sqlite", 4), ("temporal-sqlite", 5)]
WAITS = ("ask", "half", "quest", "leg", "late")


async def act(client: AgentSessionClient, world: World, chance: random.Random) -> None:
    """One call of a client; whatever is refused is refused for a reason."""
    session_id = chance.choice(SESSIONS)
    what = chance.choices(("send", "answer", "cancel", "cancel one", "close", "delete"), (50, 30, 10, 10, 1, 0.5))[0]
    with suppress(NotFound, Conflict):
        match what:
            case "send":
                text = " ".join(chance.choices((*WORDS, *WAITS), k=chance.randint(1, 4)))
                turn_id = await client.send_user_message(session_id, text)
                world.note(f"sent {session_id} {turn_id}")
            case "answer":
                for interrupt in (await client.get_agent_snapshot(session_id)).pending_interrupts:
                    approved = chance.random() < 0.7
                    await answer(client, interrupt, session_id, approved=approved)
            case "cancel":
                await client.cancel_turn(session_id)
            case "cancel one":
                sent = world.lines(f"sent {session_id} ") or ["sent - none"]
                await client.cancel_turn(session_id, turn_id=chance.choice(sent[-3:]).split()[2])
            case "close":
                await client.close_session(session_id)
            case _:
                await client.delete_session(session_id)


async def be_a_client(folder: str, seed: int) -> None:
    """The main function of the other client process."""
    world, chance = World(Path(folder)), random.Random(seed)
    async with world.engine() as engine:
        client = AgentSessionClient(engine, "Play")
        for _ in range(CALLS):
            await act(client, world, chance)
            await asyncio.sleep(chance.random() * 0.02)


class Witness:
    """Watches one session for as long as it is there: what it saw must still be true at the end."""

    def __init__(self, client: AgentSessionClient, session_id: str) -> None:
        self.client = client
        self.session_id = session_id
        self.events: list[AgentEvent] = []
        self.settled: dict[str, StepRecord] = {}

    @property
    def seen(self) -> list[str]:
        """Cursors of what must not be missed."""
        return [event.cursor for event in self.events if event.type not in DELTAS]

    async def watch(self) -> None:
        with suppress(SessionNotFound):
            async for event in self.client.stream_events(self.session_id):
                self.events.append(event)

    async def look(self) -> None:
        """J3: a settled step never changes."""
        for step in (await self.client.read_step_history(self.session_id, limit=1000)).items:
            if step.status.settled:
                assert self.settled.setdefault(step.step_id, step) == step


async def hire(world: World, stack: ExitStack) -> WorkerChild:
    worker = stack.enter_context(world.worker(lease=LEASE, grace=5))
    await worker.wait_for_async("ready")
    return worker


async def strike(world: World, workers: list[WorkerChild], place: int, chance: random.Random, stack: ExitStack) -> None:
    """Something happens to one of the worker processes; then there is one in its place."""
    blow = chance.choice(("kill", "leave", "stop"))
    if blow == "stop":
        workers[place].stop()
        await asyncio.sleep(LEASE * (0.5 + chance.random()))
        workers[place].resume()
        return
    if blow == "kill":
        workers[place].kill()
    else:
        workers[place].terminate()
        assert await workers[place].wait_exit_async() == 0
    workers[place] = await hire(world, stack)


async def bring_to_rest(client: AgentSessionClient, session_id: str) -> AgentSnapshot:
    """Answers whatever the session still asks."""
    while (snapshot := await client.wait(session_id, timeout=60)).status is SessionStatus.WAITING:
        for interrupt in snapshot.pending_interrupts:
            with suppress(Conflict):
                await answer(client, interrupt, session_id)
    return snapshot


@pytest.mark.parametrize(("world", "seed"), PLACES, indirect=["world"])
async def test_whatever_happens_the_rules_hold(world: World, seed: int) -> None:
    chance = random.Random(seed)
    flow = world.flow(deadline=timedelta(seconds=2))
    options = WorkerOptions(lease=timedelta(seconds=LEASE), linger=timedelta(seconds=0.1))
    async with AsyncExitStack() as stack:
        children = stack.enter_context(ExitStack())
        engine = await stack.enter_async_context(world.engine(flow, options=options))
        client = AgentSessionClient(engine, flow)
        for session_id in SESSIONS:
            await client.start_session(session_id)
        workers = [await hire(world, children) for _ in range(2)]
        other = children.enter_context(WorkerChild.of(be_a_client, str(world.folder), seed + 100))
        await stack.enter_async_context(engine.worker())
        witnesses = {session_id: Witness(client, session_id) for session_id in SESSIONS}
        watching = [asyncio.create_task(witness.watch()) for witness in witnesses.values()]

        async def strike_now_and_then() -> None:
            for _ in range(BLOWS):
                await asyncio.sleep(0.3)
                await strike(world, workers, chance.randrange(2), chance, children)

        striking = asyncio.create_task(strike_now_and_then())
        for number in range(CALLS):
            await act(client, world, chance)
            with suppress(SessionNotFound):
                await witnesses[SESSIONS[number % len(SESSIONS)]].look()
            await asyncio.sleep(chance.random() * 0.02)
        await striking
        assert await other.wait_exit_async() == 0

        alive = 0
        for witness in witnesses.values():
            with suppress(SessionNotFound):
                await check(client, world, witness)
                alive += 1
        assert alive
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
        for worker in workers:
            worker.terminate()
            assert await worker.wait_exit_async() == 0


async def check(client: AgentSessionClient, world: World, witness: Witness) -> None:
    session_id = witness.session_id
    snapshot = await bring_to_rest(client, session_id)
    if snapshot.status is not SessionStatus.CLOSED:
        # J7: whatever was cancelled and failed, it can be talked to.
        turn_id = await client.send_user_message(session_id, "model read")
        world.note(f"sent {session_id} {turn_id}")
        snapshot = await bring_to_rest(client, session_id)
        assert snapshot.turn is not None
        assert (snapshot.turn.turn_id, snapshot.turn.status) == (turn_id, TurnStatus.COMPLETED)
    await witness.look()
    stored = await read_stored(client, session_id)
    check_rules(stored, world)
    _check_order(world, session_id)
    # J11: a live reader saw all that is stored, in this order, whoever owned the session.
    told = [event.cursor for event in stored.events if event.type not in DELTAS]
    await until(lambda: len(witness.seen) >= len(told), "the reader to come to the end")
    assert witness.seen == told


def _check_order(world: World, session_id: str) -> None:
    """J1: each accepted message became one turn, those of one client in the order in which it sent them."""
    sent: dict[int, list[str]] = defaultdict(list)
    lines, doers = world.lines(f"sent {session_id} "), world.doers(f"sent {session_id} ")
    for line, doer in zip(lines, doers, strict=True):
        sent[doer].append(line.split()[2])
    with closing(sqlite3.connect(world.database)) as connection:
        rows = connection.execute(
            "SELECT turn_id, number, json_array_length(message, '$.answers') FROM turns "
            "JOIN sessions USING (session_key) WHERE session_id = ?",
            (session_id,),
        ).fetchall()
    numbers: dict[str, int | None] = {turn_id: number for turn_id, number, _ in rows}
    assert len(numbers) == len(rows)
    answers = {turn_id for turn_id, _, answers in rows if answers}
    assert numbers.keys() - answers == {turn_id for turn_ids in sent.values() for turn_id in turn_ids}
    for turn_ids in sent.values():
        begun = [number for turn_id in turn_ids if (number := numbers[turn_id]) is not None]
        assert begun == sorted(begun)
    every = sorted(number for number in numbers.values() if number is not None)
    assert every == list(range(1, len(every) + 1))
