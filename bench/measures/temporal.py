"""What Temporal has to keep and to bear: histories of long turns and big payloads, and many sessions that wait."""

from __future__ import annotations

import time
from collections.abc import Sequence

import psutil
from temporalio.client import Client

from bench.measures.base import Conditions, Measure
from bench.measures.footprint import MEGABYTE, start_waiting
from bench.orders import (
    PAGE_CHARACTERS,
    SCAN_CHARACTERS,
    USER,
    audit,
    lookup,
    one_lookup,
    read_page,
    refund,
    scan,
    scan_order,
)
from bench.peers.course import History
from bench.peers.histories import history_of
from bench.report import Row, Target
from bench.servers import temporal_server
from bench.workload import DurableSide, RawSide
from perdure import ImageInput, SessionStatus

CONTEXT_CHARACTERS = 200_000
IMAGE = b"\x89PNG\r\n\x1a\n" + bytes(3_000_000)
HISTORY_LIMIT = 50 * MEGABYTE
"""Of one run; Temporal ends it there.  Events likewise: 51,200."""


async def _history(temporal: str, session_id: str) -> History:
    return await history_of(await Client.connect(temporal), f"perdure-session-{session_id}")


async def measure_long_turn(conditions: Conditions) -> Sequence[Row]:
    """One turn of many calls, with a long message before them: time beside raw ADK, and how the history grows."""
    lengths = (conditions.count(50, 2), conditions.count(150, 6))
    raw = RawSide(read_page)
    took: dict[str, float] = {}
    histories: dict[int, History] = {}
    with temporal_server(conditions.folder) as server:
        async with DurableSide(conditions.folder / "long.db", read_page, temporal=server) as side:
            for pages in lengths:
                for name, runner in (("raw", raw), ("ours", side)):
                    await runner.open(f"{name}-{pages}")
                    begun = time.perf_counter()
                    await runner.turn(f"{name}-{pages}", audit(pages, CONTEXT_CHARACTERS))
                    took[f"{name}-{pages}"] = time.perf_counter() - begun
                histories[pages] = await _history(server, f"ours-{pages}")
    few, many = lengths
    growth = (histories[many].size / histories[few].size) / (many / few)
    return [
        Row(
            name="long_turn",
            what=f"a turn of {many} calls with results of {PAGE_CHARACTERS // 1000} KB, on Temporal",
            unit="s",
            ours=took[f"ours-{many}"],
            raw=took[f"raw-{many}"],
            measured=took[f"ours-{many}"] / took[f"raw-{many}"],
            target=Target(2.0),
            note=f"{CONTEXT_CHARACTERS // 1000} KB of context",
        ),
        Row(
            name="history_growth",
            what=f"bytes of history per call, {many} calls against {few}",
            unit="bytes",
            ours=histories[many].size / many,
            raw=histories[few].size / few,
            measured=growth,
            # A slower step needs an activity more often; if bytes grew with the square of the calls, it would be 3.
            target=Target(1.5),
            note=f"{histories[many].events} events in all; 'raw' is the shorter turn",
            detail={"bytes": {str(n): found.size for n, found in histories.items()}},
        ),
    ]


async def measure_payloads(conditions: Conditions) -> Sequence[Row]:
    """A tool's result of 5 MB, then an image of 3 MB: what of it Temporal gets to see."""
    with temporal_server(conditions.folder) as server:
        async with DurableSide(conditions.folder / "payload.db", scan, lookup, temporal=server) as side:
            await side.open("big")
            await side.turn("big", scan_order(1))
            await side.client.send_user_message(
                "big", one_lookup(1), images=[ImageInput(data=IMAGE, mime_type="image/png")]
            )
            await side.end_of_turn("big")
            found = await _history(server, "big")
        size = _bytes_of(conditions)
        async with DurableSide(conditions.folder / "payload.db", scan, lookup, temporal=server) as side:
            for number in range(5):
                await side.turn("big", one_lookup(number))
        grown = _bytes_of(conditions) - size
    return [
        Row(
            name="payload_history",
            what=f"history after a result of {SCAN_CHARACTERS // 1_000_000} MB and an image of 3 MB",
            unit="KB",
            ours=found.size / 1000,
            raw=None,
            measured=found.size / 1000,
            target=Target(20),
        ),
        Row(
            name="payload_store",
            what="growth of the store by a later turn of that session",
            unit="KB",
            ours=grown / 5 / 1000,
            raw=None,
            measured=grown / 5 / 1000,
            target=Target(100),
        ),
    ]


def _bytes_of(conditions: Conditions) -> int:
    return sum(path.stat().st_size for path in conditions.folder.glob("payload.db*"))


async def measure_waiting_on_temporal(conditions: Conditions) -> Sequence[Row]:
    """A thousand sessions wait for an approval; then some are answered."""
    count, answered = conditions.count(1000, 8), conditions.count(20, 2)
    path = conditions.folder / "waiting.db"
    with temporal_server(conditions.folder) as server:
        async with DurableSide(path, refund, temporal=server) as side:
            await start_waiting(side, range(count))
            before = psutil.Process().memory_info().rss
            await start_waiting(side, range(count, 2 * count))
            grown = psutil.Process().memory_info().rss - before
            histories = [await _history(server, f"w{number}") for number in range(0, count, max(1, count // answered))]
            took: list[float] = []
            for number in range(answered):
                interrupt_id = await side.pending(f"w{number}")
                begun = time.perf_counter()
                await side.approve(f"w{number}", interrupt_id)
                took.append(time.perf_counter() - begun)
            page = await side.client.list_sessions(status=SessionStatus.WAITING, user_id=USER, limit=1000)
            assert len(page.items) >= min(1000, 2 * count - answered), "all others still wait"
    took.sort()
    return [
        Row(
            name="temporal_waiting",
            what=f"memory of client and worker for {count} more sessions that wait on Temporal",
            unit="MB/1000",
            ours=grown / MEGABYTE / count * 1000,
            raw=None,
            measured=grown / MEGABYTE / count * 1000,
            target=Target(20),
            note=f"history of one: {max(found.size for found in histories) / 1000:.1f} KB",
        ),
        Row(
            name="temporal_answer",
            what=f"from an approval to the end of the turn, with {2 * count} sessions waiting",
            unit="ms",
            ours=took[len(took) // 2] * 1000,
            raw=None,
            measured=took[len(took) // 2] * 1000,
            target=Target(500),
        ),
    ]


LONG_TURN = Measure("long_turn", measure_long_turn)
PAYLOADS = Measure("payloads", measure_payloads)
TEMPORAL_WAITING = Measure("temporal_waiting", measure_waiting_on_temporal)
