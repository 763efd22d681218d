"""What all processes of the demo agree on: where its files are, who plays, what is said."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from perdure.cli.demo.ledger import Ledger

FLOW_TYPE = "OrderSupport"
SESSION_ID = "kettle"
QUESTION = "My kettle leaks. Please refund order 1042."
APPROVER = "ann"

PAID = "paid, and waiting for the bank to confirm"
"""What the first worker prints when it is time to kill it."""


@dataclass(frozen=True, slots=True)
class Scene:
    """The folder with the demo's files."""

    folder: Path

    @property
    def engine_address(self) -> str:
        """Where the sessions are."""
        return f"sqlite:///{self.folder / 'sessions.db'}"

    @property
    def ledger(self) -> Ledger:
        """Where the money is."""
        return Ledger(self.folder / "ledger.db")

    @property
    def request_log(self) -> Path:
        """Every request to the model, with the process that made it."""
        return self.folder / "requests.jsonl"
