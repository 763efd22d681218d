"""Frontiers: everything that a turn waits for at one time, answered one by one or all at once."""

# ADK would rather see a Workflow; perdure runs these shapes as long as ADK has them.
# pyright: reportDeprecated=false

from __future__ import annotations

from google.adk.agents import ParallelAgent
from google.adk.tools.long_running_tool import LongRunningFunctionTool

from perdure.errors import InterruptAlreadyResolved, InterruptNotFound, UsageError
from perdure.session.model import (
    Interrupt,
    InterruptStatus,
    JsonObject,
)
from perdure.session.runner import AgentSessionFlow
from perdure.testing.conformance.case import case
from perdure.testing.conformance.checks import holds, refused, same
from perdure.testing.conformance.stage import Stage
from perdure.testing.conformance.world import ASKED, READ, World
from perdure.testing.replies import call, reply, text


def mixed(world: World) -> AgentSessionFlow:
    """Two agents side by side: one asks for an approval, the other for two results from outside."""

    def pay(amount: int) -> str:
        """Pays."""
        world.note("pay", amount)
        return "paid"

    def render(what: str) -> None:
        """Renders; the result comes later."""
        world.note("render", what)

    teller = world.agent([call("pay", amount=5), text("Done.")], [pay], name="teller")
    both = reply(call("render", what="a"), call("render", what="b"))
    artist = world.agent([both, text("Rendered.")], [LongRunningFunctionTool(render)], name="artist")
    agent = ParallelAgent(name="both", sub_agents=[teller, artist])
    return world.flow(agent, {"pay": ASKED, "render": READ})


async def _frontier(stage: Stage) -> list[Interrupt]:
    """Waits for the whole frontier: what runs beside a wait may ask a moment later."""

    async def whole() -> bool:
        return len((await stage.client.wait(stage.session())).pending_interrupts) == 3

    await stage.until(whole, "three interrupts")
    return await stage.asked(3)


@case("frontiers/answered-at-once", "A whole frontier is answered in one go.", mixed, ordered=False)
async def answered_at_once(stage: Stage) -> None:
    await stage.start()
    pay, a, b = await _frontier(stage)
    done = await stage.client.resume(
        stage.session(),
        {pay.interrupt_id: True, a.interrupt_id: {"url": "a"}, b.interrupt_id: "just b"},
        resolved_by="ann",
    )
    same("answered", [each.status for each in done], [InterruptStatus.APPROVED, *[InterruptStatus.ANSWERED] * 2])
    await stage.completed()
    same("the ledger", sorted(stage.world.ledger), ["pay 5", "render a", "render b"])


@case(
    "frontiers/answered-one-by-one",
    "It is waiting until the last answer is there, whatever the order.",
    mixed,
    ordered=False,
)
async def answered_one_by_one(stage: Stage) -> None:
    await stage.start()
    pay, a, b = await _frontier(stage)
    await stage.answer(b, 7)
    await stage.decide(pay, False, message="no money")
    await stage.step_named("AwaitAnswer", settled=True)
    await stage.step_named("AwaitToolApproval", settled=True)
    same("still waiting", [each.interrupt_id for each in await stage.asked(1)], [a.interrupt_id])
    await stage.answer(a, {"url": "a"})
    await stage.completed()
    same("nothing is paid", sorted(stage.world.ledger), ["render a", "render b"])


@case(
    "frontiers/all-or-nothing", "Answers that do not fit the frontier are refused, all of them.", mixed, ordered=False
)
async def all_or_nothing(stage: Stage) -> None:
    await stage.start()
    pay, a, b = await _frontier(stage)
    fitting: JsonObject = {pay.interrupt_id: True, a.interrupt_id: 1, b.interrupt_id: 2}
    for wrong, error in (
        ({pay.interrupt_id: True}, UsageError),
        ({pay.interrupt_id: True, a.interrupt_id: 1}, UsageError),
        ({}, UsageError),
        (fitting | {"nothing": 1}, InterruptNotFound),
        (fitting | {b.interrupt_id: None}, UsageError),
        (fitting | {pay.interrupt_id: "yes"}, UsageError),
        (fitting | {pay.interrupt_id: {"approved": 1}}, UsageError),
    ):
        with refused(error):
            await stage.client.resume(stage.session(), wrong)
    same("all is asked", len(await stage.asked(3)), 3)
    await stage.client.resume(stage.session(), fitting)
    await stage.client.resume(stage.session(), fitting)
    with refused(InterruptAlreadyResolved):
        await stage.client.resume(stage.session(), fitting | {a.interrupt_id: 3})
    await stage.idle()


@case(
    "frontiers/questions",
    "A question takes a value, once, and not null; the wrong method names the right one.",
    mixed,
    ordered=False,
)
async def questions(stage: Stage) -> None:
    await stage.start()
    pay, a, b = await _frontier(stage)
    with refused(UsageError):
        await stage.answer(a, None)
    with refused(UsageError) as refusal:
        await stage.decide(a, True)
    holds("it names the right method", "answer_question" in str(refusal.error))
    same("kept", (await stage.answer(a, "x", resolved_by="ann")).response, {"result": "x"})
    await stage.answer(a, "x")
    with refused(InterruptAlreadyResolved):
        await stage.answer(a, "y")
    await stage.answer(b, {"n": 1})
    await stage.decide(pay, True)
    await stage.idle()


@case(
    "frontiers/after-a-restart",
    "A frontier outlives its worker; answers given meanwhile count.",
    mixed,
    served=False,
    ordered=False,
)
async def after_a_restart(stage: Stage) -> None:
    with stage.process() as first:
        await stage.up(first)
        await stage.start()
        pay, a, b = await _frontier(stage)
        await stage.answer(a, {"url": "a"})
        first.kill()
    await stage.client.resume(stage.session(), {pay.interrupt_id: True, b.interrupt_id: {"url": "b"}})
    async with stage.worker():
        await stage.completed()
    same("the ledger", sorted(stage.world.ledger), ["pay 5", "render a", "render b"])


def beside(world: World) -> AgentSessionFlow:
    """One response asks for an approval and for a result from outside."""

    def pay(amount: int) -> str:
        """Pays."""
        world.note("pay", amount)
        return "paid"

    def render(what: str) -> None:
        """Renders; the result comes later."""
        world.note("render", what)

    script = [reply(call("pay", amount=5), call("render", what="a")), text("Done.")]
    return world.flow(world.agent(script, [pay, LongRunningFunctionTool(render)]), {"pay": ASKED, "render": READ})


@case("frontiers/beside-a-gated-call", "Calls of one response wait side by side, each for its own answer.", beside)
async def beside_a_gated_call(stage: Stage) -> None:
    await stage.start()

    async def both() -> bool:
        return len((await stage.client.wait(stage.session())).pending_interrupts) == 2

    await stage.until(both, "two interrupts")
    pay, render = await stage.asked(2)
    await stage.answer(render, {"url": "a"})
    await stage.step_named("AwaitAnswer", settled=True)
    same("still asked", [each.interrupt_id for each in await stage.asked(1)], [pay.interrupt_id])
    await stage.decide(pay, True)
    await stage.completed()
    same("the ledger", sorted(stage.world.ledger), ["pay 5", "render a"])
