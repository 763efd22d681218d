"""Field case 19: a worker dies in a workflow; finished nodes do not run again, and nobody needs to know an id."""

from __future__ import annotations

from tests.field.lives import GO_ON, life
from tests.field.support import PATIENCE, SESSION, Field, messages_of, steps_of, turn_of
from tests.field.workflows import fails_once, scoped

from perdure import TurnStatus


async def test_a_worker_dies_in_a_node_and_only_that_one_runs_again(field: Field) -> None:
    """Case 19, with SIGKILL."""
    with life(fails_once, field) as child:
        async with field.asking() as client:
            await client.start_session(SESSION, "go")
            await child.wait_for_async("in second")
            child.kill()
    async with field.working(fails_once(field, GO_ON)) as client:
        assert turn_of(await client.wait(SESSION, timeout=PATIENCE)).status is TurnStatus.COMPLETED
        attempts = {step.tool_name: step.attempts for step in await steps_of(client) if step.name.value == "CallTool"}
    assert field.world == ["first", "second", "second", "third second"]
    assert attempts == {"first": 1, "second": 2, "third": 1}


async def test_a_worker_dies_below_a_node_that_starts_others_and_costs_it_no_attempt(field: Field) -> None:
    with life(scoped, field) as child:
        async with field.asking() as client:
            await client.start_session(SESSION, "go")
            await child.wait_for_async("in work two")
            child.kill()
    async with field.working(scoped(field, GO_ON)) as client:
        assert turn_of(await client.wait(SESSION, timeout=PATIENCE)).status is TurnStatus.COMPLETED
        calls = [step for step in await steps_of(client) if step.name.value == "CallTool"]
        assert [(step.tool_call_id, step.attempts) for step in calls] == [
            ("managing@1/manage@1#1", 1),
            ("managing@1/manage@1/work@1#1", 1),
            ("managing@1/manage@1/work@2#1", 2),
            ("managing@1/close@1#1", 1),
        ]
        assert (await messages_of(client))[-1].framework_item["output"] == "ONETWO"
    assert field.world == ["manage", "work one", "work two", "manage", "work two", "close ONETWO"]
