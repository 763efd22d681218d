"""Nonsense for every argument of a public function, and what an error about it must say."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from typing import Any, cast

from perdure import Conflict, NotFound, UsageError
from perdure.arguments import shown

PATIENCE = 20.0
"""Seconds after which a call counts as hanging."""

ADVICE = ("must be", "give ", "use ", "pass ", "should be", "it takes", "store only", "leave ", "require")
"""Words of an error that says what to do."""


def nonsense() -> list[Any]:
    """What no argument expects, though some take the one or the other."""
    return [None, 3, math.nan, "x", [], {}, object()]


def arguments_of(function: Callable[..., Any]) -> list[str]:
    """The names of a function's arguments, those that gather the rest left out."""
    gathers = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [one.name for one in parameters if one.kind not in gathers]


async def carried_out(function: Callable[..., Any], given: Mapping[str, Any], first_only: bool) -> None:
    """Calls a function of any kind, and takes what it yields (or the first of it)."""
    async with asyncio.timeout(PATIENCE):
        outcome = function(**given)
        if inspect.isasyncgen(outcome):
            async with aclosing(cast("AsyncGenerator[Any, None]", outcome)) as items:
                async for _ in items:
                    if first_only:
                        return
        elif inspect.isgenerator(outcome):
            await asyncio.to_thread(list, cast("Iterator[Any]", outcome))
        elif inspect.isawaitable(outcome):
            await outcome


async def fault_in_answer(
    function: Callable[..., Any], given: Mapping[str, Any], argument: str, bad: Any, *, first_only: bool = False
) -> str | None:
    """What is wrong with how a function takes nonsense; ``None`` when it works or is refused well."""
    where = f"{getattr(function, '__qualname__', function)}({argument}={bad!r})"
    try:
        await carried_out(function, {**given, argument: bad}, first_only)
    except (UsageError, TypeError, ValueError) as error:
        return _fault_in_text(where, str(error), argument, bad)
    except (NotFound, Conflict) as error:
        if isinstance(bad, str) and (repr(bad) in str(error) or f" {bad}" in str(error)):
            return None  # it is a name, of something that is not there
        return f"{where}: {type(error).__name__}: {error}"
    except BaseException as error:  # noqa: BLE001  (whatever else it is, it is the fault)
        return f"{where}: {type(error).__name__}: {error}"
    return None


def _fault_in_text(where: str, text: str, argument: str, bad: Any) -> str | None:
    named = argument in text or argument.replace("_", " ") in text
    says_what = any(form in text for form in (shown(bad), repr(bad), f"type {type(bad).__name__}", "empty"))
    says_what = (
        says_what
        or bad is None
        or (bad == {} and "no parts" in text.lower())
        or (type(bad) is object and "object" in text)
    )
    advises = any(words in text for words in ADVICE)
    if named and says_what and advises:
        return None
    missing = [what for what, there in (("name", named), ("value", says_what), ("advice", advises)) if not there]
    return f"{where}: no {', no '.join(missing)} in: {text}"
