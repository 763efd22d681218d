"""The mark on a function that perdure has put where one of ADK was: that is done once per process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_MARK = "_perdure_installed"

F = TypeVar("F", bound=Callable[..., Any])


def ours(function: F) -> F:
    """The function, marked."""
    setattr(function, _MARK, True)
    return function


def is_ours(function: Callable[..., Any]) -> bool:
    """Whether the function has been put there already."""
    return getattr(function, _MARK, False)
