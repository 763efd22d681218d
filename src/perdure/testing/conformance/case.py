"""``ConformanceCase``: one promise, with the story that shows it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from perdure.errors import UsageError
from perdure.testing.conformance.life import Builder
from perdure.testing.conformance.stage import Stage

Body = Callable[[Stage], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ConformanceCase:
    """One case.  Make it with ``case``.

    Attributes:
        name: ``area/what-it-shows``.
        promise: in one line, what is promised.
        flow: builds its flow, in every process anew.
        body: the story; it raises when a promise is broken.
        served: a worker in this process serves the flow all the time; otherwise the body brings its workers.
        ordered: its steps, messages and requests have one order.  Branches that go on side by side have none.
        restarts: it restarts the servers, so it is left out where the target cannot.
    """

    name: str
    promise: str
    flow: Builder
    body: Body
    served: bool = True
    ordered: bool = True
    restarts: bool = False

    @property
    def area(self) -> str:
        return self.name.partition("/")[0]

    @property
    def slug(self) -> str:
        """The name as part of an identifier."""
        return self.name.replace("/", "_").replace("-", "_")


def case(
    name: str, promise: str, flow: Builder, *, served: bool = True, ordered: bool = True, restarts: bool = False
) -> Callable[[Body], ConformanceCase]:
    """Makes the function below it a case; the arguments are those of ``ConformanceCase``.

    Raises:
        UsageError: the name is not ``area/what-it-shows``.
    """
    area, _, shows = name.partition("/")
    if not (area.isidentifier() and shows.replace("-", "_").isidentifier()):
        raise UsageError(f"{name!r} is no name of a case; use 'area/what-it-shows'")

    def make(body: Body) -> ConformanceCase:
        return ConformanceCase(name, promise, flow, body, served, ordered, restarts)

    return make
