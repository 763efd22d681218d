"""Usage: what turns and sessions cost, and the limit of model calls."""

from __future__ import annotations

from google.adk.agents.run_config import RunConfig

from perdure.session.model import TurnStatus, Usage
from perdure.session.runner import AgentSessionFlow
from perdure.testing.conformance.case import case
from perdure.testing.conformance.checks import same
from perdure.testing.conformance.stage import Stage, turn_of
from perdure.testing.conformance.world import ASKED, READ, World
from perdure.testing.replies import Tokens, call, reply, text
from perdure.testing.script import by_turn, failing


def costly(world: World) -> AgentSessionFlow:
    """Each response costs something else."""

    async def look() -> str:
        """Looks."""
        await world.stop_at("looking")
        return "seen"

    script = by_turn(
        [
            reply(call("look"), usage=Tokens(100, 10, thoughts=3, tool_use_prompt=7)),
            reply(text("Seen."), usage=Tokens(200, 20)),
        ],
        [reply(text("Again."), usage=Tokens(1000, 1))],
        [reply(text("Free."), usage=None)],
    )
    return world.flow(world.agent(script, [look]), {"look": READ})


@case(
    "usage/turns-and-session",
    "Each turn has its usage, thoughts and tool prompts included; the session has the sum.",
    costly,
)
async def turns_and_session(stage: Stage) -> None:
    stage.world.open("looking")
    await stage.start("one")
    first = turn_of(await stage.idle()).usage
    same("the first turn", first, Usage(input_tokens=307, output_tokens=33, model_calls=2))
    await stage.send("two")
    second = turn_of(await stage.idle()).usage
    same("the second turn", second, Usage(input_tokens=1000, output_tokens=1, model_calls=1))
    await stage.send("three")
    snapshot = await stage.idle()
    third = Usage(model_calls=1)
    same("the third turn", turn_of(snapshot).usage, third)
    same("the session", snapshot.usage, first + second + third)


@case(
    "usage/replay-costs-nothing",
    "Answers from a record cost nothing: a worker's death is not charged.",
    costly,
    served=False,
)
async def replay_costs_nothing(stage: Stage) -> None:
    with stage.process() as doomed:
        await stage.up(doomed)
        await stage.start("one")
        await stage.reached("looking")
        doomed.kill()
    stage.world.open("looking")
    async with stage.worker():
        usage = turn_of(await stage.idle()).usage
    same("the turn", usage, Usage(input_tokens=307, output_tokens=33, model_calls=2))
    same("requests", len(stage.world.requests), 2)


def limited(world: World) -> AgentSessionFlow:
    """Three model calls where two are allowed, with a pause for approval between them."""

    def pay() -> str:
        """Pays."""
        world.note("pay")
        return "paid"

    def look() -> str:
        """Looks."""
        world.note("look")
        return "seen"

    agent = world.agent([call("pay"), call("look"), text("Never.")], [pay, look])
    return world.flow(agent, {"pay": ASKED, "look": READ}, run_config=RunConfig(max_llm_calls=2))


@case(
    "usage/limit-of-model-calls",
    "The limit of model calls counts over the whole turn, pauses and processes included.",
    limited,
    served=False,
)
async def limit_of_model_calls(stage: Stage) -> None:
    async with stage.worker():
        await stage.start()
        (asked,) = await stage.asked()
    await stage.decide(asked, True)
    async with stage.worker():
        turn = turn_of(await stage.idle())
    same("the turn", (turn.status, turn.usage.model_calls), (TurnStatus.FAILED, 2))
    same("the ledger", stage.world.ledger, ["pay", "look"])


def shaky(world: World) -> AgentSessionFlow:
    """The model fails twice before it answers."""
    return world.flow(world.agent([failing(503, times=2, then=text("At last."))]))


@case("usage/failed-requests", "A request that failed and was made again is one model call that succeeded.", shaky)
async def failed_requests(stage: Stage) -> None:
    await stage.start()
    turn = turn_of(await stage.idle())
    same("the turn", turn.status, TurnStatus.COMPLETED)
    same("requests", len(stage.world.requests), 3)
    stage.notes["model calls"] = turn.usage.model_calls
