"""Field case 27: parallel calls that end in any order, killed at any moment; every answer stays with its own call."""

from __future__ import annotations

import asyncio
import random
import signal

import pytest
from google.adk.agents import BaseAgent, ParallelAgent
from tests.field.lives import GO_ON, Build, Hold, life
from tests.field.support import PATIENCE, READ, Field, durable, messages_of, steps_of

from perdure import AgentSessionFlow, SessionStatus
from perdure.testing import DurableWrite, FaultPoint, Moment, call, reply, text

SESSIONS = 20
CALLS = 4


def at_random(field: Field, hold: Hold) -> AgentSessionFlow:
    delays = random.Random()

    async def slow(n: int) -> int:
        """Takes its time, another one each time."""
        await asyncio.sleep(delays.random() * 0.03)
        return 10 * n

    round_one, round_two = ([call("slow", n=first + n) for n in range(CALLS)] for first in (0, CALLS))
    return field.flow([reply(*round_one), reply(*round_two), text("Done.")], [slow], {"slow": READ})


def in_branches(field: Field, hold: Hold) -> AgentSessionFlow:
    """The same calls, but each two of a round belong to an agent of their own, on a branch of its own."""
    delays = random.Random()

    async def slow(n: int) -> int:
        """Takes its time, another one each time."""
        await asyncio.sleep(delays.random() * 0.03)
        return 10 * n

    agents: list[BaseAgent] = [
        field.agent(
            [
                reply(*(call("slow", n=first + n) for n in range(CALLS // 2))),
                reply(*(call("slow", n=CALLS + first + n) for n in range(CALLS // 2))),
                text("Done."),
            ],
            [slow],
            name=f"agent{first}",
        )
        for first in (0, CALLS // 2)
    ]
    return durable(ParallelAgent(name="branches", sub_agents=agents), {"slow": READ})


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("build", "model_calls"), [(at_random, 3), (in_branches, 6)])
async def test_answers_stay_with_their_calls_whatever_order_they_end_in(
    field: Field, build: Build, model_calls: int, seed: int
) -> None:
    """Case 27.  Engines that record parallel steps in the order in which they end cannot match them on replay.

    Twenty sessions at once, each of them killed, twice, somewhere between the first and the last of its calls.
    """
    moments = random.Random(seed)
    async with field.asking() as client:
        for number in range(SESSIONS):
            await client.start_session(f"s{number}", "go")
    for _ in range(2):
        nth = moments.randrange(10, SESSIONS * CALLS)
        point = FaultPoint(DurableWrite.STEP_SETTLED, moments.choice(list(Moment)))
        with life(build, field, fault=point, nth=nth) as child:
            assert await child.wait_exit_async() == -signal.SIGKILL, f"{point} was not reached {nth} times"
    async with field.working(build(field, GO_ON)) as client:
        for number in range(SESSIONS):
            session_id = f"s{number}"
            snapshot = await client.wait(session_id, timeout=PATIENCE)
            assert (snapshot.status, snapshot.error) == (SessionStatus.IDLE, None)
            asked: dict[str, int] = {}
            answered: dict[str, int] = {}
            for message in await messages_of(client, session_id):
                for part in message.framework_item["content"]["parts"]:
                    if given := part.get("function_call"):
                        asked[given["id"]] = given["args"]["n"]
                    if got := part.get("function_response"):
                        answered[got["id"]] = got["response"]["result"]
            assert sorted(asked.values()) == list(range(2 * CALLS))
            assert answered == {call_id: 10 * n for call_id, n in asked.items()}
            settled = [step for step in await steps_of(client, session_id) if step.tool_name]
            assert {step.tool_call_id: step.result for step in settled} == {
                call_id: {"result": result} for call_id, result in answered.items()
            }
            assert snapshot.usage.model_calls == model_calls
