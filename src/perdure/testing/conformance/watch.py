"""``Watch``: eyes for the sessions of a case, and patience for what must happen to them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import monotonic

from perdure.client import AgentSessionClient
from perdure.errors import WaitTimeout
from perdure.session.model import (
    AgentEvent,
    AgentEventType,
    AgentSnapshot,
    Interrupt,
    Message,
    SessionStatus,
    StepRecord,
    TurnInfo,
    TurnStatus,
)
from perdure.testing.conformance.checks import ConformanceFailure, same
from perdure.testing.conformance.world import LOOK_EVERY, World
from perdure.testing.engine import read_messages, read_step_history

PATIENCE = 60.0
"""Seconds that a case waits for what must happen; long, because a machine may be busy and a server far away."""


@dataclass(kw_only=True)
class Watch:
    """The sessions of one run of a case, and its world.

    Attributes:
        client: of the case's flow.
    """

    world: World
    client: AgentSessionClient
    _sessions: dict[str, str] = field(default_factory=dict[str, str])
    _left_out: set[str] = field(default_factory=set[str])

    def session(self, name: str = "s") -> str:
        """The id of a session of this case; what it holds will be in the recording, and it is deleted at the end."""
        return self._sessions.setdefault(name, f"{self.world.flow_type}/{name}")

    @property
    def sessions(self) -> dict[str, str]:
        """Name -> id of all sessions so far."""
        return dict(self._sessions)

    @property
    def recorded(self) -> dict[str, str]:
        """Those that belong into the recording."""
        return {name: each for name, each in self._sessions.items() if name not in self._left_out}

    def leave_out(self, name: str) -> None:
        """Leaves a session out of the recording, and ledger and requests with it: what became of it was luck."""
        self._left_out.add(name)

    def forget(self, name: str) -> None:
        """Leaves out a session that never was."""
        del self._sessions[name]

    # ------------------------------------------------------------ what there is

    async def steps(self, name: str = "s") -> list[StepRecord]:
        """The step history."""
        return await read_step_history(self.client, self.session(name))

    async def calls(self, name: str = "s") -> dict[str, StepRecord]:
        """The steps that ran a tool, by tool name; the last of each."""
        return {step.tool_name or "": step for step in await self.steps(name) if step.name.value.startswith("Call")}

    async def messages(self, name: str = "s") -> list[Message]:
        """The conversation."""
        return await read_messages(self.client, self.session(name))

    async def texts(self, name: str = "s") -> list[str]:
        """What was said, without calls and their results."""
        return [message.text for message in await self.messages(name) if message.text]

    async def events_until(self, *kinds: AgentEventType, name: str = "s", after: str | None = None) -> list[AgentEvent]:
        """The live stream from a cursor to the first event of one of these kinds."""
        seen: list[AgentEvent] = []
        stream = self.client.stream_events(self.session(name), after=after)
        async with asyncio.timeout(PATIENCE):
            async for event in stream:
                seen.append(event)
                if event.type in kinds:
                    break
        await stream.aclose()
        return seen

    # ------------------------------------------------------------ until it rests

    async def rest(self, *statuses: SessionStatus, name: str = "s") -> AgentSnapshot:
        """Waits until the session rests, and in one of these statuses if any are given.

        Raises:
            ConformanceFailure: it does not, for longer than patience lasts.
        """
        give_up = monotonic() + PATIENCE
        while True:
            try:
                snapshot = await self.client.wait(self.session(name), timeout=PATIENCE)
            except WaitTimeout as error:
                raise ConformanceFailure(str(error)) from error
            if not statuses or snapshot.status in statuses:
                return snapshot
            if monotonic() > give_up:
                raise ConformanceFailure(f"session {name!r} is {snapshot.status.value}; error: {snapshot.error}")
            await asyncio.sleep(LOOK_EVERY)

    async def idle(self, name: str = "s") -> AgentSnapshot:
        """Waits until the session is idle."""
        return await self.rest(SessionStatus.IDLE, name=name)

    async def completed(self, name: str = "s") -> TurnInfo:
        """Waits until the session is idle; its last turn must be completed.

        Raises:
            ConformanceFailure: it is not; says why.
        """
        turn = turn_of(await self.idle(name))
        same("the turn", (turn.status, turn.error), (TurnStatus.COMPLETED, None))
        return turn

    async def asked(self, count: int = 1, name: str = "s") -> list[Interrupt]:
        """Waits until the session waits for so many answers; they are sorted by tool and arguments.

        Raises:
            ConformanceFailure: it waits for others.
        """
        snapshot = await self.rest(SessionStatus.WAITING, name=name)
        same("pending interrupts", len(snapshot.pending_interrupts), count)
        return sorted(snapshot.pending_interrupts, key=lambda each: (each.tool_name, str(each.arguments), each.hint))

    async def asked_anew(self, before: Interrupt, count: int = 1, name: str = "s") -> list[Interrupt]:
        """``asked``, when what was asked before is not pending any more."""

        async def moved_on() -> bool:
            pending = (await self.rest(SessionStatus.WAITING, name=name)).pending_interrupts
            return bool(pending) and before.interrupt_id not in {each.interrupt_id for each in pending}

        await self.until(moved_on, "other interrupts")
        return await self.asked(count, name)

    # ------------------------------------------------------------ until something has happened

    async def settled(self, tool_name: str, name: str = "s") -> None:
        """Waits until a call of the tool has its record."""

        async def has_it() -> bool:
            step = (await self.calls(name)).get(tool_name)
            return step is not None and step.status.settled

        await self.until(has_it, f"a record of {tool_name}")

    async def step_named(self, step_name: str, count: int = 1, *, settled: bool = False, name: str = "s") -> None:
        """Waits until there are so many steps of a name, and have ended if that is wanted."""

        async def are_there() -> bool:
            steps = [step for step in await self.steps(name) if step.name.value == step_name]
            return len([step for step in steps if step.status.settled or not settled]) >= count

        await self.until(are_there, f"{step_name} ({count})")

    async def charged(self, model_calls: int, name: str = "s") -> None:
        """Waits until so many model calls have their records."""

        async def has_them() -> bool:
            return (await self.client.get_agent_snapshot(self.session(name))).usage.model_calls >= model_calls

        await self.until(has_them, f"{model_calls} recorded model calls")

    async def queued(self, count: int, name: str = "s") -> None:
        """Waits until so many messages are queued."""

        async def are_queued() -> bool:
            return (await self.client.get_agent_snapshot(self.session(name))).queued_messages == count

        await self.until(are_queued, f"{count} queued messages")

    async def reached(self, place: str, count: int = 1) -> None:
        """Waits until somebody stops at a place."""
        await self.until(lambda: _truth(self.world.arrived(place) >= count), f"somebody to come to {place!r}")

    async def noted(self, line: str) -> None:
        """Waits until a line is in the ledger."""
        await self.until(lambda: _truth(line in self.world.ledger), f"{line!r} in the ledger")

    async def until(self, condition: Callable[[], Awaitable[bool]], what: str) -> None:
        """Looks again and again until it is so.

        Raises:
            ConformanceFailure: patience is over.
        """
        give_up = monotonic() + PATIENCE
        while not await condition():
            if monotonic() > give_up:
                raise ConformanceFailure(f"waited {PATIENCE:g} s for {what}")
            await asyncio.sleep(LOOK_EVERY)


async def _truth(value: bool) -> bool:
    return value


def turn_of(snapshot: AgentSnapshot) -> TurnInfo:
    """The open turn, or the last one.

    Raises:
        ConformanceFailure: there is none.
    """
    if snapshot.turn is None:
        raise ConformanceFailure(f"session {snapshot.session_id!r} has no turn")
    return snapshot.turn
