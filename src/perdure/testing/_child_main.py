"""What a ``WorkerChild`` runs: arms the fault it was given, watches its parent, and calls the code.

Started as ``python -m perdure.testing._child_main <lifeline> <kind> <target> <arguments>``.  It imports next to
nothing, because every child of every crash test waits for that.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import Any, cast

from perdure import faults


def main(lifeline: int, kind: str, target: str, arguments: str) -> None:
    """Runs ``target``: Python source (``kind`` is ``code``) or ``module:function`` with JSON arguments."""
    threading.Thread(target=_die_with_parent, args=(lifeline,), daemon=True).start()
    faults.arm_from_environment()
    if kind == "code":
        exec(compile(target, "<child>", "exec"), {"__name__": "__main__"})
        return
    module, _, name = target.partition(":")
    function = cast("Callable[..., object]", getattr(import_module(module), name))
    result = function(*json.loads(arguments))
    if isinstance(result, Coroutine):
        import asyncio

        asyncio.run(cast("Coroutine[Any, Any, object]", result))


def _die_with_parent(lifeline: int) -> None:
    """Ends the process group when the parent does: it alone holds the other end of the pipe."""
    os.read(lifeline, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:5])
