"""Two cases from one story: undisturbed, and with a SIGKILL of its worker in the middle.

The flow stops once at the place ``MIDDLE``.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.testing.conformance.case import Body, ConformanceCase, case
from perdure.testing.conformance.checks import same
from perdure.testing.conformance.life import Builder
from perdure.testing.conformance.stage import Stage
from perdure.testing.conformance.world import World

MIDDLE = "middle"


async def deed(world: World, words: str, middle: str = "") -> str:
    """What the tools and nodes of these stories do; the one that is the middle stops there."""
    world.note(words)
    if words == middle:
        await world.stop_at(MIDDLE)
        world.note(words, "done")
    return f"{words} done"


def story(
    name: str,
    promise: str,
    flow: Builder,
    deeds: Sequence[str],
    last: str,
    *,
    middle: str,
    ordered: bool = True,
    before: int = 0,
) -> tuple[ConformanceCase, ConformanceCase]:
    """Both cases.

    Args:
        deeds: the ledger of an undisturbed run, without what the middle adds.
        last: the last text of the conversation.
        middle: the deed in which the worker is killed.
        ordered: as in ``case``.
        before: how many calls must have their records before the worker is killed, those beside the middle included.
    """
    once = [*deeds, f"{middle} done"]

    async def undisturbed(stage: Stage) -> None:
        stage.world.open(MIDDLE)
        await stage.start()
        await _ends(stage, once, last)

    async def killed(stage: Stage) -> None:
        with stage.process() as doomed:
            await stage.up(doomed)
            await stage.start()
            await stage.reached(MIDDLE)
            await stage.step_named("CallTool", before, settled=True)
            doomed.kill()
        stage.world.open(MIDDLE)
        async with stage.worker():
            await _ends(stage, [*once, middle], last)

    def make(suffix: str, more: str, body: Body, *, served: bool) -> ConformanceCase:
        return case(f"{name}{suffix}", f"{promise}{more}.", flow, served=served, ordered=ordered)(body)

    return (
        make("", "", undisturbed, served=True),
        make("-killed", ", also when its worker is killed in the middle", killed, served=False),
    )


async def _ends(stage: Stage, deeds: Sequence[str], last: str) -> None:
    await stage.completed()
    same("the deeds, each as often as it happened", sorted(stage.world.ledger), sorted(deeds))
    same("the last words", (await stage.texts())[-1], last)
