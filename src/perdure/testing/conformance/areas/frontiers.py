"""Frontiers: everything that a turn waits for at one time, answered one by one or all at once."""

# ADK would rather see a Workflow; perdure runs these shapes as long as ADK has them.
# pyright: reportDeprecated=false

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

from fastapi.openapi.models import APIKey
from google.adk.agents import ParallelAgent
from google.adk.auth.auth_credential import AuthCredential, AuthCredentialTypes
from google.adk.auth.auth_tool import AuthConfig
from google.adk.events.request_input import RequestInput
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import START, JoinNode, Workflow

from perdure.errors import InterruptAlreadyResolved, InterruptNotFound, UsageError
from perdure.session.model import (
    Interrupt,
    InterruptKind,
    InterruptStatus,
    JsonObject,
    SessionStatus,
    StepStatus,
    TurnStatus,
)
from perdure.session.runner import AgentSessionFlow
from perdure.testing.conformance.case import case
from perdure.testing.conformance.checks import holds, refused, same
from perdure.testing.conformance.stage import Stage, turn_of
from perdure.testing.conformance.world import ASKED, READ, World
from perdure.testing.replies import call, reply, text
from perdure.testing.script import by_message


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


def hurried(world: World) -> AgentSessionFlow:
    """A question that must be answered within a tenth of a second."""

    def render(what: str) -> None:
        """Renders; the result comes later."""
        world.note("render", what)

    agent = world.agent([call("render", what="a"), text("Too late.")], [LongRunningFunctionTool(render)])
    return world.flow(agent, {"render": READ}, interrupt_deadline=timedelta(milliseconds=100))


@case("frontiers/deadline", "A question that nobody answers in time is an error that the model sees.", hurried)
async def deadline(stage: Stage) -> None:
    await stage.start()
    await stage.completed()
    found = [step.status for step in await stage.steps() if step.name.value == "AwaitAnswer"]
    same("the question", found, [StepStatus.EXPIRED])


def ticketing(world: World) -> AgentSessionFlow:
    """A long-running call with a first result: the turn ends, and the answer starts another."""

    def ticket(subject: str) -> JsonObject:
        """Opens a ticket."""
        world.note("ticket", subject)
        return {"status": "open"}

    script = by_message({"go": [call("ticket", subject="lamp"), text("Opened."), text("Closed, I hear.")]})
    agent = world.agent(script, [LongRunningFunctionTool(ticket)])
    return world.flow(agent, {"ticket": READ})


@case(
    "frontiers/late-answer", "A call with a first result leaves the turn to end; the answer starts a turn.", ticketing
)
async def late_answer(stage: Stage) -> None:
    await stage.start()
    snapshot = await stage.idle()
    same("the turn", turn_of(snapshot).status, TurnStatus.COMPLETED)
    (asked,) = snapshot.pending_interrupts
    same("still listed", asked.kind, InterruptKind.LONG_RUNNING)
    await stage.answer(asked, {"status": "closed"})
    snapshot = await stage.idle()
    same("a turn of its own", (turn_of(snapshot).number, snapshot.pending_interrupts), (2, ()))
    same("the ledger", stage.world.ledger, ["ticket lamp"])


KEY = AuthConfig(
    auth_scheme=APIKey.model_validate({"type": "apiKey", "in": "header", "name": "key"}),
    raw_auth_credential=AuthCredential(auth_type=AuthCredentialTypes.API_KEY),
    credential_key="shop",
)


def locked(world: World) -> AgentSessionFlow:
    """A tool that needs a sign-in."""

    def fetch(tool_context: ToolContext) -> JsonObject:
        """Fetches, once somebody has signed in."""
        credential = tool_context.get_auth_response(KEY)
        world.note("fetch", credential is not None)
        if credential is None:
            tool_context.request_credential(KEY)
            return {"status": "somebody has to sign in"}
        return {"fetched": True, "secret known": credential.api_key == "secret"}

    return world.flow(world.agent([call("fetch"), text("Fetched.")], [fetch]), {"fetch": READ})


@case("frontiers/sign-in", "A tool that needs a sign-in waits for it, and runs again with what came of it.", locked)
async def sign_in(stage: Stage) -> None:
    await stage.start()
    (asked,) = await stage.asked()
    same("the kind", asked.kind, InterruptKind.CREDENTIAL)
    await stage.decide(asked, True, payload=_signed(asked))
    await stage.completed()
    same("the ledger", stage.world.ledger, ["fetch False", "fetch True"])
    shown = [step.model_dump_json() for step in await stage.steps()]
    shown += [message.model_dump_json() for message in await stage.messages()]
    holds("the key is shown nowhere", not any('"secret"' in each for each in shown))


@case("frontiers/sign-in-refused", "A sign-in that is refused ends the call; its tool does not run again.", locked)
async def sign_in_refused(stage: Stage) -> None:
    await stage.start()
    (asked,) = await stage.asked()
    await stage.decide(asked, False)
    await stage.idle()
    same("the ledger", stage.world.ledger, ["fetch False"])


def _signed(asked: Interrupt) -> JsonObject:
    answer = AuthConfig.model_validate(asked.payload)
    answer.exchanged_auth_credential = AuthCredential(auth_type=AuthCredentialTypes.API_KEY, api_key="secret")
    return answer.model_dump(mode="json", exclude_none=True, by_alias=True)


def form(world: World) -> AgentSessionFlow:
    """A workflow that asks two people at one time, and then one more."""

    def prepare(node_input: Any) -> str:
        world.note("prepare")
        return "prepared"

    def ask_size(node_input: Any) -> RequestInput:
        return _request(interrupt_id="size", message="Which size?")

    def ask_colour(node_input: Any) -> RequestInput:
        return _request(interrupt_id="colour", message="Which colour?")

    def use_size(node_input: Any) -> str:
        world.note("size", node_input["is"])
        return "size known"

    def use_colour(node_input: Any) -> str:
        world.note("colour", node_input["is"])
        return "colour known"

    join = JoinNode(name="both")
    edges: list[Any] = [(START, prepare, ask_size, use_size, join), (prepare, ask_colour, use_colour, join)]
    return world.flow(Workflow(name="form", edges=edges))


def _request(**given: Any) -> RequestInput:
    """A question; ADK has a default for everything, which a type checker does not see."""
    return cast(RequestInput, cast(Any, RequestInput)(**given))


@case(
    "frontiers/legs",
    "A workflow that asks goes on when all that it asked is answered, and not before.",
    form,
    ordered=False,
)
async def legs(stage: Stage) -> None:
    await stage.start()
    first, second = await stage.asked(2)
    same("the kinds", {first.kind, second.kind}, {InterruptKind.INPUT})
    colour, size = sorted((first, second), key=lambda each: each.hint)
    await stage.answer(size, {"is": 42})
    same("half is not enough", (await stage.rest()).status, SessionStatus.WAITING)
    same("nothing went on", stage.world.ledger, ["prepare"])
    await stage.answer(colour, {"is": "red"})
    await stage.completed()
    same("the ledger", sorted(stage.world.ledger), ["colour red", "prepare", "size 42"])


@case(
    "frontiers/legs-after-a-restart",
    "The next leg of a turn begins in whatever process is there.",
    form,
    served=False,
    ordered=False,
)
async def legs_after_a_restart(stage: Stage) -> None:
    with stage.process() as first:
        await stage.up(first)
        await stage.start()
        asked = await stage.asked(2)
        first.kill()
    await stage.client.resume(stage.session(), {each.interrupt_id: {"is": each.hint} for each in asked})
    async with stage.worker():
        await stage.completed()
    same("the ledger", sorted(stage.world.ledger), ["colour Which colour?", "prepare", "size Which size?"])
