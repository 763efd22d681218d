"""Messages that come while a turn runs: queued, handled once and in order."""

from __future__ import annotations

import asyncio

from google.adk.tools.tool_context import ToolContext

from perdure.errors import TurnNotFound
from perdure.session.model import AgentEventType, SessionStatus, TurnStatus
from perdure.session.runner import AgentSessionFlow
from perdure.testing.conformance.case import case
from perdure.testing.conformance.checks import holds, refused, same
from perdure.testing.conformance.stage import Stage, turn_of
from perdure.testing.conformance.world import ASKED, READ, World
from perdure.testing.replies import call, text
from perdure.testing.script import by_message


def counter(world: World) -> AgentSessionFlow:
    """Counts what it is told to; the first turn stops in the middle."""

    async def count(tool_context: ToolContext) -> int:
        """Counts: whoever counts at the same time is lost."""
        seen: int = tool_context.state.get("n", 0)
        world.note("count", seen + 1)
        await world.stop_at("counting")
        tool_context.state["n"] = seen + 1
        return seen + 1

    return world.flow(world.agent([call("count"), text("Counted.")], [count]), {"count": READ})


def payer(world: World) -> AgentSessionFlow:
    """Waits for approval when it is to pay, else answers."""

    def pay() -> str:
        """Pays."""
        world.note("pay")
        return "paid"

    script = by_message({"pay": [call("pay"), text("Done.")]}, otherwise=text("Understood."))
    return world.flow(world.agent(script, [pay]), {"pay": ASKED})


async def _turn_numbers(stage: Stage, count: int, name: str = "s") -> list[str]:
    """The ids of the turns in the order in which they ran."""
    after, turns = None, list[str]()
    for _ in range(count):
        seen = await stage.events_until(
            AgentEventType.TURN_COMPLETED, AgentEventType.TURN_CANCELLED, name=name, after=after
        )
        after = seen[-1].cursor
        turns.append(seen[-1].turn_id or "")
    return turns


@case("queues/first-in-first-out", "Messages that come while a turn runs wait, and have their turns in order.", counter)
async def first_in_first_out(stage: Stage) -> None:
    turns = [await stage.start("one")]
    await stage.reached("counting")
    turns += [await stage.send(words) for words in ("two", "three", "four")]
    snapshot = await stage.client.get_agent_snapshot(stage.session())
    same("meanwhile", (snapshot.status, snapshot.queued_messages), (SessionStatus.RUNNING, 3))
    stage.world.open("counting")
    snapshot = await stage.idle()
    same("counted", snapshot.state["n"], 4)
    same("the turns", await _turn_numbers(stage, 4), turns)
    said = [message.text for message in await stage.messages() if message.author == "user" and message.text]
    same("the words", said, ["one", "two", "three", "four"])


@case("queues/repeats", "A message that is sent twice under one request id is queued once.", counter)
async def repeats(stage: Stage) -> None:
    await stage.start("one")
    await stage.reached("counting")
    second = await stage.send("two", request_id="m2")
    same("the repeat", await asyncio.gather(*(stage.send("two", request_id="m2") for _ in range(5))), [second] * 5)
    same("queued", (await stage.client.get_agent_snapshot(stage.session())).queued_messages, 1)
    stage.world.open("counting")
    same("counted", (await stage.idle()).state["n"], 2)


@case(
    "queues/two-clients",
    "Two clients at once: every message has a turn of its own, and those of each are in order.",
    counter,
)
async def two_clients(stage: Stage) -> None:
    stage.world.open("counting")
    await stage.start(None, "both")
    stage.leave_out("both")
    session_id = stage.session("both")
    async with stage.elsewhere() as other:

        async def send(whose: str) -> list[str]:
            client = stage.client if whose == "ours" else other
            return [await client.send_user_message(session_id, f"{whose} {number}") for number in range(4)]

        ours, theirs = await asyncio.gather(send("ours"), send("theirs"))
        snapshot = await stage.idle("both")
    same("counted", snapshot.state["n"], 8)
    messages = await stage.messages("both")
    said = [(m.text, m.turn_id) for m in messages if m.author == "user" and m.text]
    for whose, turns in (("ours", ours), ("theirs", theirs)):
        found = [pair for pair in said if pair[0].startswith(whose)]
        same(f"{whose}, in order", found, [(f"{whose} {number}", turn) for number, turn in enumerate(turns)])
    same("no turn mixes in", [m.turn_id for m in messages], [turn for _, turn in said for _ in range(4)])


@case("queues/behind-a-wait", "Messages wait behind a turn that waits for a person, too.", payer)
async def behind_a_wait(stage: Stage) -> None:
    await stage.start("pay")
    (asked,) = await stage.asked()
    await stage.send("hello")
    snapshot = await stage.client.get_agent_snapshot(stage.session())
    same("meanwhile", (snapshot.status, snapshot.queued_messages), (SessionStatus.WAITING, 1))
    await stage.decide(asked, True)
    snapshot = await stage.idle()
    same("turns", turn_of(snapshot).number, 2)
    same("texts", await stage.texts(), ["pay", "Done.", "hello", "Understood."])


@case("queues/cancelled", "A queued message can be cancelled before its turn begins; the others stay.", counter)
async def cancelled(stage: Stage) -> None:
    await stage.start("one")
    await stage.reached("counting")
    second, third = await stage.send("two"), await stage.send("three")
    await stage.client.cancel_turn(stage.session(), turn_id=second)
    await stage.queued(1)
    stage.world.open("counting")
    snapshot = await stage.idle()
    same("the last turn", turn_of(snapshot).turn_id, third)
    same("counted", snapshot.state["n"], 2)
    holds("it never began", second not in {message.turn_id for message in await stage.messages()})
    with refused(TurnNotFound):
        await stage.client.cancel_turn(stage.session(), turn_id="e-nothing")


@case(
    "queues/while-nobody-works",
    "What is accepted while no worker is up is handled when one comes.",
    payer,
    served=False,
)
async def while_nobody_works(stage: Stage) -> None:
    await stage.start("one")
    await stage.send("two")
    await stage.send("three")
    snapshot = await stage.client.get_agent_snapshot(stage.session())
    same("nobody serves it", (snapshot.served, snapshot.status), (False, SessionStatus.RUNNING))
    async with stage.worker():
        snapshot = await stage.idle()
        same("turns", (turn_of(snapshot).number, turn_of(snapshot).status), (3, TurnStatus.COMPLETED))
