"""What goes wrong: the model, the tool, the code, the data.  A turn fails with a typed error, a session never does."""

from __future__ import annotations

import threading

from google.adk.tools.tool_context import ToolContext

from perdure.errors import SessionBlocked, ValueNotStorable
from perdure.session.model import ImageInput, JsonObject, SessionStatus, StepStatus, TurnStatus
from perdure.session.runner import AgentSessionFlow
from perdure.testing.conformance.case import case
from perdure.testing.conformance.checks import holds, refused, same
from perdure.testing.conformance.stage import Stage, turn_of
from perdure.testing.conformance.world import ASKED, IDEMPOTENT, ONCE, READ, World
from perdure.testing.replies import call, text
from perdure.testing.script import by_message, by_turn, failing


def broken_model(world: World) -> AgentSessionFlow:
    """The model refuses its second request of the first turn, for good."""

    def write() -> str:
        """Writes."""
        world.note("write")
        return "written"

    script = by_turn([call("write"), failing(400)], text("I am back."))
    return world.flow(world.agent(script, [write]), {"write": ONCE})


@case(
    "errors/model",
    "A model that fails for good fails the turn; the next turn's model is told what was done.",
    broken_model,
)
async def model(stage: Stage) -> None:
    await stage.start()
    snapshot = await stage.idle()
    same("the turn", turn_of(snapshot).status, TurnStatus.FAILED)
    holds("the session says why", snapshot.error is not None)
    await stage.send("again")
    await stage.completed()
    same("written once", stage.world.ledger, ["write"])
    holds("it is told", any("write" in str(content) for content in stage.world.requests[-1].contents))


def busy_model(world: World) -> AgentSessionFlow:
    """The model is overloaded for good."""
    return world.flow(world.agent(by_turn(failing(503), text("I am back."))))


@case(
    "errors/model-overloaded", "A model that is overloaded is asked three times, and then the turn fails.", busy_model
)
async def model_overloaded(stage: Stage) -> None:
    await stage.start()
    same("the turn", turn_of(await stage.idle()).status, TurnStatus.FAILED)
    same("requests", len(stage.world.requests), 3)


def odd_tools(world: World) -> AgentSessionFlow:
    """Tools that give what has no JSON form, and a model that calls what is not there."""

    def locked() -> object:
        """Gives a lock."""
        world.note("locked")
        return {"lock": threading.Lock()}

    def hoards(tool_context: ToolContext) -> str:
        """Puts a lock into the state."""
        world.note("hoards")
        tool_context.state["lock"] = threading.Lock()
        return "kept"

    script = by_message(
        {
            "locked": [call("locked"), text("Seen.")],
            "hoards": [call("hoards"), text("Seen.")],
            "ghost": [call("ghost"), text("Seen.")],
        },
        otherwise=text("Fine."),
    )
    return world.flow(world.agent(script, [locked, hoards]), {"locked": READ, "hoards": IDEMPOTENT})


@case(
    "errors/values-without-a-form",
    "A value that cannot be stored is refused where it is written, and named.",
    odd_tools,
)
async def values_without_a_form(stage: Stage) -> None:
    for words in ("locked", "hoards"):
        await stage.start(words, words)
        await stage.idle(words)
        await stage.send("hello", words)
        await stage.completed(words)
        holds("nothing succeeded", (await stage.calls(words))[words].status is not StepStatus.SUCCEEDED)
    with refused(ValueNotStorable):
        await stage.start("hello", "never", state={"lock": threading.Lock()})
    stage.forget("never")


@case("errors/unknown-tool", "A model that calls a tool that is not there does not break its session.", odd_tools)
async def unknown_tool(stage: Stage) -> None:
    await stage.start("ghost")
    await stage.idle()
    await stage.send("hello")
    await stage.completed()


def deployed(world: World) -> AgentSessionFlow:
    """A write that waits for approval; in the changed code it has another name."""

    def pay(amount: int) -> str:
        """Pays."""
        world.note("pay", amount)
        return "paid"

    def pay_out(amount: int) -> str:
        """Pays."""
        world.note("pay out", amount)
        return "paid"

    tool = pay_out if world.variant == "changed" else pay
    agent = world.agent([call("pay", amount=5), text("Done.")], [tool])
    return world.flow(agent, {tool.__name__: ASKED})


@case(
    "errors/changed-code",
    "Code that does not fit blocks the session and redoes nothing; the old code goes on.",
    deployed,
    served=False,
)
async def changed_code(stage: Stage) -> None:
    async with stage.worker():
        await stage.start()
        (asked,) = await stage.asked()
    async with stage.worker("changed"):
        snapshot = await stage.rest(SessionStatus.BLOCKED)
        same("the error", snapshot.error and snapshot.error.code, "non_determinism")
        same("it is still asked", [each.interrupt_id for each in snapshot.pending_interrupts], [asked.interrupt_id])
        with refused(SessionBlocked):
            await stage.decide(asked, True)
        await stage.send("queued meanwhile")
    same("nothing ran", stage.world.ledger, [])
    async with stage.worker():
        await stage.rest(SessionStatus.WAITING)
        await stage.decide(asked, True)
        await stage.settled("pay")
        (again,) = await stage.asked_anew(asked)
        await stage.decide(again, False, message="once is enough")
        same("turns", turn_of(await stage.idle()).number, 2)
    same("paid once", stage.world.ledger, ["pay 5"])


@case(
    "errors/unserved",
    "A session whose flow nobody serves keeps what it is sent, and says that nobody serves it.",
    deployed,
    served=False,
)
async def unserved(stage: Stage) -> None:
    await stage.start()
    snapshot = await stage.client.get_agent_snapshot(stage.session())
    same("served", snapshot.served, False)
    async with stage.worker():
        await stage.asked()
        holds("served", (await stage.client.get_agent_snapshot(stage.session())).served)


def big(world: World) -> AgentSessionFlow:
    """A result of 5 MB."""

    def fetch() -> JsonObject:
        """Fetches much."""
        world.note("fetch")
        return {"data": "x" * 5_000_000}

    def size(tool_context: ToolContext) -> int:
        """Counts what the model was given."""
        world.note("size")
        return len(tool_context.session.events)

    return world.flow(
        world.agent([call("fetch"), call("size"), text("Much.")], [fetch, size]), {"fetch": READ, "size": READ}
    )


@case("errors/big-result", "A result of 5 MB reaches the model whole.", big)
async def big_result(stage: Stage) -> None:
    await stage.start()
    await stage.completed()
    step = (await stage.calls())["fetch"]
    same("its length", len(step.result["data"]), 5_000_000)
    seen = stage.world.requests[-1].contents[2].parts or []
    response = seen[0].function_response
    same("what the model saw", response and len((response.response or {})["data"]), 5_000_000)


@case("errors/big-image", "An image of 3 MB reaches the model as it was sent.", broken_model)
async def big_image(stage: Stage) -> None:
    data = bytes(range(256)) * 12_000
    stage.leave_out("s")
    await stage.start("look", images=[ImageInput(data=data, mime_type="image/png")])
    await stage.idle()
    parts = stage.world.requests[0].contents[0].parts or []
    images = [part.inline_data for part in parts if part.inline_data is not None]
    same("images", [(image.mime_type, image.data == data) for image in images], [("image/png", True)])
    same("shown as", (await stage.messages())[0].images, ("image/png",))
