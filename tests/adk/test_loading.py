"""A worker's first turn, which may be a take-over, does not wait for imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

SCRIPT = """
import asyncio, sys
from tests.adk.worlds import WORLDS

async def main() -> None:
    world = next(iter(WORLDS.values()))()
    engine = world.engine()
    before = set(sys.modules)
    await engine.turn(world.messages[0])
    assert engine.disk.error is None
    print(len(set(sys.modules) - before))

asyncio.run(main())
"""


def test_the_first_turn_of_a_process_imports_next_to_nothing() -> None:
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT]
    result = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert int(result.stdout) < 20
