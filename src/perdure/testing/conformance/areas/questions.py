"""Questions: long-running calls, late answers, sign-ins, and workflows whose turns go on leg by leg."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

from fastapi.openapi.models import APIKey
from google.adk.auth.auth_credential import AuthCredential, AuthCredentialTypes
from google.adk.auth.auth_tool import AuthConfig
from google.adk.events.request_input import RequestInput
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import START, JoinNode, Workflow

from perdure.session.model import (
    Interrupt,
    InterruptKind,
    JsonObject,
    SessionStatus,
    StepStatus,
    TurnStatus,
)
from perdure.session.runner import AgentSessionFlow
from perdure.testing.conformance.case import case
from perdure.testing.conformance.checks import holds, same
from perdure.testing.conformance.stage import Stage, turn_of
from perdure.testing.conformance.world import READ, World
from perdure.testing.replies import call, text
from perdure.testing.script import by_message


def hurried(world: World) -> AgentSessionFlow:
    """A question that must be answered within a tenth of a second."""

    def render(what: str) -> None:
        """Renders; the result comes later."""
        world.note("render", what)

    agent = world.agent([call("render", what="a"), text("Too late.")], [LongRunningFunctionTool(render)])
    return world.flow(agent, {"render": READ}, interrupt_deadline=timedelta(milliseconds=100))


@case("questions/deadline", "A question that nobody answers in time is an error that the model sees.", hurried)
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
    "questions/late-answer", "A call with a first result leaves the turn to end; the answer starts a turn.", ticketing
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


@case("questions/sign-in", "A tool that needs a sign-in waits for it, and runs again with what came of it.", locked)
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


@case("questions/sign-in-refused", "A sign-in that is refused ends the call; its tool does not run again.", locked)
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
    "questions/legs",
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
    "questions/legs-after-a-restart",
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
