"""Where the CPU time of a block goes: to ADK, to perdure, or to what neither asked for.

A sampling thread looks at the stack of each thread every millisecond and charges the CPU time that the thread used
since the last look (the operating system's own figure) to that stack.  So a thread that waits costs nothing, all
threads add up to the process, and nothing runs slower for being watched call by call.

Time inside a library (json, pydantic, sqlite3, asyncio's internals) is charged to the innermost frame of perdure, ADK
or the benchmark that led to it: "own time, with the libraries it calls".  Linux only: it reads other threads' clocks.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TypeVar

import google.adk
import google.genai

import bench
import perdure

INTERVAL = 0.001
SWITCH_INTERVAL = 0.0005
"""How soon a busy thread lets the sampler look."""

SAMPLER = "bench profiler"
LOOP = "event loop"


def _folder(module_file: str | None) -> str:
    assert module_file is not None
    return str(Path(module_file).parent) + "/"


OWNERS = {
    "perdure": _folder(perdure.__file__),
    "ADK": _folder(google.adk.__file__),
    "ADK (genai)": _folder(google.genai.__file__),
    "bench": _folder(bench.__file__),
}
NOBODY = "asyncio, threads"


@dataclass(frozen=True, slots=True)
class Place:
    """A function, and whose it is."""

    owner: str
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}"


@dataclass(slots=True)
class Profile:
    """What was found, in seconds.

    Attributes:
        own: CPU time by place, the libraries that it called included.
        leaves: of each place, CPU time by the library function that was running.
        threads: CPU time by thread name and owner.
        wall: length of the block.
    """

    own: dict[Place, float] = field(default_factory=dict[Place, float])
    leaves: dict[Place, dict[str, float]] = field(default_factory=dict[Place, dict[str, float]])
    threads: dict[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])
    wall: float = 0.0

    @property
    def waiting(self) -> float:
        """How long the event loop had nothing to do (or waited for the interpreter's lock)."""
        return self.wall - sum(spent for (thread, _), spent in self.threads.items() if thread == LOOP)

    def charge(self, thread: str, frame: FrameType, spent: float) -> None:
        place = _innermost_owned(frame)
        _add(self.own, place, spent)
        _add(self.leaves.setdefault(place, {}), _name_of(frame), spent)
        _add(self.threads, (thread, place.owner), spent)


class Sampler:
    """Samples all threads for the length of a ``with`` block; begin it in the thread of the event loop."""

    def __init__(self) -> None:
        self.profile = Profile()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=SAMPLER, daemon=True)
        self._clocks: dict[int, float] = {}
        self._loop_thread = 0
        self._begun = 0.0
        self._switch_interval = sys.getswitchinterval()

    def __enter__(self) -> Profile:
        self._loop_thread = threading.get_ident()
        for thread in threading.enumerate():
            self._spent(thread.ident or 0)
        sys.setswitchinterval(SWITCH_INTERVAL)
        self._begun = time.perf_counter()
        self._thread.start()
        return self.profile

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        sys.setswitchinterval(self._switch_interval)
        self.profile.wall = time.perf_counter() - self._begun

    def _run(self) -> None:
        own = threading.get_ident()
        while not self._stop.wait(INTERVAL):
            names = {thread.ident: thread.name for thread in threading.enumerate()}
            for ident, frame in sys._current_frames().items():  # pyright: ignore[reportPrivateUsage]  # documented
                if ident != own and ident in names and (spent := self._spent(ident)) > 0:
                    self.profile.charge(LOOP if ident == self._loop_thread else names[ident], frame, spent)

    def _spent(self, ident: int) -> float:
        """CPU seconds of a thread since this was last asked; 0 for one that has ended."""
        try:
            now = time.clock_gettime(time.pthread_getcpuclockid(ident))
        except OSError:
            return 0.0
        before, self._clocks[ident] = self._clocks.get(ident, 0.0), now
        return now - before


K = TypeVar("K")


def _add(sums: dict[K, float], key: K, value: float) -> None:
    sums[key] = sums.get(key, 0.0) + value


def largest(sums: Mapping[K, float], count: int) -> list[tuple[K, float]]:
    """The largest entries, largest first."""
    return sorted(sums.items(), key=lambda item: item[1], reverse=True)[:count]


def _innermost_owned(frame: FrameType) -> Place:
    current: FrameType | None = frame
    while current is not None:
        path = current.f_code.co_filename
        for owner, folder in OWNERS.items():
            if path.startswith(folder):
                code = current.f_code
                return Place(owner, path.removeprefix(folder), code.co_firstlineno, code.co_qualname)
        current = current.f_back
    return Place(NOBODY, Path(frame.f_code.co_filename).name, frame.f_code.co_firstlineno, frame.f_code.co_qualname)


def _name_of(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_qualname}"
