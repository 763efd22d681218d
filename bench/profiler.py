"""Where the CPU time of a block goes: to ADK, to perdure, or to the event loop; and how long the loop only waits.

yappi counts the CPU time of every function in every thread.  Time inside a library (json, pydantic, sqlite3) says
little by itself, so it is charged to the functions of perdure, ADK or the benchmark that led to it, in proportion to
what they spent there: "own time, with the libraries it calls".  Being watched makes everything slower, most of all
small functions: trust the shares, not the sums.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeVar

import google.adk
import google.genai
from rich.console import Console
from rich.table import Table

import bench
import perdure

HOPS = 40
"""How far outward library time is carried to find who led to it."""

MAIN_THREAD = threading.main_thread().name


def _folder(module_file: str | None) -> str:
    assert module_file is not None
    return str(Path(module_file).parent) + "/"


OWNERS = {
    "perdure": _folder(perdure.__file__),
    "ADK": _folder(google.adk.__file__),
    "genai": _folder(google.genai.__file__),
    "bench": _folder(bench.__file__),
}
LOOP = "event loop"
"""What nobody asked for: the event loop's own work, and a thread's waiting for its next job."""


@dataclass(frozen=True, slots=True)
class Place:
    """A function, whose it is, and the thread it ran in."""

    thread: str
    owner: str
    name: str


@dataclass(slots=True)
class Profile:
    """What was found, in seconds.

    Attributes:
        own: CPU time by place, the libraries that it called included.
        libraries: of each place, the part that was spent in each library function that it called directly.
        calls: of each place, how often it was called.
        wall: length of the block.
    """

    own: dict[Place, float] = field(default_factory=dict[Place, float])
    libraries: dict[Place, dict[str, float]] = field(default_factory=dict[Place, dict[str, float]])
    calls: dict[Place, int] = field(default_factory=dict[Place, int])
    wall: float = 0.0

    def by_owner(self) -> dict[tuple[str, str], float]:
        """CPU time by thread and owner."""
        sums: dict[tuple[str, str], float] = {}
        for place, spent in self.own.items():
            add(sums, (place.thread, place.owner), spent)
        return sums

    @property
    def waiting(self) -> float:
        """How long the event loop's thread had nothing to do, or waited for the interpreter's lock or the disk."""
        return self.wall - sum(spent for place, spent in self.own.items() if place.thread == MAIN_THREAD)


K = TypeVar("K")


def add(sums: dict[K, float], key: K, value: float) -> None:
    sums[key] = sums.get(key, 0.0) + value


def largest(sums: Mapping[K, float], count: int) -> list[tuple[K, float]]:
    """The largest entries, largest first."""
    return sorted(sums.items(), key=lambda item: item[1], reverse=True)[:count]


class Callee(Protocol):
    """What yappi knows of a function as called by another one."""

    index: int
    ttot: float


class Function(Protocol):
    """What yappi knows of a function; ``tsub`` is its own CPU time, in seconds."""

    index: int
    name: str
    module: str
    lineno: int
    builtin: bool
    ncall: int
    tsub: float
    children: Iterable[Callee]


@contextmanager
def profiled() -> Generator[Profile]:
    """Profiles all threads for the length of the block; the profile is filled on leaving it.

    Raises:
        ImportError: yappi is not installed.
    """
    yappi: Any = import_module("yappi")  # it comes without types
    found = Profile()
    yappi.set_clock_type("cpu")
    yappi.clear_stats()
    begun = time.perf_counter()
    yappi.start(builtins=True)
    try:
        yield found
    finally:
        yappi.stop()
        found.wall = time.perf_counter() - begun
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for thread in yappi.get_thread_stats():
            functions = yappi.get_func_stats(filter={"ctx_id": thread.id})
            _Carrier(str(names.get(thread.tid, thread.name)), functions).carry_into(found)


class _Carrier:
    """The functions of one thread, and the way of library time outward to whoever called the library."""

    def __init__(self, thread: str, functions: Iterable[Function]) -> None:
        self._thread = thread
        self._functions = {function.index: function for function in functions}
        self._callers: dict[int, dict[int, float]] = {}
        """Of each function: the share that each of its callers has in its time."""
        for caller in self._functions.values():
            for callee in caller.children:
                if callee.index in self._functions and callee.index != caller.index:
                    add(self._callers.setdefault(callee.index, {}), caller.index, callee.ttot)

    def carry_into(self, profile: Profile) -> None:
        for index, function in self._functions.items():
            owner = self._owner(index)
            if owner is not None:
                place = self._place(index, owner)
                add(profile.own, place, function.tsub)
                add(profile.libraries.setdefault(place, {}), "itself", function.tsub)
                profile.calls[place] = profile.calls.get(place, 0) + function.ncall
            elif function.tsub > 0:
                self._carry(index, function.tsub, profile)

    def _carry(self, library: int, spent: float, profile: Profile) -> None:
        """Carries the time of one library function outward until all of it has an owner."""
        moving = {library: spent}
        for _ in range(HOPS):
            outward: dict[int, float] = {}
            for index, part in moving.items():
                callers = self._callers.get(index, {})
                whole = sum(callers.values())
                if whole <= 0:
                    add(profile.own, Place(self._thread, LOOP, LOOP), part)
                    continue
                for caller, weight in callers.items():
                    owner = self._owner(caller)
                    if owner is None:
                        add(outward, caller, part * weight / whole)
                    else:
                        place = self._place(caller, owner)
                        add(profile.own, place, part * weight / whole)
                        add(profile.libraries.setdefault(place, {}), self._name(index), part * weight / whole)
            moving = outward
            if not moving:
                return
        add(profile.own, Place(self._thread, LOOP, LOOP), sum(moving.values()))

    def _owner(self, index: int) -> str | None:
        function = self._functions[index]
        return next((owner for owner, folder in OWNERS.items() if function.module.startswith(folder)), None)

    def _place(self, index: int, owner: str) -> Place:
        function = self._functions[index]
        file = function.module.removeprefix(OWNERS.get(owner, ""))
        return Place(self._thread, owner, f"{file}:{function.lineno} {function.name}")

    def _name(self, index: int) -> str:
        function = self._functions[index]
        return function.name if function.builtin else f"{Path(function.module).stem}.{function.name}"


def show(found: Profile, turns: int, console: Console, *, top: int, everyone: bool) -> None:
    """Prints CPU time by thread and owner, then by function; all in milliseconds per turn."""
    sums = found.by_owner()
    owners = sorted({owner for _, owner in sums})
    table = Table("thread", title=f"CPU time by thread and owner, ms per turn ({turns} turns)", title_justify="left")
    for owner in (*owners, "sum"):
        table.add_column(owner, justify="right")
    for thread in sorted({thread for thread, _ in sums}):
        spent = [sums.get((thread, owner), 0.0) / turns * 1000 for owner in owners]
        table.add_row(thread, *(f"{value:.2f}" for value in (*spent, sum(spent))))
    console.print(table)
    wall, waiting = found.wall / turns * 1000, found.waiting / turns * 1000
    console.print(f"on the clock {wall:.2f}, of which {MAIN_THREAD} waited {waiting:.2f}")

    table = Table(title="CPU time by function, libraries it called included, ms per turn", title_justify="left")
    for heading in ("ms", "calls", "thread", "function"):
        table.add_column(heading, justify="right" if heading in ("ms", "calls") else "left", no_wrap=True)
    table.add_column("of which")
    chosen = {place: spent for place, spent in found.own.items() if everyone or place.owner in ("perdure", LOOP)}
    for place, seconds in largest(chosen, top):
        parts = largest(found.libraries.get(place, {}), 4)
        table.add_row(
            f"{seconds / turns * 1000:.3f}",
            f"{found.calls.get(place, 0) / turns:.1f}",
            place.thread,
            place.name,
            ", ".join(f"{name} {part / turns * 1000:.2f}" for name, part in parts),
        )
    console.print(table)
