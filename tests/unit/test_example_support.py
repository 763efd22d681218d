"""The example agent works on plain ADK, its writes are real, and it never plays a script unasked."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from examples.support import agent as support
from examples.support.ledger import RefundRefused, open_ledger, refund
from examples.support.model import MODEL, NO_KEY, choose_model
from examples.support.tools import check_stock, get_shipping_status
from google.adk.agents import Agent
from google.adk.cli.utils.agent_loader import AgentLoader
from google.adk.events import Event
from tests.support.plain_adk import run_turns, spoken

from perdure import ToolEffect, ToolExecutionError, UsageError
from perdure.testing import ScriptedModel

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def books(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger and an outbox of the test's own."""
    monkeypatch.setenv("SUPPORT_LEDGER", str(tmp_path / "ledger.db"))
    monkeypatch.setenv("SUPPORT_OUTBOX", str(tmp_path / "outbox.jsonl"))


async def serve(*messages: str) -> list[Event]:
    agent = support.root_agent.clone(update={"model": choose_model({"SUPPORT_SCRIPTED": "1"})})
    assert isinstance(agent, Agent)
    return await run_turns(agent, *messages)


def refunds() -> list[tuple[str, int]]:
    with open_ledger() as ledger:
        return [tuple(row) for row in ledger.execute("SELECT order_id, amount_cents FROM refunds ORDER BY order_id")]


async def test_a_refund_moves_money_once() -> None:
    events = await serve("Refund my last order, I am customer 9")
    assert spoken(events) == [("support", "refund_order: refund id 1, order id 1002, amount cents 1850.")]
    assert refunds() == [("1002", 1850)]


async def test_a_second_refund_of_an_order_is_refused_by_the_books() -> None:
    refund("1002", "another key")
    with pytest.raises(ToolExecutionError, match="order 1002 was refunded already"):
        await serve("Refund my last order, I am customer 9")
    assert refunds() == [("1002", 1850)]


async def test_stock_and_shipping_are_asked_for_together() -> None:
    events = await serve("Where is my order? I am customer 7")
    calls = [[call.name for call in event.get_function_calls()] for event in events if event.get_function_calls()]
    assert calls == [["search_orders"], ["check_stock", "get_shipping_status"]]
    assert spoken(events) == [
        (
            "support",
            "check_stock: sku desk-lamp, pieces 12; get_shipping_status: order id 1003, shipping being packed.",
        )
    ]


async def test_mail_goes_to_the_outbox(tmp_path: Path) -> None:
    await serve("Please mail me at ann@example.com, customer 9")
    [mail] = [json.loads(line) for line in (tmp_path / "outbox.jsonl").read_text().splitlines()]
    assert mail == {"to": "ann@example.com", "subject": "Your orders", "body": "You have 2 orders with us."}


async def test_other_messages_and_customers_without_orders_get_an_answer() -> None:
    events = await serve("Hello", "Refund my order, I am customer 1", "Where is it? I am customer 1")
    assert [words[:20] for _, words in spoken(events)] == ["I can tell where you"] + ["I find no order of y"] * 2


def test_one_key_refunds_once_even_at_the_same_time() -> None:
    with ThreadPoolExecutor(8) as threads:
        made = [threads.submit(refund, "1001", "key") for _ in range(32)]
    assert {call.result()["refund_id"] for call in made} == {1}
    assert refunds() == [("1001", 4990)]


def test_what_does_not_exist_is_refused() -> None:
    with pytest.raises(RefundRefused, match="there is no order 9999"):
        refund("9999", "key")
    with pytest.raises(ToolExecutionError, match="there is no order 9999"):
        get_shipping_status("9999")
    assert check_stock("anvil") == {"sku": "anvil", "pieces": 0}


def test_gemini_needs_a_key_and_nothing_else() -> None:
    assert choose_model({"GOOGLE_API_KEY": "k"}) == MODEL


async def test_without_a_key_it_says_so_instead_of_playing_a_script() -> None:
    model = choose_model({"SUPPORT_SCRIPTED": "0"})
    assert isinstance(model, ScriptedModel)
    with pytest.raises(UsageError, match="set GOOGLE_API_KEY") as caught:
        await run_turns(Agent(name="support", model=model), "Hello")
    assert str(caught.value) == NO_KEY


def test_a_script_is_played_only_on_request() -> None:
    assert isinstance(choose_model({"GOOGLE_API_KEY": "k", "SUPPORT_SCRIPTED": "1"}), ScriptedModel)


def test_adks_own_tools_can_load_it() -> None:
    loaded = AgentLoader(str(EXAMPLES)).load_agent("support")
    assert isinstance(loaded, Agent)
    assert loaded.name == "support"


def test_each_policy_names_a_tool() -> None:
    def name_of(tool: object) -> str:
        assert callable(tool)
        return str(getattr(tool, "__name__", ""))

    policies = support.perdure_options["tool_policies"]
    tools = {name_of(tool) for tool in support.root_agent.tools}
    assert tools - set(policies) == {"send_email"}
    assert set(policies) <= tools
    assert policies["refund_order"].effect is ToolEffect.IDEMPOTENT_WRITE
    assert policies["refund_order"].requires_approval
