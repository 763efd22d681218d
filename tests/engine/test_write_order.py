"""The writes of a session reach the store in the order in which they came up."""

from __future__ import annotations

import pytest
from tests.engine.conftest import Stage, history, shape
from tests.support.play import Play, PlayCall

from perdure import AgentSessionClient, TurnStatus
from perdure.engine.actor import SessionActor
from perdure.engine.book import TurnBook
from perdure.engine.running import RunningSteps
from perdure.session.state import RunModel
from perdure.store.sqlite import SqliteStore


async def test_a_flush_that_falls_due_as_its_turn_ends_does_not_come_behind_the_end(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    actors: list[SessionActor] = []
    run_model = RunningSteps._run_model

    def keep_the_timer_away(self: SessionActor) -> None:
        actors.append(self)

    async def and_flush(self: RunningSteps, book: TurnBook, run: RunModel) -> None:
        await run_model(self, book, run)
        # The result is on its way to the loop, which has not seen it: the worst moment.
        actors[0]._flush_due()

    monkeypatch.setattr(SessionActor, "_flush_soon", keep_the_timer_away)
    monkeypatch.setattr(RunningSteps, "_run_model", and_flush)

    async def script(play: Play) -> None:
        await play.model("m1", "done")
        play.say("done")

    flow = stage.flow(script)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "hello")
        snapshot = await client.wait("s", timeout=10)
        assert snapshot.turn is not None
        assert snapshot.turn.status is TurnStatus.COMPLETED
        assert (snapshot.turn.usage.model_calls, snapshot.usage.model_calls) == (1, 1)
        assert await shape(client, "s") == [
            "AwaitUserMessage succeeded",
            "RunModel succeeded",
            "AwaitUserMessage pending",
        ]
    assert actors


async def test_calls_that_end_together_are_stored_together(local_stage: Stage) -> None:
    """Eight reads of one response that return at the same moment share one write, each with its own record."""

    async def look(call_id: str, attempt: int) -> object:
        return call_id

    async def script(play: Play) -> None:
        await play.model("m1", "")
        await play.tools("m1", {f"c{n}": PlayCall("look", look) for n in range(8)})
        play.say("done")

    flow = local_stage.flow(script)
    async with local_stage.engine(flow) as engine, engine.worker():
        assert isinstance(engine.store, SqliteStore)
        client = AgentSessionClient(engine, flow)
        await client.start_session("s")
        before = engine.store.commits
        await client.send_user_message("s", "hello")
        await client.wait("s", timeout=10)
        commits = engine.store.commits - before
        steps = await history(client, "s")
    assert [step.result for step in steps if step.tool_name] == [f"c{n}" for n in range(8)]
    assert commits <= 7, "a message, a claim, a beginning, the calls, their records, the end; and room for one flush"
