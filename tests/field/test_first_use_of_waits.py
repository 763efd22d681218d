"""What somebody met who used waits and nested agents for the first time; each is right now."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.agents import LlmAgent, SequentialAgent
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.get_user_choice_tool import get_user_choice_tool
from tests.field.support import SESSION, Field, answers_in, durable, messages_of, say, steps_of
from tests.field.test_long_running_waits import agent

from perdure import InterruptKind, MessageRole, SessionStatus, ToolEffect, ToolPolicy, UsageError
from perdure.testing import call, text, user_text


async def test_an_agent_behind_a_streamed_long_running_call_runs(field: Field) -> None:
    """Answers stream by default, and a partial response has the call, too, under an id of its own."""
    waiting = agent(field, "waiting", call("render", what="a"), text("Rendered."))
    behind = LlmAgent(name="behind", model=field.model([text("Published.")]))
    flow = durable(SequentialAgent(name="line", sub_agents=[waiting, behind]), {"render": ToolPolicy(ToolEffect.READ)})
    async with field.working(flow) as client:
        (interrupt,) = (await say(client, "go")).pending_interrupts
        await client.answer_question(SESSION, interrupt.interrupt_id, {"url": "x"})
        snapshot = await client.wait(SESSION)
        assert snapshot.status is SessionStatus.IDLE
        assert [message.text for message in await messages_of(client)][-2:] == ["Rendered.", "Published."]


async def test_a_task_that_asks_the_user_goes_on_with_the_next_message(field: Field) -> None:
    """ADK runs that message under the invocation id of the task; the turn has its own, and so have its keys."""
    keys: list[str] = []

    def size(tool_context: Any) -> str:
        """Sizes."""
        keys.append(tool_context.custom_metadata["perdure_idempotency_key"])
        return "XL"

    def sizing(request: LlmRequest) -> Any:
        if "size" in answers_in(request):
            return call("finish_task", result="sized")
        return call("size") if "XL" in user_text(request) else text("What size?")

    task = LlmAgent(name="sizer", description="Sizes.", mode="task", model=field.model(sizing), tools=[size])
    root = LlmAgent(
        name="root", model=field.model([call("sizer", request="size"), text("All sized.")]), sub_agents=[task]
    )
    flow = durable(root, {"size": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE)})
    async with field.working(flow) as client:
        await say(client, "go")
        snapshot = await say(client, "XL")
        assert snapshot.error is None
        assert (await messages_of(client))[-1].text == "All sized."
        assert snapshot.turn is not None
        assert [key.split("/")[1] for key in keys] == [snapshot.turn.turn_id]


@pytest.mark.parametrize(
    "wrong",
    [
        {"approved": "no"},
        {"approved": 1},
        {"approved": None},
        {"approved": {"approved": False}},
        {"approved": False, "message": 5},
        {"approved": True, "resolved_by": 5},
        {"approved": True, "resolved_by": {"name": "Ann"}},
    ],
)
async def test_a_verdict_of_the_wrong_type_is_refused_and_decides_nothing(field: Field, wrong: dict[str, Any]) -> None:
    ran: list[str] = []

    def pay(order: str) -> str:
        """Pays."""
        ran.append(order)
        return "paid"

    teller = LlmAgent(name="teller", model=field.model([call("pay", order="1"), text("Done.")]), tools=[pay])
    async with field.working(durable(teller)) as client:
        (interrupt,) = (await say(client, "go")).pending_interrupts
        with pytest.raises(UsageError):
            await client.resolve_interrupt(SESSION, interrupt.interrupt_id, **wrong)
        assert (await client.get_agent_snapshot(SESSION)).pending_interrupts == (interrupt,)
        await client.resolve_interrupt(SESSION, interrupt.interrupt_id, approved=False)
        assert (await client.wait(SESSION)).status is SessionStatus.IDLE
    assert ran == []


async def test_a_write_whose_result_cannot_be_kept_is_said_to_have_run(field: Field) -> None:
    def pay() -> Any:
        """Pays."""
        return float("nan"), object()

    teller = LlmAgent(name="teller", model=field.model([call("pay"), text("Done.")]), tools=[pay])
    policy = ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=False)
    async with field.working(durable(teller, {"pay": policy})) as client:
        await say(client, "go")
        (told,) = [m.framework_item for m in await messages_of(client) if m.role is MessageRole.TOOL]
        error = told["content"]["parts"][0]["function_response"]["response"]["error"]
        assert "cannot be stored" in error
        assert "has run all the same" in error
        (step,) = [step for step in await steps_of(client) if step.tool_name == "pay"]
        assert step.attempts == 1


async def test_a_tool_that_only_asks_the_user_needs_no_approval(field: Field) -> None:
    asking = LlmAgent(
        name="asking",
        model=field.model([call("get_user_choice", options=["a", "b"]), text("Done.")]),
        tools=[get_user_choice_tool],
    )
    async with field.working(durable(asking)) as client:
        (interrupt,) = (await say(client, "go")).pending_interrupts
        assert interrupt.kind is InterruptKind.LONG_RUNNING
