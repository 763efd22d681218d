"""The demo's story: one session, two worker processes, a kill in between, and a count at the end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from rich.console import Console
from rich.text import Text

from perdure.cli.demo.scene import APPROVER, FLOW_TYPE, PAID, QUESTION, SESSION_ID, Scene
from perdure.cli.demo.timeline import timeline
from perdure.cli.stream import Follower
from perdure.cli.transcript import Transcript
from perdure.cli.views import print_interrupt
from perdure.client import MAX_PAGE, AgentSessionClient
from perdure.engine.base import Engine
from perdure.engine.open import open_engine
from perdure.session.model import AgentSnapshot, StepRecord, TurnStatus
from perdure.testing import ChildError, WorkerChild, read_request_log

T = TypeVar("T")

WORKER = "perdure.cli.demo.worker:work"

TIME_LIMIT = 120.0
"""Seconds after which the story counts as failed.  It takes a few; a busy machine may take longer."""


async def tell(scene: Scene, console: Console) -> bool:
    """Plays the story and prints it.

    Returns:
        Whether it ended as it must: the turn is completed, and there is one refund.

    Raises:
        TimeoutError: it came to no end.
        ChildError: a worker ended by itself.
    """
    scene.ledger.create()
    async with asyncio.timeout(TIME_LIMIT), open_engine(scene.engine_address) as engine:
        return await Story(scene, console, engine).play()


class Story:
    """The parent process: it is the user, the one who approves, and the one who kills."""

    def __init__(self, scene: Scene, console: Console, engine: Engine) -> None:
        self._scene = scene
        self._console = console
        self._client = AgentSessionClient(engine, FLOW_TYPE)
        self._transcript = Transcript(console)
        self._follower = Follower(engine, SESSION_ID, self._transcript, None)

    async def play(self) -> bool:
        """See ``tell``."""
        with WorkerChild.of(WORKER, str(self._scene.folder), True) as child:
            first = child.pid
            await alive(child, self._up_to_the_refund(child))
            before = await self._history()
            child.kill()
        self._heading(f"worker A is killed (kill -9 {first}): the refund is paid, and perdure has no record of it")
        with WorkerChild.of(WORKER, str(self._scene.folder), False) as child:
            self._heading(f"worker B takes over (process {child.pid})")
            snapshot = await alive(child, self._follower.until_rest())
            second, after = child.pid, await self._history()
        self._heading("what ran, and what was replayed")
        self._console.print(timeline(before, after, first, second))
        return self._count(first, second, snapshot)

    async def _up_to_the_refund(self, child: WorkerChild) -> None:
        self._heading(f"worker A (process {child.pid})")
        self._console.print(Text(f"user: {QUESTION}", style="cyan"))
        turn_id = await self._client.start_session(SESSION_ID, QUESTION)
        self._transcript.own_turns.add(turn_id or "")
        waiting = await self._follower.until_rest()
        for interrupt in waiting.pending_interrupts:
            print_interrupt(self._console, interrupt)
            await self._client.resolve_interrupt(
                SESSION_ID, interrupt.interrupt_id, approved=True, resolved_by=APPROVER
            )
        await child.wait_for_async(PAID)
        await self._follower.until_now()

    async def _history(self) -> Sequence[StepRecord]:
        return (await self._client.read_step_history(SESSION_ID, limit=MAX_PAGE)).items

    def _count(self, first: int, second: int, snapshot: AgentSnapshot) -> bool:
        """Counts in the logs of the model and of the tools, and in the ledger: none of them is perdure's own word."""
        requests = Counter(request.process_id for request in read_request_log(self._scene.request_log))
        runs = self._scene.ledger.tool_runs()
        refunds = self._scene.ledger.count_refunds()
        self._heading("what their own logs say")
        self._say(f"requests to the model: {requests.total()} ({requests[first]} by A, {requests[second]} by B)")
        for tool in dict.fromkeys(tool for tool, _ in runs):
            self._say(f"{tool} began: {runs[tool, first]} in A, {runs[tool, second]} in B")
        self._say(f"refunds in the ledger: {refunds}", style="bold green" if refunds == 1 else "bold red")
        completed = snapshot.turn is not None and snapshot.turn.status is TurnStatus.COMPLETED
        return refunds == 1 and completed

    def _heading(self, words: str) -> None:
        self._console.print()
        self._say(f"── {words}", style="bold")

    def _say(self, words: str, style: str = "") -> None:
        self._console.print(Text(words, style=style), soft_wrap=True)


async def alive(child: WorkerChild, work: Coroutine[Any, Any, T]) -> T:
    """Does ``work``, as long as the worker is alive.

    Raises:
        ChildError: the worker ended first; with all that it printed.
    """
    working = asyncio.ensure_future(work)
    ending = asyncio.ensure_future(child.wait_exit_async(timeout=TIME_LIMIT))
    await asyncio.wait((working, ending), return_when=asyncio.FIRST_COMPLETED)
    if working.done():
        return working.result()
    working.cancel()
    printed = "\n".join(child.lines)
    raise ChildError(f"a worker ended by itself, with the exit code {await ending}:\n{printed}")
