"""What becomes of one scripted model call, and how it is played out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from google.genai import types

from perdure.testing.gate import Gate
from perdure.testing.replies import Pause, Reply


@dataclass(frozen=True, slots=True)
class Outcome:
    """``reply`` whole; or, when there is an ``error``, its first ``after_chunks`` chunks and then the error."""

    reply: Reply
    error: Exception | None = None
    after_chunks: int = 0

    async def play(self, model: str, *, stream: bool) -> AsyncGenerator[types.GenerateContentResponse, None]:
        """Gives the responses as the Gemini API would, with all pauses on the way.

        Args:
            model: the name that the responses give as their model version.
            stream: whether the reply comes in chunks; if not, an error comes at once.

        Raises:
            Exception: the outcome's own error.
        """
        chunks = self.reply.chunks(model) if stream else [self.reply.whole(model)]
        fails_at = min(self.after_chunks, len(chunks)) if stream else 0
        for number, chunk in enumerate(chunks):
            self._fail_if_due(number, fails_at)
            for pause in self.reply.pauses:
                if pause.after_chunks == number or not stream:
                    await _make(pause)
            yield chunk
        for pause in self.reply.pauses:
            if stream and pause.after_chunks >= len(chunks):
                await _make(pause)
        self._fail_if_due(len(chunks), fails_at)

    def _fail_if_due(self, number: int, fails_at: int) -> None:
        if self.error is not None and number == fails_at:
            raise self.error.with_traceback(None)


async def _make(pause: Pause) -> None:
    if isinstance(pause.until, Gate):
        await pause.until.pass_through()
    else:
        await asyncio.sleep(pause.until.total_seconds())
