"""The ``TurnLog`` of a turn that runs under a session's owner: reads from the store, writes through the owner."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perdure.clock import Clock
from perdure.engine.book import TurnBook
from perdure.engine.feed import SessionFeed
from perdure.session.model import AgentEventType, JsonObject, Usage
from perdure.session.runner import ModelCall, RecordedTurn
from perdure.store.base import SessionStore
from perdure.store.codec import ensure_fits


class StoreTurnLog:
    """What a live turn gets from its owner.

    Args:
        fresh: nothing of this leg of the turn is in the journal yet, so it need not be read.
        flush_soon: called when something waits for a write (a model call's record, a delta).
        news: called when the live turn asked for something while nobody drove it.
    """

    def __init__(
        self,
        store: SessionStore,
        clock: Clock,
        book: TurnBook,
        feed: SessionFeed,
        *,
        fresh: bool,
        flush_soon: Callable[[], None],
        news: Callable[[], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._book = book
        self._feed = feed
        self._fresh = fresh
        self._flush_soon = flush_soon
        self._news = news

    def now_ms(self) -> int:
        return self._clock.now_ms()

    async def recorded(self) -> RecordedTurn:
        if self._fresh:
            return RecordedTurn()
        return await self._store.read_recorded_turn(self._book.start.session_id, self._book.turn_id)

    async def load_history(self) -> Sequence[JsonObject]:
        before = self._book.first_index
        return await self._store.read_history(self._book.start.session_id, 0, before) if before else ()

    async def load_stored(self) -> Sequence[JsonObject]:
        start = self._book.start
        first = start.history_length + start.leg_length
        return await self._store.read_history(
            start.session_id, first, start.history_length + self._book.stored_messages
        )

    async def load_state(self) -> JsonObject:
        start = self._book.start
        return await self._store.read_turn_state(start.session_id, start.number, start.leg)

    async def record_model_call(self, key: str, response: str, usage: Usage, settled_at_ms: int) -> ModelCall:
        ensure_fits(response, f"the model's response to call {key}")
        call = ModelCall(key, self._book.next_sequence(), response, usage, settled_at_ms)
        self._book.usage += usage
        self._book.unwritten_models.append(call)
        self._flush_soon()
        return call

    def show_delta(self, kind: AgentEventType, text: str, *, step_id: str, attempt: int) -> None:
        self._feed.add(
            kind,
            self._clock.now_ms(),
            turn_id=self._book.turn_id,
            step_id=step_id,
            attempt=attempt,
            text=text,
        )
        self._flush_soon()

    def nudge(self) -> None:
        self._news()
