"""Real child processes for crash tests: started, watched, stopped, killed, and never left behind.

Imports neither google-adk nor the engine, so that a child starts fast.  POSIX only.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from perdure import faults
from perdure.errors import UsageError
from perdure.faults import Action, FaultPoint

if TYPE_CHECKING:
    from perdure.session.model import JsonValue  # its models cost more than all the rest here

DEFAULT_TIMEOUT = 60.0
"""How long a wait for a child lasts before it gives up, in seconds.  Long, because a machine may be busy."""

T = TypeVar("T")


class ChildError(AssertionError):
    """A child did not do what was waited for.  The message ends with all that the child has printed."""


class WorkerChild:
    """A child process with a process group of its own, for the length of a ``with`` block.

    ::

        with WorkerChild.of(serve, str(database)) as child:
            child.wait_for("ready")
            child.kill()

    The child and what it started are killed, if need be, and reaped when the block ends; when the child ends before,
    what it started ends with it; and should this process itself be killed, the child ends too.  Its output, of both
    streams, is collected line by line and is not buffered; its input is empty.  It finds the modules that this process
    finds.

    Make it with ``of`` or ``running``; it starts with the block.
    """

    def __init__(self, command: tuple[str, ...], environment: Mapping[str, str]) -> None:
        self._command = command
        self._environment = environment
        self._changed = threading.Condition()
        self._process: subprocess.Popen[str] | None = None
        self._lifeline = -1
        self._lines: list[str] = []
        self._seen = 0
        self._stopped = False
        self._reaped = False
        self._exit_code: int | None = None

    @classmethod
    def of(
        cls,
        function: Callable[..., object] | str,
        *arguments: JsonValue,
        environment: Mapping[str, str] | None = None,
        fault: FaultPoint | None = None,
        action: Action = Action.KILL,
        nth: int = 1,
    ) -> Self:
        """A child that calls a function; a coroutine function is run to its end.

        Args:
            function: a function of a module that the child can import, or its name as ``module:function``.
            arguments: what it is called with.
            environment: variables to add to those of this process.
            fault: a point at which the child fails; ``None`` keeps the ``PERDURE_FAULT`` of this process, if any.
            action: what happens at the point.
            nth: at which arrival at the point.

        Raises:
            UsageError: a child could not import the function, or an argument has no JSON form.
        """
        name = function if isinstance(function, str) else _importable_name(function)
        try:
            encoded = json.dumps(arguments)
        except TypeError as error:
            raise UsageError(f"the arguments of {name} go to another process as JSON: {error}") from None
        return cls(("function", name, encoded), _environment(environment, fault, action, nth))

    @classmethod
    def running(
        cls,
        code: str,
        *,
        environment: Mapping[str, str] | None = None,
        fault: FaultPoint | None = None,
        action: Action = Action.KILL,
        nth: int = 1,
    ) -> Self:
        """A child that runs Python source code.  The other arguments are those of ``of``."""
        return cls(("code", code, "[]"), _environment(environment, fault, action, nth))

    @property
    def pid(self) -> int:
        """The process id, which is also that of the process group.

        Raises:
            UsageError: the child was not started.
        """
        if self._process is None:
            raise UsageError("a WorkerChild starts with its with block")
        return self._process.pid

    @property
    def lines(self) -> list[str]:
        """What the child has printed so far."""
        with self._changed:
            return list(self._lines)

    @property
    def exit_code(self) -> int | None:
        """How it ended: the exit status, or minus the number of the signal; ``None`` until all its output is read."""
        with self._changed:
            return self._exit_code

    def wait_for(self, marker: str, *, timeout: float = DEFAULT_TIMEOUT) -> str:
        """Waits until the child prints a line that contains ``marker``, and returns the line.

        Lines up to the one that an earlier call returned do not count: the same marker can be waited for again.

        Raises:
            ChildError: the child ended without it, or ``timeout`` (seconds) is over.
        """

        def find() -> str | None:
            for index in range(self._seen, len(self._lines)):
                if marker in self._lines[index]:
                    self._seen = index + 1
                    return self._lines[index]
            if self._exit_code is not None:
                raise self._error(f"ended with {self._exit_code} before it printed {marker!r}")
            return None

        return self._wait(find, timeout, f"has not printed {marker!r}")

    def wait_exit(self, *, timeout: float = DEFAULT_TIMEOUT) -> int:
        """Waits until the child has ended and all its output is read, and returns its ``exit_code``.

        Raises:
            ChildError: ``timeout`` (seconds) is over.
        """
        return self._wait(lambda: self._exit_code, timeout, "has not ended")

    async def wait_for_async(self, marker: str, *, timeout: float = DEFAULT_TIMEOUT) -> str:
        """``wait_for`` without blocking the event loop."""
        return await asyncio.to_thread(self.wait_for, marker, timeout=timeout)

    async def wait_exit_async(self, *, timeout: float = DEFAULT_TIMEOUT) -> int:
        """``wait_exit`` without blocking the event loop."""
        return await asyncio.to_thread(self.wait_exit, timeout=timeout)

    def kill(self) -> int:
        """SIGKILL to the child and what it started; returns the ``exit_code`` when they are gone.

        Harmless when the child has ended already.
        """
        self._signal(signal.SIGKILL)
        return self.wait_exit()

    def terminate(self) -> None:
        """SIGTERM to the child alone, which may take its time; see ``wait_exit``."""
        with self._changed:
            if not self._reaped:
                os.kill(self.pid, signal.SIGTERM)

    def stop(self) -> None:
        """SIGSTOP to the child and what it started; the child stands still when this returns.

        Raises:
            ChildError: the child has ended.
        """
        self._signal(signal.SIGSTOP)
        self._wait(lambda: self._reached(stopped=True), DEFAULT_TIMEOUT, "has not stopped")

    def resume(self) -> None:
        """SIGCONT to the child and what it started; the child runs again when this returns.

        Raises:
            ChildError: the child has ended.
        """
        self._signal(signal.SIGCONT)
        self._wait(lambda: self._reached(stopped=False), DEFAULT_TIMEOUT, "has not gone on")

    def __enter__(self) -> Self:
        read_end, self._lifeline = os.pipe()
        module = "perdure.testing._child_main"
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-m", module, str(read_end), *self._command],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            pass_fds=(read_end,),
            start_new_session=True,
        )
        os.close(read_end)
        reader = threading.Thread(target=self._read, args=(self._process,), name="child-output", daemon=True)
        reader.start()
        threading.Thread(target=self._watch, args=(self._process, reader), name="child-watch", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.kill()
        finally:
            os.close(self._lifeline)

    def _signal(self, number: signal.Signals) -> None:
        with self._changed:
            if not self._reaped:
                os.killpg(self.pid, number)

    def _reached(self, *, stopped: bool) -> bool | None:
        if self._exit_code is not None:
            raise self._error(f"ended with {self._exit_code}")
        return True if self._stopped is stopped else None

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as output:
            for line in output:
                with self._changed:
                    self._lines.append(line.rstrip("\n"))
                    self._changed.notify_all()

    def _watch(self, process: subprocess.Popen[str], reader: threading.Thread) -> None:
        """Follows the child to its end.  This thread alone waits for the process, so it is reaped whatever happens."""
        status = self._follow(process.pid)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what the child started, which may keep its output open
        process.returncode = os.waitstatus_to_exitcode(status)
        reader.join()
        with self._changed:
            self._exit_code = process.returncode
            self._changed.notify_all()

    def _follow(self, pid: int) -> int:
        while True:
            _, status = os.waitpid(pid, os.WUNTRACED | os.WCONTINUED)
            ended = os.WIFEXITED(status) or os.WIFSIGNALED(status)
            with self._changed:
                self._stopped = os.WIFSTOPPED(status)
                self._reaped = ended
                self._changed.notify_all()
            if ended:
                return status

    def _wait(self, result: Callable[[], T | None], timeout: float, problem: str) -> T:
        give_up = monotonic() + timeout
        with self._changed:
            while (found := result()) is None:
                remaining = give_up - monotonic()
                if remaining <= 0:
                    raise self._error(f"{problem} within {timeout:g} seconds")
                self._changed.wait(remaining)
            return found

    def _error(self, problem: str) -> ChildError:
        output = "\n".join(f"  {line}" for line in self._lines) or "  (nothing)"
        return ChildError(f"the child process {self.pid} {problem}; it has printed:\n{output}")


def _importable_name(function: Callable[..., object]) -> str:
    module, name = function.__module__, function.__qualname__
    if module == "__main__" or "." in name or name == "<lambda>":
        raise UsageError(
            f"a child process cannot import {module}.{name}; use a function at the top of a module, or running()"
        )
    return f"{module}:{name}"


def _environment(added: Mapping[str, str] | None, fault: FaultPoint | None, action: Action, nth: int) -> dict[str, str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **(added or {})}
    if fault is not None:
        environment[faults.ENVIRONMENT_VARIABLE] = f"{fault}:{action.value}:{nth}"
    return environment
