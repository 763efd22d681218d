"""What a type checker makes of ``durable_step``.  It is not run: the checkers complain when an inferred type moves."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, assert_type

from google.adk.agents.context import Context

from perdure.adk import durable_step


def count() -> int | None:
    return 1


async def charge(amount: int) -> str:
    return f"receipt of {amount}"


def local_or_remote(amount: int) -> str | Awaitable[str]:
    return charge(amount) if amount else "nothing"


async def each_form(context: Context, done: list[str], loose: dict[str, Any]) -> None:
    assert_type(await durable_step(context, "function", count), int | None)
    assert_type(await durable_step(context, "lambda", lambda: len(done)), int)
    assert_type(await durable_step(context, "lambda around a coroutine", lambda: charge(1)), str)
    assert_type(await durable_step(context, "either", lambda: local_or_remote(1)), str)
    assert_type(await durable_step(context, "untyped", lambda: loose["x"]), Any)
    await durable_step(context, "no value", lambda: done.append("x"))
