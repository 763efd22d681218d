"""ADK's own compaction in a durable turn: a summary is made once, and a replay gets the recorded one.

When to compact and what, ADK decides (``App.events_compaction_config``); the summary is a message like any other.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from google.adk.apps.app import EventsCompactionConfig
from google.adk.apps.base_events_summarizer import BaseEventsSummarizer
from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
from google.adk.events.event import Event

from perdure.adk.live import determinism
from perdure.adk.live.core import current_turn
from perdure.adk.models.once import once
from perdure.adk.models.retries import is_transient
from perdure.adk.models.usage import usage_of
from perdure.adk.records.history import item_of
from perdure.session.model import JsonValue, Usage
from perdure.session.policy import RetryPolicy


def durable_compaction(config: EventsCompactionConfig | None) -> EventsCompactionConfig | None:
    """The same configuration, with a summarizer that makes each summary once.  The given one is left as it is."""
    if config is None:
        return None
    copied = _DurableConfig.model_construct(**vars(config))
    copied.summarizer = config.summarizer
    return copied


class _DurableConfig(EventsCompactionConfig):
    """Wraps the summarizer that ADK puts in when the application has given none."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "summarizer" and isinstance(value, BaseEventsSummarizer):
            value = _DurableSummarizer(value)
        super().__setattr__(name, value)


class _DurableSummarizer(BaseEventsSummarizer):
    """Asks another summarizer, once for each summary of a turn."""

    def __init__(self, inner: BaseEventsSummarizer) -> None:
        self._inner = inner

    async def maybe_summarize_events(self, *, events: list[Event]) -> Event | None:
        """The summary of the record; without one, the other summarizer's.

        Raises:
            Exception: the last failure of the other one; ADK goes on without a summary.
        """
        core = current_turn.get()
        if core is None or determinism.is_suspended():
            return await self._inner.maybe_summarize_events(events=events)
        summary = _Summary(self._inner, events, core.settings.model_retry)
        item = await once(core, "summary", summary.make, usage=summary.usage)
        return None if item is None else Event.model_validate_json(json.dumps(item))


class _Summary:
    """One summary in the making.  A model that does not answer for a passing reason is asked again."""

    def __init__(self, summarizer: BaseEventsSummarizer, events: list[Event], retry: RetryPolicy) -> None:
        self._summarizer = summarizer
        self._events = events
        self._retry = retry
        self._attempts = 0
        self._event: Event | None = None

    async def make(self) -> JsonValue:
        """The summary's event in its stored form; ``None``: the summarizer gives none."""
        while True:
            self._attempts += 1
            try:
                self._event = await self._summarizer.maybe_summarize_events(events=self._events)
            except Exception as error:
                if self._attempts == self._retry.max_attempts or not is_transient(error):
                    raise
            else:
                return None if self._event is None else json.loads(item_of(self._event))
            await asyncio.sleep(self._retry.delay_after(self._attempts).total_seconds())

    def usage(self) -> Usage:
        """What it cost.  Whether another summarizer than ADK's asks a model, only the event can say."""
        reported = None if self._event is None else self._event.usage_metadata
        asks = isinstance(self._summarizer, LlmEventSummarizer) or reported is not None
        return usage_of(reported, self._attempts if asks else 0)
