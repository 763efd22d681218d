"""``Target``: where a conformance run takes place, in a form that child processes get as well."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import Any, cast

from perdure.engine.base import Engine
from perdure.engine.open import open_engine
from perdure.engine.worker import WorkerOptions
from perdure.errors import UsageError
from perdure.session.model import JsonObject
from perdure.session.runner import AgentSessionFlow
from perdure.store.opening import Durability

Opener = Callable[["Target", Sequence[AgentSessionFlow], WorkerOptions], Engine]
"""Makes an engine for a target; nothing is opened before ``async with``."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where to run: an engine and its store.

    Attributes:
        engine: an address of ``open_engine``.
        store: with an engine that only schedules, where sessions are kept; ``None``: the engine's address says it.
        prefix: what all session ids and flow types begin with; letters, digits and ``_``.
        durability: as ``open_engine`` takes it.
        opener: ``module:function`` of an ``Opener``, for an engine or a store of your own; child processes import it,
            too.  ``None``: ``open_engine``.
        restart_services: stops and starts the servers behind the addresses, and returns when they are up.  Cases that
            need it are left out when it is ``None``.  Only this process has it.
    """

    engine: str
    store: str | None = None
    prefix: str = "conformance"
    durability: Durability = "process"
    opener: str | None = None
    restart_services: Callable[[], Awaitable[None]] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.prefix.isidentifier():
            raise UsageError(f"Target.prefix is {self.prefix!r}; use letters, digits and '_', and begin with a letter")

    @property
    def label(self) -> str:
        """Names the target in tables, without what may be secret in an address."""
        engine, store = _kind(self.engine), None if self.store is None else _kind(self.store)
        return f"{'local' if store is None else engine}+{store or engine}"

    def open(self, flows: Sequence[AgentSessionFlow], options: WorkerOptions) -> Engine:
        """An engine, to be entered.

        Raises:
            UsageError: the address is of no known kind, or the opener does not exist.
        """
        if self.opener is not None:
            return _imported(self.opener)(self, flows, options)
        more: dict[str, Any] = {} if self.store is None else {"store": self.store}
        return open_engine(self.engine, flows=flows, durability=self.durability, options=options, **more)

    def to_json(self) -> JsonObject:
        """What another process needs to open the same engine."""
        given = asdict(self)
        del given["restart_services"]
        return given


def _kind(address: str) -> str:
    return address.partition(":")[0]


def _imported(name: str) -> Opener:
    module, _, function = name.partition(":")
    try:
        return cast(Opener, getattr(import_module(module), function))
    except (ImportError, AttributeError) as error:
        raise UsageError(f"Target.opener is {name!r}, which cannot be imported: {error}", opener=name) from error
