"""What is told to a running turn: seen once, at its next model call or in a turn of its own."""

from __future__ import annotations

import asyncio

from google.adk.tools.tool_context import ToolContext

from perdure.errors import TurnNotFound
from perdure.session.model import SessionStatus, TurnStatus
from perdure.session.runner import AgentSessionFlow
from perdure.testing.conformance.case import case
from perdure.testing.conformance.checks import refused, same
from perdure.testing.conformance.stage import Stage, turn_of
from perdure.testing.conformance.world import ASKED, READ, World
from perdure.testing.replies import call, text
from perdure.testing.script import by_message

TOLD = "rather the blue one"


def searcher(world: World) -> AgentSessionFlow:
    """Searches once more when it is told to; the searches, a payment and a last word stop in the middle."""

    async def search(what: str) -> str:
        """Searches."""
        world.note("search", what)
        await world.stop_at(f"search {what}")
        return f"found {what}"

    async def last(tool_context: ToolContext) -> str:
        """Has the last word: no model is called any more."""
        tool_context.actions.skip_summarization = True
        await world.stop_at("last")
        return "the end"

    def pay() -> str:
        """Pays."""
        world.note("pay")
        return "paid"

    script = by_message(
        {
            TOLD: [call("search", what="blue"), text("Blue.")],
            "search": [call("search", what="any"), text("Any.")],
            "last": [call("last")],
            "pay": [call("pay"), text("Paid.")],
        },
        otherwise=text("Yes."),
    )
    return world.flow(world.agent(script, [search, last, pay]), {"search": READ, "last": READ, "pay": ASKED})


@case("steering/joins", "A running turn sees what it is told at its next model call, and goes on with it.", searcher)
async def joins(stage: Stage) -> None:
    turn_id = await stage.start("search")
    await stage.reached("search any")
    await stage.steer(TOLD)
    same("meanwhile", (await stage.client.get_agent_snapshot(stage.session())).queued_messages, 1)
    stage.world.open("search any")
    await stage.reached("search blue")
    same("then", (await stage.client.get_agent_snapshot(stage.session())).queued_messages, 0)
    stage.world.open("search blue")
    turn = await stage.completed()
    same("the turn", (turn.turn_id, turn.number), (turn_id, 1))
    messages = await stage.messages()
    same("the texts", [m.text for m in messages if m.text], ["search", TOLD, "Blue."])
    same("all in one turn", {message.turn_id for message in messages}, {turn_id})


@case("steering/repeats", "What is told several times under one request id is told once.", searcher)
async def repeats(stage: Stage) -> None:
    await stage.start("search")
    await stage.reached("search any")
    told = await asyncio.gather(*(stage.steer(TOLD, request_id="r1") for _ in range(4)))
    same("its id", len(set(told)), 1)
    stage.world.open("search any")
    await stage.reached("search blue")
    same("the repeat", await stage.steer(TOLD, request_id="r1"), told[0])
    stage.world.open("search blue")
    await stage.completed()
    same("the texts", [m.text for m in await stage.messages() if m.author == "user" and m.text], ["search", TOLD])


@case("steering/overtakes", "It does not wait behind messages that have turns of their own.", searcher)
async def overtakes(stage: Stage) -> None:
    await stage.start("search")
    await stage.reached("search any")
    await stage.send("hello")
    await stage.steer(TOLD)
    stage.world.open("search any")
    stage.world.open("search blue")
    snapshot = await stage.idle()
    same("turns", turn_of(snapshot).number, 2)
    same("the texts", [text for text in await stage.texts() if text], ["search", TOLD, "Blue.", "hello", "Yes."])


@case("steering/too-late", "If the turn ends without another model call, it starts a turn of its own.", searcher)
async def too_late(stage: Stage) -> None:
    await stage.start("last")
    await stage.reached("last")
    told = await stage.steer("hello")
    stage.world.open("last")
    snapshot = await stage.idle()
    same("the turn", (turn_of(snapshot).turn_id, turn_of(snapshot).number), (told, 2))
    same("said", (await stage.texts())[-2:], ["hello", "Yes."])


@case("steering/at-rest", "A session at rest takes it as any other message.", searcher)
async def at_rest(stage: Stage) -> None:
    await stage.start(None)
    told = await stage.steer("hello")
    snapshot = await stage.idle()
    same("the turn", (turn_of(snapshot).turn_id, turn_of(snapshot).status), (told, TurnStatus.COMPLETED))


@case("steering/while-it-waits", "A turn that waits for a person sees it when it goes on.", searcher)
async def while_it_waits(stage: Stage) -> None:
    stage.world.open("search blue")
    await stage.start("pay")
    (asked,) = await stage.asked()
    await stage.steer(TOLD)
    snapshot = await stage.client.get_agent_snapshot(stage.session())
    same("meanwhile", (snapshot.status, snapshot.queued_messages), (SessionStatus.WAITING, 1))
    await stage.decide(asked, True)
    turn = await stage.completed()
    same("the turn", turn.number, 1)
    same("the ledger", stage.world.ledger, ["pay", "search blue"])


@case("steering/cancelled", "Until it is seen it can be cancelled; a turn that is cancelled has not seen it.", searcher)
async def cancelled(stage: Stage) -> None:
    turn_id = await stage.start("search")
    await stage.reached("search any")
    dropped, kept = await stage.steer("never"), await stage.steer("hello")
    await stage.client.cancel_turn(stage.session(), turn_id=dropped)
    await stage.queued(1)
    await stage.client.cancel_turn(stage.session(), turn_id=turn_id)
    snapshot = await stage.idle()
    same("the turn", (turn_of(snapshot).turn_id, turn_of(snapshot).number), (kept, 2))
    with refused(TurnNotFound):
        await stage.client.cancel_turn(stage.session(), turn_id=dropped)


@case("steering/cancelled-when-seen", "A turn that saw it and is cancelled leaves it in the history.", searcher)
async def cancelled_when_seen(stage: Stage) -> None:
    turn_id = await stage.start("search")
    await stage.reached("search any")
    told = await stage.steer(TOLD)
    stage.world.open("search any")
    await stage.reached("search blue")
    with refused(TurnNotFound):
        await stage.client.cancel_turn(stage.session(), turn_id=told)
    await stage.client.cancel_turn(stage.session(), turn_id=turn_id)
    snapshot = await stage.idle()
    same("the turn", (turn_of(snapshot).number, turn_of(snapshot).status), (1, TurnStatus.CANCELLED))
    same("its words", [text for text in await stage.texts() if text][:2], ["search", TOLD])


@case(
    "steering/worker-dies",
    "A worker that dies behind the model call takes nothing back: the next one repeats what was seen, where it was.",
    searcher,
    served=False,
)
async def worker_dies(stage: Stage) -> None:
    with stage.process() as doomed:
        await stage.up(doomed)
        await stage.start("search")
        await stage.reached("search any")
        await stage.steer(TOLD)
        await stage.heard()
        stage.world.open("search any")
        await stage.reached("search blue")
        await stage.charged(2)
        doomed.kill()
    async with stage.worker():
        stage.world.open("search blue")
        await stage.completed()
    same("the texts", [text for text in await stage.texts() if text], ["search", TOLD, "Blue."])
    same("the ledger", stage.world.ledger, ["search any", "search blue", "search blue"])


@case(
    "steering/nobody-works", "What is told while no worker is up reaches the turn that goes on.", searcher, served=False
)
async def nobody_works(stage: Stage) -> None:
    with stage.process() as doomed:
        await stage.up(doomed)
        await stage.start("search")
        await stage.reached("search any")
        doomed.kill()
    await stage.steer(TOLD)
    stage.world.open("search any")
    stage.world.open("search blue")
    async with stage.worker():
        turn = await stage.completed()
    same("the turn", turn.number, 1)
    same("the texts", [text for text in await stage.texts() if text], ["search", TOLD, "Blue."])
