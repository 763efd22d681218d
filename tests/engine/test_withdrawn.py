"""Answers to what was withdrawn (field case 20): refused with the reason, nothing runs, and the log does not change."""

from __future__ import annotations

import pytest
from tests.engine.conftest import Stage, history
from tests.support.play import Play, PlayCall, asks

from perdure import AgentSessionClient, InterruptKind, InterruptWithdrawn, SessionStatus, ToolEffect, TurnStatus


async def answer(client: AgentSessionClient, name: str, way: str, value: bool, *, at_once: bool) -> None:
    if at_once:
        await client.resume("s", {name: value})
    elif way in ("approval", "in the middle"):
        await client.resolve_interrupt("s", name, approved=value)
    else:
        await client.answer_question("s", name, value)


WAYS = ("approval", "in the middle", "live question", "frontier", "late question")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("at_once", [False, True], ids=["one by one", "resume"])
async def test_the_answer_to_a_wait_whose_turn_was_cancelled_is_refused(stage: Stage, way: str, at_once: bool) -> None:
    runs: list[str] = []

    async def script(play: Play) -> None:
        async def pay(call_id: str, attempt: int) -> object:
            runs.append(call_id)
            return asks() if way == "in the middle" else "paid"

        if play.start.number > 1:
            play.say("usable")
            return
        match way:
            case "approval":
                call = PlayCall("pay", pay, ToolEffect.NON_IDEMPOTENT_WRITE, InterruptKind.APPROVAL)
                await play.tools("m1", {"w": call})
            case "in the middle":
                await play.tools("m1", {"w": PlayCall("pay", pay, ToolEffect.NON_IDEMPOTENT_WRITE)})
            case "live question":
                await play.ask("w")
            case "frontier":
                play.ask_next("w")
            case _:
                play.ask_later("w")
                await play.ask("other")

    flow = stage.flow(script)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        turn_id = await client.start_session("s", "go")
        await client.wait("s", timeout=10)
        await client.cancel_turn("s")
        snapshot = await client.wait("s", timeout=10)
        assert (snapshot.status, snapshot.pending_interrupts) == (SessionStatus.IDLE, ())
        ran, name = list(runs), f"{turn_id}:w"
        before = (await history(client, "s"), (await client.list_messages("s")).items)
        for value in (True, False):
            with pytest.raises(InterruptWithdrawn):
                await answer(client, name, way, value, at_once=at_once)
        assert (await history(client, "s"), (await client.list_messages("s")).items) == before
        assert (await client.get_agent_snapshot("s")).queued_messages == 0
        await client.send_user_message("s", "and now?")
        snapshot = await client.wait("s", timeout=10)
        assert snapshot.turn is not None
        assert (snapshot.turn.number, snapshot.turn.status) == (2, TurnStatus.COMPLETED)
    assert runs == ran == (["w"] if way == "in the middle" else [])
