"""Workers that stand still (SIGSTOP) or are told to leave (SIGTERM), and servers that start again."""

from __future__ import annotations

from perdure.session.model import StepStatus
from perdure.session.runner import AgentSessionFlow
from perdure.testing.children import WorkerChild
from perdure.testing.conformance.case import case
from perdure.testing.conformance.checks import holds, same
from perdure.testing.conformance.stage import Stage
from perdure.testing.conformance.world import ASKED, ONCE, READ, World
from perdure.testing.replies import call, reply, text
from perdure.testing.script import by_message

SHORT_LEASE = 3.0
"""Seconds, for a worker that is to be given up although it may still live."""


def deeds(world: World) -> AgentSessionFlow:
    """A write, a write and then a read, or a write beside one that is asked for; they stop in the middle."""

    async def once() -> str:
        """Writes."""
        world.note("begin once")
        try:
            await world.stop_at("during once")
        finally:
            world.note("end once")
        return "written"

    async def read() -> str:
        """Reads."""
        world.note("begin read")
        await world.stop_at("during read")
        return "read"

    def pay() -> str:
        """Pays."""
        world.note("pay")
        return "paid"

    script = by_message(
        {
            "write": [call("once"), text("Written.")],
            "then": [call("once"), call("read"), text("Done.")],
            "beside": [reply(call("once"), call("pay")), text("Paid.")],
        },
        otherwise=text("Yes?"),
    )
    return world.flow(world.agent(script, [once, read, pay]), {"once": ONCE, "read": READ, "pay": ASKED})


@case(
    "workers/stopped",
    "A worker that stood still and wakes up when another has its session writes nothing.",
    deeds,
    served=False,
)
async def stopped(stage: Stage) -> None:
    with stage.process(lease=SHORT_LEASE) as worker:
        await stage.up(worker)
        await stage.start("write")
        await stage.reached("during once")
        worker.stop()
        async with stage.worker():
            await stage.completed()
            before = (await stage.steps(), await stage.messages())
            same("the outcome", (await stage.calls())["once"].status, StepStatus.OUTCOME_UNKNOWN)
            _wake_up(stage, worker)
            worker.terminate()
            await worker.wait_exit_async()  # It has done by now whatever it still wanted to do.
            same("steps", await stage.steps(), before[0])
            same("messages", await stage.messages(), before[1])
    same("the ledger", stage.world.ledger, ["begin once", "end once"])


def _wake_up(stage: Stage, worker: WorkerChild) -> None:
    stage.world.open("during once")
    worker.resume()


@case(
    "workers/stopped-in-the-middle",
    "It writes nothing either while the other is in the middle of the turn, and does not go on with it.",
    deeds,
    served=False,
)
async def stopped_in_the_middle(stage: Stage) -> None:
    with stage.process(lease=SHORT_LEASE) as worker:
        await stage.up(worker)
        await stage.start("then")
        await stage.reached("during once")
        worker.stop()
        async with stage.worker():
            await stage.reached("during read")
            _wake_up(stage, worker)
            await stage.noted("end once")
            await stage.start("hello", "other")
            for _ in range(4):  # By then it has gone on, if it can.
                await stage.completed("other")
                await stage.send("hello", "other")
            for tool in ("once", "read"):
                same(f"{tool}, begun", stage.world.ledger.count(f"begin {tool}"), 1)
            stage.world.open("during read")
            await stage.completed()
    same("the write", (await stage.calls())["once"].status, StepStatus.OUTCOME_UNKNOWN)
    stage.leave_out("other")


@case(
    "workers/leaving",
    "A worker that is told to leave lets its calls finish, and another goes on.",
    deeds,
    served=False,
)
async def leaving(stage: Stage) -> None:
    with stage.process() as worker:
        await stage.up(worker)
        await stage.start("beside")
        await stage.reached("during once")
        worker.terminate()
        stage.world.open("during once")
        same("it ended well", await worker.wait_exit_async(), 0)
    step = (await stage.calls())["once"]
    same("the write", (step.status, step.attempts), (StepStatus.SUCCEEDED, 1))
    (asked,) = await stage.asked()
    await stage.decide(asked, True)
    async with stage.worker():
        await stage.completed()
    same("the ledger", stage.world.ledger, ["begin once", "end once", "pay"])


@case(
    "workers/servers-restart", "Servers that start again find everything as it was.", deeds, served=False, restarts=True
)
async def servers_restart(stage: Stage) -> None:
    restart = stage.target.restart_services
    holds("the target can restart its servers", restart is not None)
    with stage.process() as worker:
        await stage.up(worker)
        await stage.start("write")
        await stage.reached("during once")
        if restart is not None:
            await restart()
        stage.world.open("during once")
        await stage.completed()
        step = (await stage.calls())["once"]
        same("the write", (step.status, step.attempts), (StepStatus.SUCCEEDED, 1))
        await stage.send("hello")
        same("it is usable", (await stage.completed()).number, 2)


@case(
    "workers/everything-restarts",
    "What waits for a person outlives its worker, all clients and the servers.",
    deeds,
    served=False,
    restarts=True,
)
async def everything_restarts(stage: Stage) -> None:
    restart = stage.target.restart_services
    holds("the target can restart its servers", restart is not None)
    with stage.process() as worker:
        await stage.up(worker)
        stage.world.open("during once")
        await stage.start("beside")
        await stage.settled("once")
        await stage.asked()
        worker.kill()
    if restart is not None:
        await restart()
    async with stage.elsewhere() as other:
        (asked,) = (await other.get_agent_snapshot(stage.session())).pending_interrupts
        await other.resolve_interrupt(stage.session(), asked.interrupt_id, approved=True)
    with stage.process() as worker:
        await stage.up(worker)
        await stage.completed()
    same("the ledger", stage.world.ledger, ["begin once", "end once", "pay"])
