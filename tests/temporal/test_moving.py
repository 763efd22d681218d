"""A store is served by one engine, then by the other: what is open goes on, because all of it is in the store."""

from __future__ import annotations

from tests.support.session_rules import check_rules, read_stored
from tests.support.troupe import TEMPORAL, World, answer

from perdure import AgentSessionClient, SessionStatus

WORDS = "model write ask model"


async def test_open_sessions_move_from_the_local_engine_to_temporal_and_back(world: World) -> None:
    flow = world.flow()
    address = world.folder / TEMPORAL
    on_temporal = address.read_text()
    address.unlink()
    async with world.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", f"{WORDS} ask")
        await client.wait("s", timeout=30)
    address.write_text(on_temporal)
    async with world.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        (asked,) = (await client.get_agent_snapshot("s")).pending_interrupts
        await answer(client, asked, "s")
        (again,) = (await client.wait("s", timeout=30)).pending_interrupts
        assert again.interrupt_id != asked.interrupt_id
    address.unlink()
    async with world.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await answer(client, again, "s")
        await client.send_user_message("s", "model")
        assert (await client.wait("s", timeout=30)).status is SessionStatus.IDLE
        check_rules(await read_stored(client, "s"), world)
    assert world.lines("begin s c1.1") == ["begin s c1.1 write 1"], "nothing ran twice on the way"


async def test_what_temporal_was_never_told_of_is_found_by_its_first_worker(world: World) -> None:
    flow = world.flow()
    address = world.folder / TEMPORAL
    on_temporal = address.read_text()
    address.unlink()
    async with world.engine(flow) as engine:
        await AgentSessionClient(engine, flow).start_session("s", WORDS)  # and nobody works
    address.write_text(on_temporal)
    async with world.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        assert (await client.wait("s", timeout=30)).status is SessionStatus.WAITING
