"""``WorkerChild`` really starts, watches, stops and kills a process, and leaves none behind."""

from __future__ import annotations

import asyncio
import os
import select
import signal
from collections.abc import Callable

import psutil
import pytest

from perdure import faults
from perdure.errors import UsageError
from perdure.faults import Action, DurableWrite, FaultPoint, Moment
from perdure.testing.children import ChildError, WorkerChild

POINT = FaultPoint(DurableWrite.STEP_SETTLED, Moment.BEFORE)

WAIT_FOR_EVER = "import threading; print('up'); threading.Event().wait()"

START_ANOTHER = """
import subprocess, sys, threading
other = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
print("other", other.pid)
threading.Event().wait()
"""


def greet(name: str) -> None:
    print("hello", name)


async def greet_later(name: str) -> None:
    await asyncio.sleep(0)
    print("hello again", name)


def reach_twice() -> None:
    for number in (1, 2):
        print("arrival", number)
        faults.reach(POINT.write, POINT.moment)


def gone(pid: int) -> bool:
    """Whether the process ends within a minute.  One that its parent has yet to reap has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    ended = bool(poller.poll(60_000))
    os.close(descriptor)
    return ended


def start_and_fail(child: WorkerChild) -> None:
    with child:
        child.wait_for("up")
        raise ZeroDivisionError


@pytest.mark.parametrize(("function", "line"), [(greet, "hello Ann"), (greet_later, "hello again Ann")])
def test_it_calls_a_function_of_a_module(function: Callable[..., object], line: str) -> None:
    with WorkerChild.of(function, "Ann") as child:
        assert child.wait_exit() == 0
        assert child.lines == [line]
    with WorkerChild.of(f"{function.__module__}:{function.__name__}", "Ann") as child:
        assert child.wait_for("hello") == line


def test_both_streams_are_collected_and_the_exit_code_is_told() -> None:
    with WorkerChild.running("import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)") as child:
        assert child.wait_exit() == 7
        assert child.lines == ["out", "err"]
        assert child.exit_code == 7
        assert child.kill() == 7


def test_the_same_marker_can_be_waited_for_again() -> None:
    with WorkerChild.running("print('tick 1'); print('tick 2'); input()") as child:
        assert [child.wait_for("tick"), child.wait_for("tick")] == ["tick 1", "tick 2"]
        with pytest.raises(ChildError, match=r"ended with 1 before it printed 'tick'[\s\S]*tick 2[\s\S]*EOFError"):
            child.wait_for("tick")


def test_a_wait_gives_up() -> None:
    with WorkerChild.running(WAIT_FOR_EVER) as child:
        child.wait_for("up")
        with pytest.raises(ChildError, match=r"has not printed 'down' within 0\.01 seconds; it has printed:\n  up"):
            child.wait_for("down", timeout=0.01)
        with pytest.raises(ChildError, match="has not ended"):
            child.wait_exit(timeout=0)


async def test_waits_do_not_block_the_loop() -> None:
    with WorkerChild.running(WAIT_FOR_EVER) as child:
        assert await child.wait_for_async("up") == "up"
        ending = asyncio.create_task(child.wait_exit_async())
        os.kill(child.pid, signal.SIGTERM)
        assert await ending == -signal.SIGTERM


def test_kill_takes_what_the_child_started_too() -> None:
    with WorkerChild.running(START_ANOTHER) as child:
        other = int(child.wait_for("other").split()[1])
        assert child.kill() == -signal.SIGKILL
        assert gone(other)
        assert gone(child.pid)


def test_what_the_child_started_ends_with_it() -> None:
    with WorkerChild.running(START_ANOTHER) as child:
        other = int(child.wait_for("other").split()[1])
        child.terminate()
        assert child.wait_exit() == -signal.SIGTERM
        assert gone(other)


def test_the_end_of_the_block_ends_the_child_even_when_the_test_fails() -> None:
    child = WorkerChild.running(WAIT_FOR_EVER)
    with pytest.raises(ZeroDivisionError):
        start_and_fail(child)
    assert child.exit_code == -signal.SIGKILL
    assert gone(child.pid)


def test_the_child_ends_when_this_process_is_killed() -> None:
    code = f"""
import threading
from perdure.testing.children import WorkerChild
with WorkerChild.running({WAIT_FOR_EVER!r}) as child:
    child.wait_for("up")
    print("other", child.pid)
    threading.Event().wait()
"""
    with WorkerChild.running(code) as parent:
        other = int(parent.wait_for("other").split()[1])
        os.kill(parent.pid, signal.SIGKILL)
        assert parent.wait_exit() == -signal.SIGKILL
        assert gone(other)


def test_a_stopped_child_stands_still_until_it_is_resumed() -> None:
    with WorkerChild.running(WAIT_FOR_EVER) as child:
        child.wait_for("up")
        child.stop()
        assert psutil.Process(child.pid).status() == psutil.STATUS_STOPPED
        child.stop()
        child.resume()
        assert psutil.Process(child.pid).status() != psutil.STATUS_STOPPED
        child.stop()
        assert child.kill() == -signal.SIGKILL
        child.terminate()
        with pytest.raises(ChildError, match="ended with -9"):
            child.stop()


def test_a_child_can_be_killed_at_a_fault_point() -> None:
    with WorkerChild.of(reach_twice, fault=POINT, nth=2) as child:
        assert child.wait_exit() == -signal.SIGKILL
        assert child.lines == ["arrival 1", "arrival 2"]


def test_a_child_can_fail_at_a_fault_point() -> None:
    with WorkerChild.of(reach_twice, fault=POINT, action=Action.RAISE) as child:
        assert child.wait_exit() == 1
        assert child.lines[-1].endswith("InjectedFault: fault injected at step_settled:before")


def test_a_fault_of_this_process_goes_on_to_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(faults.ENVIRONMENT_VARIABLE, f"{POINT}:kill")
    with WorkerChild.of(reach_twice) as child:
        assert child.wait_exit() == -signal.SIGKILL
    with WorkerChild.of(reach_twice, environment={faults.ENVIRONMENT_VARIABLE: ""}) as child:
        assert child.wait_exit() == 0


def test_what_a_child_cannot_run_is_refused() -> None:
    def inner() -> None: ...

    with pytest.raises(UsageError, match=r"cannot import .*<locals>.inner"):
        WorkerChild.of(inner)
    with pytest.raises(UsageError, match="as JSON"):
        WorkerChild.of(greet, object())
    with pytest.raises(UsageError, match="with block"):
        _ = WorkerChild.of(greet, "Ann").pid
