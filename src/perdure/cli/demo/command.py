"""The ``perdure demo`` command."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from perdure.cli.base import command, run
from perdure.cli.demo.scene import Scene
from perdure.cli.output import terminal


@command()
def demo() -> None:
    """See a crash in the middle of a refund, and what becomes of it.

    An order-support agent (Google ADK, with a scripted model) reads, asks for approval and pays a refund into a small
    ledger. Its worker process is killed right after the payment, before anything is recorded; another one takes over.
    Needs no key and no network, asks nothing, and leaves nothing behind. Exit code 0 if there is one refund, else 1.

    \b
    Examples:
      perdure demo
    """
    # Only the demo needs the testing tools.
    from perdure.cli.demo.story import tell
    from perdure.testing import ChildError

    with tempfile.TemporaryDirectory(prefix="perdure-demo-") as folder:
        try:
            as_it_must = run(tell(Scene(Path(folder)), terminal()))
        except (ChildError, TimeoutError) as error:
            raise click.ClickException(f"the demo came to no end: {str(error) or 'time is up'}") from error
    click.get_current_context().exit(0 if as_it_must else 1)
