"""The ``perdure demo`` command."""

from __future__ import annotations

import click


@click.command()
def demo() -> None:
    """See a crash in the middle of a refund, and what becomes of it."""
