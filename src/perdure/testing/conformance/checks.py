"""What the bodies of cases assert with: failures that can be read without pytest."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from perdure.errors import PerdureError


class ConformanceFailure(AssertionError):
    """The target does not do what a case promises; the message says what was expected and what was found."""


def same(what: str, found: object, expected: object) -> None:
    """Raises: ConformanceFailure: ``found`` is not ``expected``."""
    if found != expected:
        raise ConformanceFailure(f"{what}:\n  expected {expected!r}\n  found    {found!r}")


def holds(what: str, true: object) -> None:
    """Raises: ConformanceFailure: it is not so."""
    if not true:
        raise ConformanceFailure(f"{what}: it is not so")


@dataclass(slots=True)
class Refusal:
    """What was refused; ``error`` is there when the block is left."""

    error: PerdureError | None = None


@contextmanager
def refused(kind: type[PerdureError]) -> Generator[Refusal]:
    """The block must be refused with exactly this error.

    Raises:
        ConformanceFailure: it was not, or with another one.
    """
    refusal = Refusal()
    try:
        yield refusal
    except PerdureError as error:
        if type(error) is not kind:
            raise ConformanceFailure(f"expected {kind.__name__}, was refused with {error!r}") from error
        refusal.error = error
    else:
        raise ConformanceFailure(f"expected {kind.__name__}, and nothing was refused")
