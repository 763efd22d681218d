"""Cancelling: what runs stops or is told of as unknown, what waits is withdrawn, and the session stays usable."""

# ADK would rather see a Workflow; perdure runs these shapes as long as ADK has them.
# pyright: reportDeprecated=false

from __future__ import annotations

import asyncio

from google.adk.agents import ParallelAgent, SequentialAgent
from google.adk.tools.agent_tool import AgentTool

from perdure.errors import TurnNotFound
from perdure.session.model import SessionStatus, StepStatus, TurnStatus
from perdure.session.runner import AgentSessionFlow
from perdure.testing.conformance.case import case
from perdure.testing.conformance.checks import holds, refused, same
from perdure.testing.conformance.stage import Stage, turn_of
from perdure.testing.conformance.world import ASKED, ONCE, READ, World
from perdure.testing.replies import call, text
from perdure.testing.script import by_message


def busy(world: World) -> AgentSessionFlow:
    """Reads or writes for as long as it is let."""

    async def read() -> str:
        """Reads."""
        return await _work(world, "read")

    async def write() -> str:
        """Writes."""
        return await _work(world, "write")

    def pay() -> str:
        """Pays."""
        world.note("pay")
        return "paid"

    script = by_message(
        {
            "read": [call("read"), text("Read.")],
            "write": [call("write"), text("Written.")],
            "pay": [call("pay"), text("Paid.")],
        },
        otherwise=text("Yes?"),
    )
    return world.flow(world.agent(script, [read, write, pay]), {"read": READ, "write": ONCE, "pay": ASKED})


async def _work(world: World, what: str) -> str:
    world.note(what)
    try:
        await world.stop_at(what)
    except asyncio.CancelledError:
        world.note(what, "was told to stop")
        raise
    world.note(what, "ended")
    return f"{what} done"


async def _cancelled(stage: Stage, turn_id: str | None) -> None:
    turn = turn_of(await stage.idle())
    same("the turn", (turn.turn_id, turn.status), (turn_id, TurnStatus.CANCELLED))


@case("cancel/running-read", "A read that runs is told to stop, and the session is usable.", busy)
async def running_read(stage: Stage) -> None:
    turn_id = await stage.start("read")
    await stage.reached("read")
    await stage.client.cancel_turn(stage.session())
    await _cancelled(stage, turn_id)
    await stage.noted("read was told to stop")
    await stage.send("hello")
    await stage.completed()


@case(
    "cancel/running-write", "A write that runs may have happened: its outcome is unknown, and the model is told.", busy
)
async def running_write(stage: Stage) -> None:
    turn_id = await stage.start("write")
    await stage.reached("write")
    await stage.client.cancel_turn(stage.session())
    await _cancelled(stage, turn_id)
    same("the write", (await stage.calls())["write"].status, StepStatus.OUTCOME_UNKNOWN)
    await stage.noted("write was told to stop")
    await stage.send("and now?")
    await stage.idle()
    holds("the model is told", any("unknown" in str(part) for part in stage.world.requests[-1].contents))


@case("cancel/waiting", "A turn that waits for a person is cancelled; what it asked is withdrawn.", busy)
async def waiting(stage: Stage) -> None:
    turn_id = await stage.start("pay")
    await stage.asked()
    await stage.client.cancel_turn(stage.session())
    await _cancelled(stage, turn_id)
    same("nothing is asked", (await stage.idle()).pending_interrupts, ())
    same("nothing is paid", stage.world.ledger, [])


@case("cancel/that-turn", "With a turn's id only that turn is cancelled; one that has ended is not found.", busy)
async def that_turn(stage: Stage) -> None:
    first = await stage.start("hello")
    await stage.idle()
    second = await stage.send("read")
    await stage.reached("read")
    with refused(TurnNotFound):
        await stage.client.cancel_turn(stage.session(), turn_id=first)
    await stage.client.cancel_turn(stage.session(), turn_id=second, request_id="c1")
    await stage.client.cancel_turn(stage.session(), turn_id=second, request_id="c1")
    await _cancelled(stage, second)
    await stage.noted("read was told to stop")


@case("cancel/nothing", "Where nothing is open, cancelling does nothing.", busy)
async def nothing(stage: Stage) -> None:
    await stage.start("hello")
    await stage.idle()
    await stage.client.cancel_turn(stage.session())
    await stage.send("hello")
    await stage.completed()


@case("cancel/queue-goes-on", "What was queued behind a cancelled turn has its turn.", busy)
async def queue_goes_on(stage: Stage) -> None:
    await stage.start("read")
    await stage.reached("read")
    await stage.send("hello")
    await stage.client.cancel_turn(stage.session())
    snapshot = await stage.idle()
    same("turns", (turn_of(snapshot).number, turn_of(snapshot).status), (2, TurnStatus.COMPLETED))
    await stage.noted("read was told to stop")


@case("cancel/closing-while-running", "Closing a session cancels its turn; queued messages never begin.", busy)
async def closing_while_running(stage: Stage) -> None:
    turn_id = await stage.start("write")
    await stage.reached("write")
    await stage.send("hello")
    await stage.client.close_session(stage.session())
    snapshot = await stage.rest(SessionStatus.CLOSED)
    same("the turn", (turn_of(snapshot).turn_id, turn_of(snapshot).status), (turn_id, TurnStatus.CANCELLED))
    same("the write", (await stage.calls())["write"].status, StepStatus.OUTCOME_UNKNOWN)
    await stage.noted("write was told to stop")


@case("cancel/in-another-process", "A cancel reaches a tool that runs in another process.", busy, served=False)
async def in_another_process(stage: Stage) -> None:
    with stage.process() as worker:
        await stage.up(worker)
        turn_id = await stage.start("write")
        await stage.reached("write")
        await stage.client.cancel_turn(stage.session())
        await _cancelled(stage, turn_id)
        await stage.noted("write was told to stop")


@case(
    "cancel/while-nobody-works",
    "A cancel that is sent while no worker is up is carried out by the next one.",
    busy,
    served=False,
)
async def while_nobody_works(stage: Stage) -> None:
    with stage.process() as doomed:
        await stage.up(doomed)
        turn_id = await stage.start("write")
        await stage.reached("write")
        doomed.kill()
    await stage.client.cancel_turn(stage.session())
    async with stage.worker():
        await _cancelled(stage, turn_id)
    same("the write", (await stage.calls())["write"].status, StepStatus.OUTCOME_UNKNOWN)
    same("it ran once", stage.world.ledger, ["write"])


def deep(world: World) -> AgentSessionFlow:
    """Agents inside agents: one works, one waits for a person."""

    async def write() -> str:
        """Writes."""
        return await _work(world, "write")

    def pay() -> str:
        """Pays."""
        world.note("pay")
        return "paid"

    helper = world.agent([call("write"), text("Never.")], [write], name="helper", description="Helps.")
    line = SequentialAgent(name="line", sub_agents=[helper], description="A line.")
    boss = world.agent(
        by_message({"go": [call("line", request="x"), text("Never.")]}, otherwise=text("Boss again.")),
        [AgentTool(line)],
        name="boss",
    )
    payer = world.agent(
        by_message({"go": [call("pay"), text("Never.")]}, otherwise=text("Payer again.")), [pay], name="payer"
    )
    return world.flow(ParallelAgent(name="both", sub_agents=[boss, payer]), {"write": ONCE, "pay": ASKED})


@case(
    "cancel/nested", "A cancel reaches agents inside agents, those that work and those that wait.", deep, ordered=False
)
async def nested(stage: Stage) -> None:
    turn_id = await stage.start()
    await stage.reached("write")
    await stage.step_named("AwaitToolApproval")
    await stage.client.cancel_turn(stage.session())
    await _cancelled(stage, turn_id)
    same("the write", (await stage.calls())["write"].status, StepStatus.OUTCOME_UNKNOWN)
    await stage.noted("write was told to stop")
    await stage.send("and now?")
    await stage.completed()
    same("nothing is paid", "pay" in stage.world.ledger, False)
