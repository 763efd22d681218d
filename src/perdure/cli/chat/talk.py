"""The conversation of ``perdure chat``: opening, messages, answers, until there are no more lines."""

from __future__ import annotations

import os
from collections import deque

from rich.console import Console
from rich.text import Text

from perdure.cli.base import suggest
from perdure.cli.chat.asking import give, prompt_for
from perdure.cli.chat.lines import Lines
from perdure.cli.stream import Follower, behind_last_message, end_of_stream, verdict
from perdure.cli.transcript import Transcript
from perdure.cli.views import error_text, message_text, print_answers, print_interrupt
from perdure.client import MAX_PAGE, AgentSessionClient
from perdure.engine.base import Engine
from perdure.errors import (
    InterruptAlreadyResolved,
    InterruptExpired,
    InterruptWithdrawn,
    SessionBlocked,
    SessionClosed,
    SessionNotFound,
    UsageError,
)
from perdure.session.model import AgentSnapshot, Interrupt, Message, SessionStatus, TurnStatus
from perdure.session.runner import AgentSessionFlow

SHOWN_MESSAGES = 6
"""How much of the conversation is shown when one comes back."""

KEY_VARIABLES = ("GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE")
"""Environment variables that give Gemini its credentials."""


class Talk:
    """One person's conversation with one session.

    Args:
        flow: what a session that does not exist yet becomes a session of.
    """

    def __init__(self, engine: Engine, flow: AgentSessionFlow, session_id: str, console: Console, lines: Lines) -> None:
        self._engine = engine
        self._client = AgentSessionClient(engine, flow)
        self._flow = flow
        self._session_id = session_id
        self._console = console
        self._lines = lines
        self._transcript = Transcript(console)
        self._follower = self._follow(None)
        self._found: AgentSnapshot | None = None
        """The session as it was before we did anything; ``None``: there was none."""
        self._shown_open: set[str] = set()
        self._end: str | None = None
        """The end of its stream then."""

    async def look(self) -> None:
        """Shows where the session stands.  Before there is a worker, so that what one does is seen from the start.

        Raises:
            UsageError: the session belongs to another flow.
        """
        try:
            snapshot = await self._client.get_agent_snapshot(self._session_id)
        except SessionNotFound:
            self._greet(f"new session {self._session_id}")
            return
        if snapshot.flow_type != self._flow.flow_type:
            raise UsageError(
                f"session {self._session_id!r} is of the flow {snapshot.flow_type!r}, and this agent is "
                f"{self._flow.flow_type!r}; choose another --session, or say --flow-type if it is the same agent",
                session_id=self._session_id,
                flow_type=snapshot.flow_type,
            )
        self._found, turn, store = snapshot, snapshot.turn, self._engine.store
        self._greet(f"session {self._session_id} goes on{_after_turns(turn.number if turn is not None else 0)}")
        for message in await self._last_messages():
            self._console.print(message_text(message), soft_wrap=True)
        self._end = after = await end_of_stream(store, self._session_id, None)
        if turn is not None and not turn.status.ended:
            # What was said is among the messages, or comes too late: it is stored with the first answer.
            self._transcript.own_turns.add(turn.turn_id)
            after = await behind_last_message(store, self._session_id, turn.turn_id)
        self._follower = self._follow(after)
        if snapshot.status is SessionStatus.RUNNING:
            self._say("(still at work)")
        elif _failed(snapshot) and snapshot.error is not None:
            self._say(f"the last turn failed: {error_text(snapshot.error)}")

    async def run(self) -> bool:
        """Talks until there are no more lines.  After ``look``, and while a worker runs.

        Returns:
            Whether the last turn failed.

        Raises:
            SessionBlocked, SessionClosed: the session takes no message.
        """
        snapshot = self._found
        if snapshot is not None:
            if snapshot.status is SessionStatus.BLOCKED:
                await verdict(self._engine, self._session_id, self._end)
            snapshot = await self._follower.until_rest()
        while True:
            if snapshot is not None:
                snapshot = await self._to_idle(snapshot)
                if snapshot is None:
                    return False
            line = await self._lines.read("> ")
            if line is None:
                return snapshot is not None and _failed(snapshot)
            if line.strip():
                await self._send(line, new=snapshot is None)
                snapshot = await self._follower.until_rest()

    def _follow(self, after: str | None) -> Follower:
        return Follower(self._engine, self._session_id, self._transcript, after)

    async def _last_messages(self) -> list[Message]:
        last: deque[Message] = deque(maxlen=SHOWN_MESSAGES)
        after: str | None = None
        while True:
            page = await self._client.list_messages(self._session_id, after=after, limit=MAX_PAGE)
            last.extend(page.items)
            after = page.next_cursor
            if after is None:
                return list(last)

    # ------------------------------------------------------------ between the lines

    async def _send(self, line: str, *, new: bool) -> None:
        if new:
            turn_id = await self._client.start_session(self._session_id, line)
        else:
            turn_id = await self._client.send_user_message(self._session_id, line)
        if turn_id is not None:
            self._transcript.own_turns.add(turn_id)

    async def _to_idle(self, snapshot: AgentSnapshot) -> AgentSnapshot | None:
        """Lets the person answer whatever the session waits for.  ``None``: there are no more lines.

        Raises:
            SessionBlocked, SessionClosed
        """
        while snapshot.status is SessionStatus.WAITING:
            for interrupt in snapshot.pending_interrupts:
                if not await self._ask(interrupt):
                    return None
            snapshot = await self._follower.until_rest()
        if snapshot.status is SessionStatus.BLOCKED:
            why = snapshot.error.message.rstrip(".") if snapshot.error is not None else "no reason was stored"
            raise SessionBlocked(
                f"session {self._session_id!r} is blocked: {why}. Bring back code that fits and it goes on, or cancel "
                f"the turn: {suggest('sessions', 'cancel', self._session_id)}",
                session_id=self._session_id,
            )
        if snapshot.status is SessionStatus.CLOSED:
            raise SessionClosed(
                f"session {self._session_id!r} is closed; begin another one with --new", session_id=self._session_id
            )
        self._show_open(snapshot)
        if _failed(snapshot) and _lacks_key(snapshot):
            self._say("hint: the agent uses Gemini, and GOOGLE_API_KEY is not set; export it and say it again")
        return snapshot

    async def _ask(self, interrupt: Interrupt) -> bool:
        """Asks for one decision.  False: there are no more lines."""
        self._transcript.end_line()
        print_interrupt(self._console, interrupt)
        line = ""
        while not line.strip():
            read = await self._lines.read(prompt_for(interrupt))
            if read is None:
                return False
            line = read
        try:
            await give(self._client, self._session_id, interrupt, line)
        except (InterruptAlreadyResolved, InterruptExpired, InterruptWithdrawn) as error:
            self._say(error.message)
        except UsageError as error:
            self._say(error.message)
            return await self._ask(interrupt)
        return True

    def _show_open(self, snapshot: AgentSnapshot) -> None:
        """What is asked although nothing waits for the answer; each is shown once."""
        for interrupt in snapshot.pending_interrupts:
            if interrupt.interrupt_id not in self._shown_open:
                self._shown_open.add(interrupt.interrupt_id)
                self._transcript.end_line()
                print_interrupt(self._console, interrupt)
                print_answers(self._console, snapshot, interrupt)

    def _greet(self, words: str) -> None:
        self._say(f"{words} (ctrl-C leaves at any point, and it stays)" if self._lines.interactive else words)

    def _say(self, words: str) -> None:
        self._transcript.line(Text(words, style="dim"))


def _after_turns(number: int) -> str:
    return f" after {number} turn{'s' if number > 1 else ''}" if number else ""


def _failed(snapshot: AgentSnapshot) -> bool:
    return snapshot.turn is not None and snapshot.turn.status is TurnStatus.FAILED


def _lacks_key(snapshot: AgentSnapshot) -> bool:
    """Whether the last turn failed for want of the credentials of Gemini."""
    error = snapshot.error
    return error is not None and "api key" in error.message.lower() and not any(map(os.environ.get, KEY_VARIABLES))
