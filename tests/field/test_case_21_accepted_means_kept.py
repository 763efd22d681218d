"""Field case 21: once ``send`` has returned, the message survives a kill.  ``tests/crash`` has every write."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.field.support import PATIENCE, SESSION, Field, conversation

from perdure import AgentSessionClient, AgentSessionFlow, SessionStatus
from perdure.testing import WorkerChild, call, text


def echoing(field: Field) -> AgentSessionFlow:
    def note(words: str) -> str:
        """Notes."""
        field.note(words)
        return "noted"

    return field.flow([call("note", words="x"), text("Yes.")], [note], approvals="declared")


async def send_and_die(folder: str, at_work: bool) -> None:
    """Sends three messages and dies with the return of the last one; with a worker in the process, or without."""
    field = Field(Path(folder))
    flow = echoing(field)
    async with field.working(flow) if at_work else field.asking(flow) as client:
        await _send(client)
        os.kill(os.getpid(), signal.SIGKILL)


async def _send(client: AgentSessionClient) -> None:
    await client.start_session(SESSION, "one", state={"tenant": "t1"})
    await client.send_user_message(SESSION, "two", request_id="r2")
    await client.send_user_message(SESSION, "three", state_delta={"k": "v"}, request_id="r3")


@pytest.mark.parametrize("at_work", [False, True])
async def test_a_message_survives_a_kill_at_the_moment_that_send_returns(field: Field, at_work: bool) -> None:
    """Case 21.  On plain ADK a crash before the first checkpoint loses an accepted message."""
    with WorkerChild.of(send_and_die, str(field.folder), at_work) as child:
        assert await child.wait_exit_async() == -signal.SIGKILL
    async with field.working(echoing(field)) as client:
        await client.wait(SESSION, timeout=PATIENCE)
        await client.send_user_message(SESSION, "three", state_delta={"k": "v"}, request_id="r3")
        snapshot = await client.wait(SESSION, timeout=PATIENCE)
        assert snapshot.status is SessionStatus.IDLE
        said = [line.removeprefix("user: ") for line in await conversation(client) if line.startswith("user")]
        assert said == ["one", "two", "three"], "each once, in order, the repeated request not twice"
        assert snapshot.state == {"tenant": "t1", "k": "v"}
        assert len(field.world) <= 3
