"""Field case 34: a model that is overloaded for a while, and one that stays so."""

from __future__ import annotations

import pytest
from tests.field.support import READ, Field, conversation, messages_of, prompt, say, steps_of, turn_of

from perdure import SessionStatus, TurnStatus
from perdure.testing import by_message, call, failing, text


@pytest.mark.parametrize("status", [429, 503])
async def test_a_model_that_fails_twice_answers_one_message_once(field: Field, status: int) -> None:
    """Case 34.  On plain ADK a caller that sends again stores the message again."""
    flow = field.flow(failing(status, times=2, then=text("Hello.")))
    async with field.working(flow) as client:
        snapshot = await say(client, "hi")
        assert turn_of(snapshot).status is TurnStatus.COMPLETED
        assert await conversation(client) == ["user: hi", "assistant: Hello."]
        assert len(field.requests) == 3
        assert snapshot.usage.model_calls == 3, "requests made, the failed ones too"
        models = [step for step in await steps_of(client) if step.name.value == "RunModel"]
        assert [step.status.value for step in models] == ["succeeded"], "tries are inside the step"


@pytest.mark.parametrize(("status", "tries"), [(503, 3), (429, 3), (400, 1)])
async def test_the_turn_after_a_failed_one_does_not_do_the_old_task(field: Field, status: int, tries: int) -> None:
    """Case 34.  On plain ADK the next question carries the old task along, and its tool runs then."""

    def pay() -> str:
        """Pays."""
        field.note("pay")
        return "paid"

    script = by_message({"pay": [call("pay"), failing(status)], "weather": text("Sunny.")})
    async with field.working(field.flow(script, [pay], {"pay": READ})) as client:
        snapshot = await say(client, "pay them")
        first = turn_of(snapshot)
        assert (snapshot.status, first.status) == (SessionStatus.IDLE, TurnStatus.FAILED)
        error = first.error
        assert error is not None
        assert error.code in ("ClientError", "ServerError")
        assert str(status) in error.message
        assert snapshot.error == error
        assert len(field.requests) == 1 + tries
        snapshot = await say(client, "how is the weather?")
        assert (turn_of(snapshot).number, turn_of(snapshot).status) == (2, TurnStatus.COMPLETED)
        assert snapshot.error is None
        assert field.world == ["pay"], "the old task's tool ran in its own turn only"
        seen = prompt(field.requests[-1])
        assert seen[:3] == ["user says pay them", "model calls pay", 'user answers pay {"result": "paid"}']
        assert seen[-1] == "user says how is the weather?"
        (note,) = seen[3:-1]
        assert note.startswith("user says Note: the work on the request above failed before it was finished")
        assert "- pay(): it succeeded; do not repeat it" in note
        (stored,) = [m for m in await messages_of(client) if m.text.startswith("Note:")]
        assert (stored.author, stored.role.value, stored.turn_id) == ("user", "user", first.turn_id)
