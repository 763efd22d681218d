"""An agent for tests of the command line: no ADK, so it starts fast.  A test copies it as a TARGET.

What a user says decides what happens:

* "refund ...": a lookup, then a refund that asks for approval;
* "two refunds": two refunds that ask at one time;
* "question": a long-running call whose result somebody has to give;
* "sign in": a tool that needs a sign-in;
* "render": a long-running call that the turn does not wait for;
* "form": two questions, answered before the next leg of the turn;
* "fail": the turn fails;
* "slow": half an answer, and no more of it while there is a file named ``hold`` in the working directory;
* "work": a tool that prints "working" and goes on until there is no file named ``hold``;
* anything else: an echo.
"""

from __future__ import annotations

import asyncio
import os
import sys

from tests.support.play import Play, PlayCall, PlayRunner

from perdure.session.model import InterruptKind
from perdure.session.policy import ToolEffect
from perdure.session.runner import AgentSessionFlow

HOLD = "hold"


async def held() -> None:
    while os.path.exists(HOLD):  # noqa: ASYNC110, ASYNC240 - the other side is another process, which has files only
        await asyncio.sleep(0.01)


async def lookup(call_id: str, _attempt: int) -> object:
    return {"found": call_id}


async def refund(call_id: str, _attempt: int) -> object:
    return {"refunded": call_id}


async def work(_call_id: str, _attempt: int) -> object:
    print("working", file=sys.stderr, flush=True)
    await held()
    return "worked"


def refund_call() -> PlayCall:
    return PlayCall("refund_order", refund, ToolEffect.IDEMPOTENT_WRITE, ask=InterruptKind.APPROVAL)


async def script(play: Play) -> None:
    said = play.start.message.text
    turn = play.start.number
    if said.startswith("refund"):
        await play.model("look", "Let me look. ")
        await play.tools("look", {f"find-{turn}": PlayCall("find_order", lookup)})
        await play.model("pay", "I would refund it.")
        (record,) = await play.tools("pay", {f"refund-{turn}": refund_call()})
        answer = await play.model("say", f"The refund: {record.status.value}.")
    elif said == "two refunds":
        await play.model("pay", "Both.")
        records = await play.tools("pay", {f"{name}-{turn}": refund_call() for name in ("first", "second")})
        answer = await play.model("say", " and ".join(record.status.value for record in records))
    elif said == "question":
        (answered,) = await play.ask(f"pick-{turn}", path="shop/picker")
        answer = await play.model("say", f"You picked {answered.value}.")
    elif said == "sign in":
        (answered,) = await play.ask(f"login-{turn}", kind=InterruptKind.CREDENTIAL)
        answer = await play.model("say", f"Signed in: {answered.value}.")
    elif said == "render":
        play.ask_later(f"render-{turn}")
        answer = await play.model("say", "It is being rendered.")
    elif play.start.message.answers:
        answer = await play.model("say", f"Rendered: {play.start.message.answers[0].value}.")
    elif said == "form" and play.start.leg == 1:
        answer = await play.model("say", "Two questions.")
        play.ask_next("name", "size")
    elif said == "form":
        values = [asked.answer.value for asked in play.start.answers if asked.answer is not None]
        answer = await play.model("say", f"Thanks: {values}.")
    elif said == "fail":
        raise RuntimeError("No API key was provided")
    elif said == "slow":
        answer = await play.model("slow", "Half an answer, and the rest of it.", held())
    elif said == "work":
        await play.model("ask", "To work.")
        await play.tools("ask", {f"work-{turn}": PlayCall("work", work)})
        answer = await play.model("say", "It is done.")
    else:
        answer = await play.model("echo", f"You said: {said}")
    play.say(answer)


flow = AgentSessionFlow("Play", PlayRunner(script), "Play")
