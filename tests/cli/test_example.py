"""``examples/support`` and agents on Gemini, as the README shows them: through the command line, on real ADK."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.cli.conftest import Cli
from tests.support.terminal import ROOT, Terminal, run_program

from perdure.testing import GeminiServer, call, failing, reply, text, thought

EXAMPLE = str(ROOT / "examples" / "support")


def refunds(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "ledger.db")) as ledger:
        return int(ledger.execute("SELECT count(*) FROM refunds").fetchone()[0])


def test_the_example_refunds_once_and_asks_first(folder: Path, cli: Cli) -> None:
    lines = "Refund my last order, I am customer 9\ny\nWhere is it, customer 9?\n"
    done = run_program("chat", EXAMPLE, cwd=folder, stdin=lines, SUPPORT_SCRIPTED="1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("new session chat-SupportAgent\n")
    assert '? refund_order  (approval)\n  order_id = "1002"\n' in done.stdout
    assert '→ refund_order(order_id="1002")\n✓ refund_order\n' in done.stdout
    assert "→ get_shipping_status" in done.stdout
    assert refunds(folder) == 1
    assert "assistant" in {one["role"] for one in cli.json("sessions", "messages", "chat-SupportAgent")["items"]}


def test_the_example_goes_on_after_a_kill_at_its_question(folder: Path) -> None:
    with Terminal("chat", EXAMPLE, cwd=folder, SUPPORT_SCRIPTED="1") as terminal:
        terminal.expect("> ")
        terminal.write("Refund my last order, I am customer 9\n")
        terminal.expect("why not > ")
        terminal.kill()
    done = run_program("chat", EXAMPLE, cwd=folder, stdin="y\n", SUPPORT_SCRIPTED="1")
    assert "✓ refund_order\nrefund_order: " in done.stdout
    assert refunds(folder) == 1


def test_text_is_shown_once_though_it_is_streamed_and_stored(folder: Path) -> None:
    done = run_program("chat", EXAMPLE, cwd=folder, stdin="hello\n", SUPPORT_SCRIPTED="1")
    assert done.stdout.count("I can tell where your order is") == 1


def test_a_missing_key_is_said_with_a_hint(folder: Path) -> None:
    (folder / "gemini.py").write_text(
        "from google.adk.agents import LlmAgent\nroot_agent = LlmAgent(name='gemini', model='gemini-2.5-flash')\n",
        encoding="utf-8",
    )
    done = run_program("chat", "gemini.py", cwd=folder, stdin="hello\n")
    assert done.returncode == 1
    assert "the turn failed: No API key was provided" in done.stdout
    assert "hint: the agent uses Gemini, and GOOGLE_API_KEY is not set" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_with_a_key_the_example_talks_to_gemini_over_googles_own_client(folder: Path) -> None:
    """The real client, streaming, against a server that speaks the Gemini REST protocol."""
    script = [
        reply(thought("Look first.", signature=b"\x00sig\xff"), call("search_orders", customer_id="9")),
        call("refund_order", order_id="1002"),
        text("Your kettle is refunded.", chunks=3),
    ]
    with GeminiServer(script) as server:
        lines = "Refund my last order, I am customer 9\ny\n"
        done = run_program("chat", EXAMPLE, cwd=folder, stdin=lines, **server.environment)
        received = [request.path for request in server.received]
        requests = server.requests
    assert (done.returncode, done.stderr) == (0, "")
    assert "Your kettle is refunded." in done.stdout
    assert refunds(folder) == 1
    assert len(received) == 3
    assert all("streamGenerateContent" in path for path in received)
    model_parts = [part for content in requests[-1].contents if content.role == "model" for part in content.parts or []]
    assert b"\x00sig\xff" in [part.thought_signature for part in model_parts], "the signature goes back to the model"


def test_gemini_being_busy_is_waited_out(folder: Path) -> None:
    with GeminiServer(failing(503, times=2, then=text("Here I am."))) as server:
        done = run_program("chat", EXAMPLE, cwd=folder, stdin="hello\n", **server.environment)
        assert len(server.received) == 3
    assert done.returncode == 0
    assert "Here I am." in done.stdout
