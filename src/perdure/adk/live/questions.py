"""Questions for which the live invocation waits.  Plain data."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from perdure.adk.live.runs import Run
from perdure.session.runner import Answer, Question


@dataclass(slots=True, eq=False)
class Asked:
    """A question that was asked.

    Attributes:
        fresh: the journal does not have it yet.
    """

    question: Question
    fresh: bool = True


@dataclass(slots=True, eq=False)
class AskedGroup:
    """Questions of one group.  The run that asked goes on when all of them are answered."""

    key: str
    owner: Run
    asked: dict[str, Asked]
    answers: asyncio.Future[list[Answer]]
