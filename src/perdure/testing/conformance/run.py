"""Runs cases over a target, compares what they record with their references, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import tempfile
import traceback
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from perdure.client import AgentSessionClient
from perdure.errors import SessionNotFound
from perdure.ids import RandomIds
from perdure.session.model import JsonObject
from perdure.testing.conformance.case import ConformanceCase
from perdure.testing.conformance.checks import ConformanceFailure
from perdure.testing.conformance.life import worker_options
from perdure.testing.conformance.recording import record
from perdure.testing.conformance.reference import REFERENCES, differences, read_reference, write_reference
from perdure.testing.conformance.stage import LEASE, Stage
from perdure.testing.conformance.target import Target
from perdure.testing.conformance.world import World

LONGEST_CASE = 240.0
"""Seconds after which a case has failed; each wait in it gives up before."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """How a case went; ``failure`` is ``None`` when it passed, else what a person reads."""

    case: ConformanceCase
    seconds: float
    failure: str | None


async def run_case(
    case: ConformanceCase, target: Target, *, references: Path = REFERENCES, record_anew: bool = False
) -> JsonObject:
    """Runs one case and returns its recording.

    Args:
        references: the folder of the references.
        record_anew: keep the recording as the reference instead of comparing it.

    Raises:
        ConformanceFailure: a promise is broken, the recording differs from the reference, or there is none.
        PerdureError: what the target raised.
    """
    async with _staged(case, target) as stage:
        if case.served:
            async with stage.worker():
                await case.body(stage)
        else:
            await case.body(stage)
        recording = await record(case, stage)
    if record_anew:
        write_reference(case, recording, references)
        return recording
    expected = read_reference(case, references)
    if expected is None:
        raise ConformanceFailure(f"case {case.name} has no reference in {references.name}/; record one and review it")
    if found := differences(expected, recording):
        lines = "\n".join(f"  {line}" for line in found)
        raise ConformanceFailure(f"case {case.name} ({case.promise})\ndiffers from its reference:\n{lines}")
    return recording


async def run_suite(
    cases: Iterable[ConformanceCase],
    target: Target,
    *,
    jobs: int = 1,
    record_anew: bool = False,
    tell: Callable[[CaseResult], None] = lambda result: None,
) -> list[CaseResult]:
    """Runs cases, several at a time if wanted, and tells of each as it ends.  A failure stops no other case.

    Those that restart the servers run at the end, one by one; where the target cannot, they are left out.
    """
    chosen = list(cases)
    places = asyncio.Semaphore(jobs)
    results: list[CaseResult] = []

    async def run(case: ConformanceCase) -> None:
        async with places:
            results.append(await _result(case, target, record_anew=record_anew))
        tell(results[-1])

    async with asyncio.TaskGroup() as group:
        for case in chosen:
            if not case.restarts:
                group.create_task(run(case))
    for case in chosen:
        if case.restarts and target.restart_services is not None:
            await run(case)
    return results


async def _result(case: ConformanceCase, target: Target, *, record_anew: bool) -> CaseResult:
    began = monotonic()
    failure: str | None = None
    try:
        async with asyncio.timeout(LONGEST_CASE):
            await run_case(case, target, record_anew=record_anew)
    except ConformanceFailure as broken:
        failure = str(broken)
    except Exception:  # noqa: BLE001 - whatever the target raises is this case's failure
        failure = traceback.format_exc()
    return CaseResult(case, monotonic() - began, failure)


@asynccontextmanager
async def _staged(case: ConformanceCase, target: Target) -> AsyncGenerator[Stage]:
    run = RandomIds().new_id().replace("-", "")[:8]
    flow_type = f"{target.prefix}_{case.slug}_{run}"
    with tempfile.TemporaryDirectory(prefix="perdure-conformance-") as folder:
        world = World(Path(folder), flow_type)
        flow = case.flow(world)
        async with target.open([], worker_options(LEASE)) as engine:
            client = AgentSessionClient(engine, flow)
            stage = Stage(target=target, world=world, client=client, build=case.flow, engine=engine, flow=flow)
            try:
                yield stage
            finally:
                for session_id in stage.sessions.values():
                    with suppress(SessionNotFound):
                        await client.delete_session(session_id)
