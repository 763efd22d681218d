"""A worker that keeps a session in memory must not believe its memory over the store."""

from __future__ import annotations

import pytest
from google.adk.agents import RunConfig
from tests.field.support import PATIENCE, SESSION, Field, conversation, prompt, say, until

from perdure import AgentSessionClient, faults
from perdure.faults import Action, DurableWrite, FaultPoint, Moment
from perdure.testing import text


@pytest.mark.usefixtures("loud")
async def test_what_a_turn_came_to_counts_only_once_it_is_stored(field: Field) -> None:
    """A turn ends in memory, the write of its end fails, and another worker ends it otherwise.

    Both histories have the same length, and their events have the same ids.  (Nothing is streamed, so that the first
    answer has no record yet either.)
    """
    ours, theirs = (field.flow(text(words), run_config=RunConfig()) for words in ("Ours.", "Theirs."))
    async with field.engine(ours) as engine:
        client = AgentSessionClient(engine, ours)
        with faults.arm(FaultPoint(DurableWrite.TURN_ENDED, Moment.BEFORE), Action.RAISE) as armed:
            async with engine.worker():
                await client.start_session(SESSION, "hi")

                async def failed() -> bool:
                    return armed.fired

                await until(failed)
        async with field.working(theirs) as other:
            await other.wait(SESSION, timeout=PATIENCE)
        assert await conversation(client) == ["user: hi", "assistant: Theirs."]
        async with engine.worker():
            await say(client, "again")
        assert prompt(field.requests[-1]) == ["user says hi", "model says Theirs.", "user says again"]
