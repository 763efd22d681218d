"""What a ``WorkerChild`` runs: arms the fault it was given, watches its parent, and calls the code.

Started as ``python -m perdure.testing._child_main <lifeline> <kind> <target> <arguments>``.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import cast

from perdure import faults


def main(lifeline: int, kind: str, target: str, arguments: str) -> None:
    """Runs ``target``: Python source (``kind`` is ``code``) or ``module:function`` with JSON arguments."""
    threading.Thread(target=_die_with_parent, args=(lifeline,), daemon=True).start()
    faults.arm_from_environment()
    if kind == "code":
        exec(compile(target, "<child>", "exec"), {"__name__": "__main__"})
        return
    module, _, name = target.partition(":")
    function = cast("Callable[..., object]", getattr(importlib.import_module(module), name))
    result = function(*json.loads(arguments))
    if inspect.iscoroutine(result):
        asyncio.run(result)


def _die_with_parent(lifeline: int) -> None:
    """Ends the process group when the parent does: it alone holds the other end of the pipe."""
    os.read(lifeline, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:5])
