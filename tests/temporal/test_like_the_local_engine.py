"""What an agent could tell the engines apart by, and does not."""

from __future__ import annotations

from tests.support.play import Play, PlayCall
from tests.temporal.conftest import Playhouse

from perdure import AgentSessionClient


async def test_parallel_calls_begin_in_the_order_in_which_they_were_asked_for(house: Playhouse) -> None:
    """Temporal hands activities out in any order, and what calls see of each other's state depends on it."""
    calls = [f"c{number}" for number in range(40)]
    begun: list[str] = []

    async def body(call_id: str, attempt: int) -> object:
        begun.append(call_id)
        return call_id

    async def script(play: Play) -> None:
        await play.tools("m", {call_id: PlayCall("look", body) for call_id in calls})

    flow = house.flow(script)
    async with house.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "hello")
        await client.wait("s", timeout=30)
    assert begun == calls
