"""Runs the real ``perdure`` program: once to its end, or on a terminal where a test types and looks."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
"""Seconds until a wait gives up.  Long, because a machine may be busy; nothing waits that long when all is well."""

_PROGRAM = (sys.executable, "-P", "-c", "from perdure.cli import main; main()")
"""As the installed program does, it does not put the working directory on ``sys.path``."""

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]")


def environment(**added: str) -> dict[str, str]:
    """The variables of a child: this checkout, no credentials, no settings of whoever runs the tests."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    return {**kept, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "TERM": "xterm", **added}


def run_program(*arguments: str, cwd: Path, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs ``perdure`` to its end with ``stdin`` in a pipe."""
    return subprocess.run(
        [*_PROGRAM, *arguments],
        cwd=cwd,
        env=environment(**variables),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def hear_ctrl_c() -> None:
    """Ends that SIGINT is ignored, as it is in what a shell started in the background: programs would inherit it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def start_program(*arguments: str, cwd: Path, **variables: str) -> subprocess.Popen[str]:
    """Starts ``perdure`` with its streams in pipes; use it as a context manager, and end it inside."""
    hear_ctrl_c()
    return subprocess.Popen(
        [*_PROGRAM, *arguments],
        cwd=cwd,
        env=environment(**variables),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class Terminal:
    """``perdure`` on a pseudo-terminal of its own, for the length of a ``with`` block; killed at its end if need be."""

    def __init__(self, *arguments: str, cwd: Path, **variables: str) -> None:
        self._arguments: Sequence[str] = arguments
        self._cwd = cwd
        self._environment = environment(**variables)
        self._screen = ""
        self._seen = 0

    @property
    def screen(self) -> str:
        """All that was shown so far, without colours and cursor movements."""
        return self._screen

    def expect(self, text: str) -> str:
        """Waits until ``text`` is shown, behind what an earlier call waited for; returns what came before it."""
        give_up = monotonic() + PATIENCE
        while (found := self._screen.find(text, self._seen)) < 0:
            assert monotonic() < give_up, f"{text!r} was not shown; this was:\n{self._screen}"
            assert self._read(), f"the program ended before it showed {text!r}; it showed:\n{self._screen}"
        before, self._seen = self._screen[self._seen : found], found + len(text)
        return before

    def write(self, text: str) -> None:
        """Types; end a line with a newline."""
        os.write(self._controller, text.encode())

    def ctrl_c(self) -> None:
        self.write("\x03")

    def ctrl_d(self) -> None:
        self.write("\x04")

    def settings(self) -> list[object]:
        """How the terminal is set (echo, line mode ...)."""
        return list(termios.tcgetattr(self._terminal))

    def wait_exit(self) -> int:
        """Reads to the end and returns the exit code."""
        while self._read():
            pass
        return self._process.wait(PATIENCE)

    def kill(self) -> None:
        """SIGKILL, and waits until it is gone."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(PATIENCE)

    def __enter__(self) -> Self:
        self._controller, self._terminal = pty.openpty()
        self._process = subprocess.Popen(
            [*_PROGRAM, *self._arguments],
            cwd=self._cwd,
            env=self._environment,
            stdin=self._terminal,
            stdout=self._terminal,
            stderr=self._terminal,
            start_new_session=True,
            preexec_fn=self._own_terminal,
        )
        return self

    def _own_terminal(self) -> None:
        """In the child: the terminal becomes the one whose ctrl-C reaches it."""
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def _read(self) -> bool:
        """Takes in what is there.  False: the program has ended and all is read."""
        ready, _, _ = select.select([self._controller], [], [], 0.2)
        if not ready:
            return self._process.poll() is None
        # The terminal's other end stays open here, so that there is no error at the end of the program.
        self._screen += _ESCAPES.sub("", os.read(self._controller, 65536).decode(errors="replace")).replace("\r", "")
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self.kill()
        os.close(self._controller)
        os.close(self._terminal)
