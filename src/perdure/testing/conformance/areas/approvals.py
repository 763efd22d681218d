"""Approvals: bound to one call, used once, told apart from each other, and kept with who gave them."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from perdure.client import AgentSessionClient
from perdure.errors import (
    InterruptAlreadyResolved,
    InterruptExpired,
    InterruptNotFound,
    InterruptWithdrawn,
    UsageError,
)
from perdure.session.model import Interrupt, InterruptKind, InterruptStatus, StepStatus
from perdure.session.runner import AgentSessionFlow
from perdure.testing.conformance.case import case
from perdure.testing.conformance.checks import holds, refused, same
from perdure.testing.conformance.stage import Stage
from perdure.testing.conformance.world import ASKED, READ, World
from perdure.testing.replies import call, reply, text


def payer(world: World) -> AgentSessionFlow:
    """A read, then a write that waits for approval."""

    def look() -> str:
        """Looks."""
        world.note("look")
        return "seen"

    def pay(amount: int) -> str:
        """Pays."""
        world.note("pay", amount)
        return f"paid {amount}"

    script = [call("look"), call("pay", amount=5), text("Done.")]
    return world.flow(world.agent(script, [look, pay]), {"look": READ, "pay": ASKED})


@case("approvals/approved", "An approved call runs once; who approved it is kept.", payer)
async def approved(stage: Stage) -> None:
    await stage.start()
    (asked,) = await stage.asked()
    same(
        "what is asked", (asked.kind, asked.tool_name, asked.arguments), (InterruptKind.APPROVAL, "pay", {"amount": 5})
    )
    same("nothing is paid yet", stage.world.ledger, ["look"])
    answered = await stage.decide(asked, True, resolved_by="ann")
    same("the answer", (answered.status, answered.resolved_by), (InterruptStatus.APPROVED, "ann"))
    holds("it says when", answered.resolved_at is not None)
    await stage.completed()
    same("paid once", stage.world.ledger, ["look", "pay 5"])


@case("approvals/rejected", "A rejected call never runs; the model sees why, and the turn goes on.", payer)
async def rejected(stage: Stage) -> None:
    await stage.start()
    (asked,) = await stage.asked()
    await stage.decide(asked, False, message="too dear", resolved_by="ann")
    await stage.completed()
    same("nothing is paid", stage.world.ledger, ["look"])
    holds("there is no step that ran it", "pay" not in await stage.calls())


@case("approvals/rejected-without-words", "A rejection without a message has the framework's words.", payer)
async def rejected_without_words(stage: Stage) -> None:
    await stage.start()
    (asked,) = await stage.asked()
    await stage.decide(asked, False)
    await stage.idle()


@case("approvals/answered-twice", "The same answer again changes nothing; another one is refused.", payer)
async def answered_twice(stage: Stage) -> None:
    await stage.start()
    (asked,) = await stage.asked()
    await stage.decide(asked, True, resolved_by="ann", request_id="a1")
    await stage.decide(asked, True, resolved_by="ann", request_id="a1")
    same("a repeat by somebody else", (await stage.decide(asked, True, resolved_by="ben")).resolved_by, "ann")
    await stage.idle()
    await stage.decide(asked, True)
    with refused(InterruptAlreadyResolved) as refusal:
        await stage.decide(asked, False)
    same("it names who answered", refusal.error and refusal.error.facts["resolved_by"], "ann")
    same("paid once", stage.world.ledger, ["look", "pay 5"])


@case("approvals/two-people-at-once", "Of two different answers at one time exactly one counts.", payer)
async def two_people_at_once(stage: Stage) -> None:
    async with stage.elsewhere() as other:
        for number in range(4):
            name = f"s{number}"
            stage.leave_out(name)
            await stage.start("go", name)
            (asked,) = await stage.asked(name=name)

            async def answer(client: AgentSessionClient, yes: bool, asked: Interrupt = asked, name: str = name) -> bool:
                try:
                    await client.resolve_interrupt(stage.session(name), asked.interrupt_id, approved=yes)
                except InterruptAlreadyResolved:
                    return False
                return True

            won = await asyncio.gather(answer(stage.client, True), answer(other, False))
            same("one of them counts", sorted(won), [False, True])
            await stage.idle(name)
            same("and is what happened", (await stage.calls(name)).keys() >= {"pay"}, won[0])


@case(
    "approvals/unknown-and-wrong",
    "What was never asked is not found; an answer of the wrong kind decides nothing.",
    payer,
)
async def unknown_and_wrong(stage: Stage) -> None:
    await stage.start()
    (asked,) = await stage.asked()
    with refused(InterruptNotFound):
        await stage.client.resolve_interrupt(stage.session(), "nothing", approved=True)
    with refused(UsageError):
        await stage.answer(asked, {"approved": True})
    with refused(UsageError):
        await stage.decide(asked, "yes")  # type: ignore[arg-type]  # the wrong type is the point
    same("it is still asked", len(await stage.asked()), 1)
    await stage.decide(asked, True)
    await stage.idle()


@case("approvals/withdrawn", "The answer to what was cancelled is refused with the reason, and nothing runs.", payer)
async def withdrawn(stage: Stage) -> None:
    await stage.start()
    (asked,) = await stage.asked()
    await stage.client.cancel_turn(stage.session())
    await stage.idle()
    with refused(InterruptWithdrawn):
        await stage.decide(asked, True)
    same("nothing is paid", stage.world.ledger, ["look"])


def hurried(world: World) -> AgentSessionFlow:
    """Like ``payer``, for people who answer within a tenth of a second."""

    def pay(amount: int) -> str:
        """Pays."""
        world.note("pay", amount)
        return "paid"

    agent = world.agent([call("pay", amount=5), text("Nobody was there.")], [pay])
    return world.flow(agent, {"pay": ASKED}, interrupt_deadline=timedelta(milliseconds=100))


@case(
    "approvals/deadline",
    "An approval that comes too late is refused; the call has expired, which is no one's no.",
    hurried,
)
async def deadline(stage: Stage) -> None:
    await stage.start()
    await stage.completed()
    steps = [step for step in await stage.steps() if step.name.value == "AwaitToolApproval"]
    same("the approval", [step.status for step in steps], [StepStatus.EXPIRED])
    with refused(InterruptExpired):
        await stage.client.resolve_interrupt(
            stage.session(), f"{steps[0].turn_id}:{steps[0].tool_call_id}", approved=True
        )
    same("nothing is paid", stage.world.ledger, [])


@case(
    "approvals/deadline-while-nobody-works",
    "A deadline that passes while no worker is up is kept by the next one.",
    hurried,
    served=False,
)
async def deadline_while_nobody_works(stage: Stage) -> None:
    async with stage.worker():
        await stage.start()
        await stage.step_named("AwaitToolApproval")
    async with stage.worker():
        await stage.completed()
    same("nothing is paid", stage.world.ledger, [])


@case(
    "approvals/after-a-restart",
    "An approval outlives every process; the worker that comes next acts on it.",
    payer,
    served=False,
)
async def after_a_restart(stage: Stage) -> None:
    with stage.process() as first:
        await stage.up(first)
        await stage.start()
        (asked,) = await stage.asked()
        first.kill()
    async with stage.elsewhere() as other:
        await other.resolve_interrupt(stage.session(), asked.interrupt_id, approved=True, resolved_by="ann")
    async with stage.worker():
        await stage.completed()
    same("the ledger", stage.world.ledger, ["look", "pay 5"])


def twins(world: World) -> AgentSessionFlow:
    """Two equal calls at one time."""

    def pay(amount: int) -> str:
        """Pays."""
        world.note("pay", amount)
        return "paid"

    script = [reply(call("pay", amount=5), call("pay", amount=5)), text("Done.")]
    return world.flow(world.agent(script, [pay]), {"pay": ASKED})


@case("approvals/equal-calls", "Two equal calls are two approvals: one may be approved and the other rejected.", twins)
async def equal_calls(stage: Stage) -> None:
    await stage.start()
    first, second = (await stage.client.wait(stage.session())).pending_interrupts
    holds("they are told apart", first.interrupt_id != second.interrupt_id)
    await stage.decide(second, False, message="once is enough")
    await stage.decide(first, True)
    await stage.idle()
    same("paid once", stage.world.ledger, ["pay 5"])
