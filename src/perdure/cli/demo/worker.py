"""A worker process of the demo."""

from __future__ import annotations

from pathlib import Path

from perdure.cli.demo.agent import order_support
from perdure.cli.demo.scene import Scene
from perdure.cli.logs import log_to_stderr
from perdure.engine.open import open_engine


async def work(folder: str, bank_hangs: bool) -> None:
    """Serves the demo's session until the process is ended.

    Args:
        folder: the demo's files.
        bank_hangs: refunds are paid, but the call never returns.
    """
    log_to_stderr("WARNING")
    scene = Scene(Path(folder))
    flow = order_support(scene, bank_hangs=bank_hangs)
    async with open_engine(scene.engine_address, flows=[flow]) as engine:
        await engine.serve()
