"""The ``TurnLog`` of a turn that runs under a session's owner: reads from the store, writes through the owner."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from perdure.clock import Clock
from perdure.engine.arrivals import JoinAsked
from perdure.engine.book import TurnBook
from perdure.engine.feed import SessionFeed
from perdure.engine.limits import ensure_storable_messages
from perdure.session.model import AgentEventType, JsonObject, Usage
from perdure.session.runner import ModelCall, NewMessage, RecordedTurn
from perdure.store.base import SessionStore
from perdure.store.codec import ensure_fits


class StoreTurnLog:
    """What a live turn gets from its owner.

    Args:
        fresh: nothing of this leg of the turn is in the journal yet, so it need not be read.
        flush_soon: called when something waits for a write (a model call's record, a delta).
        flush_now: called when somebody waits for that write; gives what is done when it is.
        join: called when queued messages are to join the turn.
        steered: whether one of the queue may.
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
        flush_now: Callable[[], Awaitable[None]],
        join: Callable[[JoinAsked], None],
        steered: Callable[[], bool],
        news: Callable[[], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._book = book
        self._feed = feed
        self._fresh = fresh
        self._flush_soon = flush_soon
        self._flush_now = flush_now
        self._join = join
        self._steered = steered
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

    def steered(self) -> bool:
        return self._steered()

    def join(self, key: str, seen: Sequence[int]) -> asyncio.Future[ModelCall | None]:
        record: asyncio.Future[ModelCall | None] = asyncio.get_running_loop().create_future()
        self._join(JoinAsked(self._book.turn_id, key, self._book.next_sequence(), tuple(seen), record))
        return record

    async def written(self) -> None:
        await self._flush_now()

    def show_delta(
        self,
        kind: AgentEventType,
        text: str | None,
        *,
        step_id: str | None,
        attempt: int,
        item: JsonObject | None = None,
        behind: Sequence[NewMessage] = (),
    ) -> None:
        ensure_storable_messages(behind)
        if self._book.sealed:
            return
        for message in behind:
            self._store_early(message)
        self._feed.add(
            kind,
            self._clock.now_ms(),
            turn_id=self._book.turn_id,
            step_id=step_id,
            attempt=attempt,
            text=text,
            data=None if item is None else {"framework_item": item},
        )
        if behind:
            _ = self._flush_now()  # what was just said waits for them
        else:
            self._flush_soon()

    def _store_early(self, message: NewMessage) -> None:
        index = self._book.accept(message)
        if index is not None:
            self._book.unwritten_messages.append(message)
            self._feed.add(
                AgentEventType.MESSAGE, self._clock.now_ms(), turn_id=self._book.turn_id, data={"index": index}
            )

    def nudge(self) -> None:
        self._news()
