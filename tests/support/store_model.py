"""What the SQLite store must show of its sessions: a model that fits in the head."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from perdure.session.model import (
    InterruptStatus,
    RecordStatus,
    SessionStatus,
    StepStatus,
    TurnStatus,
)
from perdure.session.runner import QuestionWait
from perdure.store.base import (
    GivenAnswer,
)

SESSIONS = ("a", "b")
WORKERS = ("w0", "w1")
RING = 2000
T = TypeVar("T")


@dataclass
class Turn:
    turn_id: str
    status: TurnStatus = TurnStatus.RUNNING
    first: int = 0
    texts: list[str] = field(default_factory=list[str])
    records: dict[str, tuple[RecordStatus, int]] = field(default_factory=dict[str, tuple[RecordStatus, int]])
    calls: list[str] = field(default_factory=list[str])
    models: dict[str, int] = field(default_factory=dict[str, int])
    leg: int = 1
    earlier: list[str] = field(default_factory=list[str])
    """Calls of earlier legs."""
    questions: dict[str, int | None] = field(default_factory=dict[str, "int | None"])
    """Of this leg, live ones: the sequence of the answer; -1: none will come."""


@dataclass
class Session:
    """What a session must look like."""

    fingerprint: str
    status: SessionStatus = SessionStatus.IDLE
    owner: str | None = None
    fence: int | None = None
    queue: list[str] = field(default_factory=list[str])
    begun: list[str] = field(default_factory=list[str])
    turn: Turn | None = None
    log: list[str] = field(default_factory=list[str])
    steps: dict[str, StepStatus] = field(default_factory=dict[str, StepStatus])
    interrupts: dict[str, tuple[InterruptStatus, GivenAnswer | None]] = field(
        default_factory=dict[str, tuple[InterruptStatus, "GivenAnswer | None"]]
    )
    waits: dict[str, QuestionWait] = field(default_factory=dict[str, QuestionWait])
    """Of the interrupts that are questions."""
    places: dict[str, tuple[str, int, QuestionWait]] = field(default_factory=dict[str, "tuple[str, int, QuestionWait]"])
    """Turn, leg and wait of each of them."""
    late: dict[str, bool] = field(default_factory=dict[str, bool])
    """Of those that start turns: whether the owner still has to hear of their end."""
    answers: int = 0
    requests: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    events: list[str] = field(default_factory=list[str])

    @property
    def due(self) -> bool:
        if self.owner is not None:
            return False
        if self.turn is not None and self.turn.status is TurnStatus.WAITING:
            return self.answers > 0  # a message cannot begin before the turn ends
        return bool(self.queue) or self.answers > 0 or self.turn is not None

    def rest(self, status: SessionStatus) -> None:
        """Its owner says that it rests; it does not if there is something in the inbox that it can go on with."""
        moves = bool(self.answers or (self.queue and status is SessionStatus.IDLE))
        self.status = SessionStatus.RUNNING if moves else status

    def take(self, *, message: bool = False, more_needed: bool = False) -> None:
        """It has a new inbox item."""
        self.answers += not message
        waits_on = self.status is SessionStatus.WAITING and (message or more_needed)
        if not waits_on:
            self.status = SessionStatus.RUNNING

    def needs_more(self, interrupt_id: str) -> bool:
        """Whether what waits for the answer to a question waits for further ones."""
        return any(
            self.interrupts[other][0] is InterruptStatus.PENDING
            for other, place in self.places.items()
            if place == self.places.get(interrupt_id)
        )
