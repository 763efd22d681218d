"""The tree of what runs in a live invocation.

A *run* is one run of an agent, of a workflow node, or the *scope* of a tool that runs agents of its own; the root is
the invocation itself.  A run moves, or it is at rest: it waits at the gate of a model call, for records of calls, or
for its children.  Plain data; ``conductor`` moves it.

The code of a run finds it in ``current_run``.  Each branch of an invocation has a task, and so a context, of its own;
a generator that shares its task with its consumer is entered and left at each step (``streamed``).

To make something a run: ``with conductor.run(name):`` around a coroutine; ``run = conductor.begin_run(name)``,
``streamed(run, generator)`` and ``conductor.end_run(run)`` around a generator.  The parent is the current run.  A run
with children is at rest when all of them are, and moves when it has none: one between two children is on its way.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from perdure.session.runner import ModelCall

T = TypeVar("T")
V = TypeVar("V")


class RunState(enum.Enum):
    RUNNING = "running"
    """Code of ADK or of the application runs, or the run's children do."""
    GATED = "gated"
    """Wants to make a model call and was not let through yet."""
    IN_MODEL = "in_model"
    SETTLED = "settled"
    """Its model call has its record and goes on when its turn comes."""


@dataclass(slots=True)
class Gate:
    """A model call that wants to go on: with a record, or with ``None`` for a call to the real model."""

    key: str
    opened: asyncio.Future[ModelCall | None]


@dataclass(slots=True, eq=False, weakref_slot=True)
class Run:
    """A node of the tree.

    Attributes:
        id: the same live and in every replay: the names from the root down, each with its number among its siblings.
        ids: where ADK's ids come from in this run, so that branches do not take them from each other.
        random: where its random numbers come from, once it has asked for one.
        last_time: what it read off the clock last.
        scope: the ids of the tool calls around it that run agents of their own, outermost first.
        place: where it is, for people: the agents and calls around the scope; empty outside of any.
        model_key: of its last model call.
        unaccounted: groups of calls of which it is not known yet what becomes of each call.
        held: its generator stands at a ``yield``: what goes on is the code that took the item.
        waiting: groups of calls some of which have no record yet, while it is known what becomes of the others.
        busy: reasons why it moves although it looks as if it were waiting for its children.
        shadow: it waits for a call that is its parent's; without children it is as if it were not there.
    """

    id: str
    parent: Run | None
    ids: Iterator[str]
    scope: str = ""
    place: str = ""
    state: RunState = RunState.RUNNING
    gate: Gate | None = None
    model_key: str = ""
    unaccounted: int = 0
    waiting: int = 0
    busy: int = 0
    shadow: bool = False
    held: bool = False
    random: Random | None = None
    last_time: float = 0.0
    children: list[Run] = field(default_factory=list["Run"])
    _begun: dict[str, int] = field(default_factory=dict[str, int])

    def child_id(self, name: str) -> str:
        """The id of the next child of this name."""
        number = self._begun[name] = self._begun.get(name, 0) + 1
        return f"{self.id}/{name}@{number}"

    @property
    def at_rest(self) -> bool:
        """Whether it cannot move by itself.  One between two children can."""
        return self._stands((RunState.GATED,))

    @property
    def still(self) -> bool:
        """Whether none of its code runs at this moment; models may be busy, and what they answered may wait."""
        return self._stands((RunState.GATED, RunState.IN_MODEL, RunState.SETTLED))

    def _stands(self, standing: tuple[RunState, ...]) -> bool:
        if self.state is not RunState.RUNNING:
            return self.state in standing
        children = [child for child in self.children if child.children or not child.shadow]
        if self.busy or self.unaccounted or not (self.waiting or children):
            return False
        return all(child._stands(standing) for child in children)

    def is_below(self, other: Run) -> bool:
        """Whether the run is in the tree under another one."""
        run: Run | None = self.parent
        while run is not None and run is not other:
            run = run.parent
        return run is not None

    def walk(self) -> Iterator[Run]:
        """The run and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


current_run: ContextVar[Run | None] = ContextVar("perdure_current_run", default=None)
"""The innermost run that the present code belongs to."""

_held_run: ContextVar[Run | None] = ContextVar("perdure_held_run", default=None)


def held_run() -> Run | None:
    """The run whose generator the present code has taken an item from and holds, if it does.

    A run that such code begins is below the held one, which cannot move before it does.  (ADK runs the task of a
    delegation so: while it holds the coordinator.)
    """
    run = _held_run.get()
    return run if run is not None and run.held else None


async def streamed(run: Run, items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """What ``items`` gives.  Its code, and that alone, finds ``run`` as the current one."""
    async with aclosing(entered(current_run, run, items)) as inside:
        try:
            while True:
                run.held = False
                try:
                    item = await anext(inside)
                except StopAsyncIteration:
                    return
                run.held = True
                _held_run.set(run)
                yield item
        finally:
            run.held = False


async def entered(variable: ContextVar[V], value: V, items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """What ``items`` gives.  Its code, and that alone, finds ``value`` in ``variable``."""
    try:
        while True:
            token = variable.set(value)
            try:
                item = await anext(items)
            except StopAsyncIteration:
                return
            finally:
                variable.reset(token)
            yield item
    finally:
        token = variable.set(value)
        try:
            await items.aclose()
        finally:
            variable.reset(token)
