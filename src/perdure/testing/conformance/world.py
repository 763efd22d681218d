"""``World``: what all processes of one case share.  Flows are built in it, and its folder says what really happened.

A case's flow is built anew in every process, from nothing but a ``World``.  So whatever its tools do is a line of a
file, and where they stop is a file too: other processes have nothing else.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent

from perdure.adk import adk_agent_session_flow
from perdure.session.policy import RetryPolicy, ToolEffect, ToolPolicy
from perdure.session.runner import AgentSessionFlow
from perdure.testing.model import ScriptedModel
from perdure.testing.request_log import LoggedRequest, read_request_log
from perdure.testing.script import Script

AT_ONCE = RetryPolicy(first_delay=timedelta(0))
READ = ToolPolicy(ToolEffect.READ, retry=AT_ONCE)
IDEMPOTENT = ToolPolicy(ToolEffect.IDEMPOTENT_WRITE, retry=AT_ONCE)
ONCE = ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=False)
ASKED = ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE)
"""A write that must not be repeated: by its effect it waits for a person first."""

LOOK_EVERY = 0.01
"""Seconds between two looks at what another process does."""

Tool = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class World:
    """The place in which a case plays.

    Attributes:
        folder: shared by all processes of the case.
        flow_type: of the case's flow.
        variant: which code this process has, for cases about changed code; ``""`` is the original.
    """

    folder: Path
    flow_type: str
    variant: str = ""

    # ------------------------------------------------------------ building flows

    def model(self, script: Script) -> ScriptedModel:
        """A scripted model whose requests are kept, whichever process makes them."""
        return ScriptedModel(script, log=self.folder / "requests.jsonl")

    def agent(self, script: Script, tools: Sequence[Any] = (), **options: Any) -> LlmAgent:
        """An agent; ``options`` are ADK's."""
        given: dict[str, Any] = {"name": "helper", "instruction": "Help.", "tools": list(tools), **options}
        return LlmAgent(model=self.model(script), **given)

    def flow(self, agent: Any, policies: Mapping[str, ToolPolicy] | None = None, **options: Any) -> AgentSessionFlow:
        """The agent as the case's flow; ``options`` are those of ``adk_agent_session_flow``."""
        given: dict[str, Any] = {"model_retry": AT_ONCE, **options}
        return adk_agent_session_flow(agent, flow_type=self.flow_type, tool_policies=policies, **given)

    # ------------------------------------------------------------ what happened

    def note(self, *words: object) -> None:
        """A deed: one line of the ledger, written when this returns."""
        self._append("ledger.txt", " ".join(map(str, words)))

    @property
    def ledger(self) -> list[str]:
        """All deeds of all processes, oldest first."""
        return self._lines("ledger.txt")

    @property
    def requests(self) -> list[LoggedRequest]:
        """What the models were asked in all processes, oldest first."""
        return read_request_log(self.folder / "requests.jsonl")

    # ------------------------------------------------------------ places where a process stops

    async def stop_at(self, place: str) -> None:
        """Says that it has come to ``place`` and goes on when the case opens it."""
        self._append("places.txt", place)
        while not self._door(place).exists():  # noqa: ASYNC110 - the case is another process, which has files only
            await asyncio.sleep(LOOK_EVERY)

    def arrived(self, place: str) -> int:
        """How often somebody came to a place."""
        return self._lines("places.txt").count(place)

    def open(self, place: str) -> None:
        """Lets pass whoever stops there, and all who come later."""
        self._door(place).touch()

    def _door(self, place: str) -> Path:
        return self.folder / f"open-{place.replace(' ', '-')}"

    def _append(self, name: str, line: str) -> None:
        """In a single write, so that lines of several processes do not mix."""
        descriptor = os.open(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, f"{line}\n".encode())
        finally:
            os.close(descriptor)

    def _lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
