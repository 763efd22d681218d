"""What callers pass, checked: an argument of the wrong type is named, with what it should be and what it is.

Imports the errors only.  ``UsageError`` (or a kind of it that the caller picks) leaves this module.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable
from typing import cast

from perdure.errors import UsageError

_LONGEST = 120
"""Characters of a value or a path in a message."""

_reader = reprlib.Repr()
_reader.maxstring = _reader.maxother = _LONGEST


def shown(value: object) -> str:
    """A value for a message: its ``repr``, with the middle of what is long left out."""
    return shortened(_reader.repr(value))


def shortened(text: str) -> str:
    """A text for a message, without its middle when it is long."""
    if len(text) <= _LONGEST:
        return text
    half = (_LONGEST - 3) // 2
    return f"{text[:half]}...{text[-half:]}"


def wrong(argument: str, value: object, wanted: str, kind: type[UsageError] = UsageError) -> UsageError:
    """The error for an argument that is not what it must be."""
    return kind(f"{argument} is {shown(value)}; it must be {wanted}", argument=argument)


def expect(
    value: object,
    types: type | tuple[type, ...],
    argument: str,
    wanted: str,
    *,
    optional: bool = False,
    kind: type[UsageError] = UsageError,
) -> None:
    """Refuses an argument that is of none of these types.

    Args:
        optional: ``None`` will do, too.
        kind: the class of the error.

    Raises:
        UsageError: names the argument, what it must be and what it is.
    """
    if (optional and value is None) or isinstance(value, types):
        return
    raise wrong(argument, value, f"{wanted}, or None" if optional else wanted, kind)


def expect_secret(value: object, kind: type, argument: str, wanted: str) -> None:
    """Refuses what is neither of this type nor ``None``, without showing it.  Raises: UsageError."""
    if value is not None and not isinstance(value, kind):
        raise UsageError(
            f"{argument} is of type {type(value).__name__}; it must be {wanted}, or None", argument=argument
        )


def expect_seconds(value: object, argument: str) -> None:
    """Refuses what is neither a finite number nor ``None``.  Raises: UsageError."""
    if value is not None and (not isinstance(value, (int, float)) or not math.isfinite(value)):
        raise wrong(argument, value, "a finite number of seconds, or None")


def expect_count(value: object, argument: str, least: int = 0) -> None:
    """Refuses what is no whole number of at least ``least``.  Raises: UsageError."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise wrong(argument, value, f"an int of at least {least}")


def expect_each(
    values: object, types: type | tuple[type, ...], argument: str, wanted: str, kind: type[UsageError] = UsageError
) -> None:
    """Refuses what is no sequence of values of these types.  Raises: UsageError."""
    expect(values, (list, tuple), argument, f"a list of {wanted}", kind=kind)
    for index, value in enumerate(cast("Iterable[object]", values)):
        expect(value, types, f"{argument}[{index}]", wanted, kind=kind)
