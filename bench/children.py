"""Worker processes: what runs in one (``python -m bench.children``), and how a measure starts and ends it.

A child says one word per line on its standard output: ``ready`` when its worker is up, and ``holding`` when it is
inside the tool ``hold``.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.orders import Tool, lookup, refund
from bench.quiet import be_quiet
from bench.store import address_for
from bench.workload import orders_flow
from perdure import open_engine

ROOT = Path(__file__).parents[1]
START_SECONDS = 60


class WorkerChild:
    """A running child process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    async def says(self, word: str) -> None:
        """Waits until the child says this word."""
        assert self._process.stdout is not None
        async with asyncio.timeout(START_SECONDS):
            line = (await self._process.stdout.readline()).decode().strip()
        assert line == word, f"child {self.pid} said {line!r}, not {word!r}"

    def kill(self) -> None:
        """SIGKILL, without waiting."""
        self._process.send_signal(signal.SIGKILL)

    async def end(self) -> None:
        """SIGTERM, then SIGKILL if the child does not drain; returns when it is gone."""
        if self._process.returncode is None:
            self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), 10)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


async def start_worker(path: Path, *tools: str) -> WorkerChild:
    """Starts a worker on the file at ``path``, whose agent has these tools; it is not ready yet."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.children", str(path), *tools, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    return WorkerChild(process)


@asynccontextmanager
async def worker_child(path: Path, *tools: str) -> AsyncGenerator[WorkerChild]:
    """A worker that is up for the length of the block."""
    child = await start_worker(path, *tools)
    try:
        await child.says("ready")
        yield child
    finally:
        await child.end()


# ---------------------------------------------------------------- inside the child


def hold_tool(path: Path) -> Tool:
    """A read that never returns the first time an order is read, and at once the second time."""

    async def hold(order_id: str) -> dict[str, Any]:
        """Reads an order.

        Args:
            order_id: the order's id.
        """
        marker = path.with_suffix(f".held-{order_id}")
        if not marker.exists():
            marker.touch()
            _say("holding")
            await asyncio.Event().wait()
        return {"order_id": order_id, "status": "shipped", "eta_days": 3}

    return hold


def _say(word: str) -> None:
    print(word, flush=True)


async def _serve(path: Path, names: Sequence[str]) -> None:
    tools = {"lookup": lookup, "refund": refund, "hold": hold_tool(path)}
    flow = orders_flow([tools[name] for name in names])
    async with open_engine(address_for(path), flows=[flow]) as engine:
        await engine.serve(ready=lambda: _say("ready"))


if __name__ == "__main__":
    be_quiet()
    asyncio.run(_serve(Path(sys.argv[1]), sys.argv[2:]))
