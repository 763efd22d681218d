"""Field case 6: two messages at once on one session, in one process and in two."""

from __future__ import annotations

import asyncio
from pathlib import Path

from google.adk.tools.tool_context import ToolContext
from tests.field.support import PATIENCE, READ, SESSION, Field, conversation, messages_of, until

from perdure import AgentSessionFlow, SessionStatus
from perdure.testing import WorkerChild, call, text

TURN = ["user: {}", "assistant: count", "tool: count", "assistant: Counted."]


def counting(field: Field) -> AgentSessionFlow:
    async def count(tool_context: ToolContext) -> int:
        """Reads, rests, and writes: whoever runs at the same time is not counted."""
        seen: int = tool_context.state.get("n", 0)
        await asyncio.sleep(0.05)
        tool_context.state["n"] = seen + 1
        return seen + 1

    return field.flow([call("count"), text("Counted.")], [count], {"count": READ})


async def test_of_two_messages_at_once_one_waits_for_the_others_turn(field: Field) -> None:
    """Case 6a.  Plain ADK in memory interleaves both turns and counts to 1; on SQLite one message stays unanswered."""
    async with field.working(counting(field)) as client:
        await client.start_session(SESSION)
        turn_ids = await asyncio.gather(
            client.send_user_message(SESSION, "m1"), client.send_user_message(SESSION, "m2")
        )
        snapshot = await client.wait(SESSION, timeout=PATIENCE)
        assert snapshot.state["n"] == 2
        assert await conversation(client) == [line.format(m) for m in ("m1", "m2") for line in TURN]
        assert [m.turn_id for m in await messages_of(client)] == [turn_id for turn_id in turn_ids for _ in TURN]


async def send_at_the_signal(folder: str) -> None:
    """The other process: it works, too, and sends its message when the file ``go`` is there."""
    field = Field(Path(folder))
    async with field.working(counting(field)) as client:
        print("ready", flush=True)

        async def told() -> bool:
            return (field.folder / "go").exists()

        await until(told)
        for number in range(5):
            await client.send_user_message(SESSION, f"theirs {number}")
        print("sent", flush=True)
        await asyncio.Event().wait()


async def test_messages_of_two_processes_are_handled_one_after_the_other(field: Field) -> None:
    """Case 6b.  Two workers, two senders, one session: each accepted message has its turn, and no turn mixes in."""
    async with field.working(counting(field)) as client:
        await client.start_session(SESSION)
        with WorkerChild.of(send_at_the_signal, str(field.folder)) as child:
            await child.wait_for_async("ready")
            (field.folder / "go").touch()
            for number in range(5):
                await client.send_user_message(SESSION, f"ours {number}")
            await child.wait_for_async("sent")
            snapshot = await client.wait(SESSION, timeout=PATIENCE)
        assert (snapshot.status, snapshot.state["n"]) == (SessionStatus.IDLE, 10)
        lines = await conversation(client)
        said = [line.removeprefix("user: ") for line in lines[::4]]
        assert lines == [line.format(m) for m in said for line in TURN], "no turn mixes with another"
        for whose in ("ours", "theirs"):
            assert [m for m in said if m.startswith(whose)] == [f"{whose} {number}" for number in range(5)]
        assert len({message.turn_id for message in await messages_of(client)}) == 10
