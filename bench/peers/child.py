"""What runs in a contender's process: ``python -m bench.peers.child MODULE ...`` prints a ``Result`` as JSON, last."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

from bench.peers.course import FULL, QUICK, Contender, run_course
from bench.quiet import be_quiet


@dataclass(frozen=True, slots=True)
class Places:
    """Where a contender may keep its data.

    Attributes:
        folder: an empty folder of its own.
        postgres: the address of an empty PostgreSQL database, or ``None``.
        temporal: ``host:port`` of a Temporal server, or ``None``.
    """

    folder: Path
    postgres: str | None
    temporal: str | None


SetUp = Callable[[Places], AbstractAsyncContextManager[Contender]]
"""Each contender's module has one of these: ``contender``."""


async def _run(set_up: SetUp, places: Places, quick: bool) -> None:
    async with set_up(places) as contender:
        result = await run_course(contender, QUICK if quick else FULL)
    print(json.dumps(asdict(result)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module", help="a module of bench.peers")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--postgres")
    parser.add_argument("--temporal")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    be_quiet()
    set_up: SetUp = import_module(f"bench.peers.{given.module}").contender
    asyncio.run(_run(set_up, Places(given.folder, given.postgres, given.temporal), given.quick))


if __name__ == "__main__":
    main()
