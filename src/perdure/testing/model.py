"""``ScriptedModel``: a model for tests and demos that plays a script and keeps the requests it gets."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from google.adk.models import BaseLlm, LlmCapabilities
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.utils.streaming_utils import StreamingResponseAggregator
from google.genai import types
from pydantic import PrivateAttr

from perdure.errors import UsageError
from perdure.testing.history import check_history
from perdure.testing.request_log import RequestLog
from perdure.testing.script import Script, resolve


class ScriptedModel(BaseLlm):
    """An ADK model that answers by a script instead of thinking.

    ::

        agent = Agent(name="support", tools=[search], model=ScriptedModel([call("search", q="x"), text("Found it.")]))

    A list gives the nth response *of the turn*, counted in the request itself: after a crash the repeated request gets
    the same reply, in whatever process, and the list begins anew with each user message.  ``perdure.testing.script``
    says what else a script can be.

    Responses are built and streamed by ADK's own code for Gemini, so they look like Gemini's: with ``stream=True``
    partial responses and then the whole; without it, one response.

    Args:
        script: what to answer.
        model: the name that the model goes by.
        strict: refuse requests that strict providers refuse (see ``check_history``).
        log: a file to append every request to, so that the requests of a killed process are still seen (with
            ``read_request_log``) and the count of a ``failing`` entry survives it.  ``None`` keeps them in memory only.
        keep_requests: ``False`` keeps none, for measurements of speed.  Nothing is counted then either: a ``failing``
            entry fails for ever.

    Raises:
        UsageError: ``log`` is given although no requests are kept.
    """

    _script: Script = PrivateAttr()
    _strict: bool = PrivateAttr()
    _log: RequestLog | None = PrivateAttr()

    def __init__(
        self,
        script: Script,
        *,
        model: str = "scripted",
        strict: bool = True,
        log: str | os.PathLike[str] | None = None,
        keep_requests: bool = True,
    ) -> None:
        if log is not None and not keep_requests:
            raise UsageError(
                "ScriptedModel has a log= to keep requests in, but keep_requests=False; leave one of them out"
            )
        super().__init__(model=model)
        self._script = script
        self._strict = strict
        self._log = RequestLog(log) if keep_requests else None

    @property
    def requests(self) -> list[LlmRequest]:
        """Copies of the requests that came to this model (and its copies) in this process, oldest first."""
        return [] if self._log is None else self._log.requests

    @property
    def capabilities(self) -> LlmCapabilities:
        """None of the special ones."""
        return LlmCapabilities()

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Answers by the script.

        Raises:
            HistoryError: the request holds a history that strict providers refuse.
            ScriptError: the script has no reply for the request.
            Exception: what a ``failing`` entry raises.
        """
        self._maybe_append_user_content(llm_request)
        attempt = 1 if self._log is None else self._log.record(llm_request, stream=stream)
        if self._strict:
            check_history(llm_request)
        outcome = resolve(self._script, llm_request, attempt)
        async with aclosing(outcome.play(self.model, stream=stream)) as responses:
            if stream:
                async with aclosing(_streamed(responses)) as streamed:
                    async for response in streamed:
                        yield response
            else:
                async for whole in responses:
                    yield LlmResponse.create(whole)


async def _streamed(chunks: AsyncIterator[types.GenerateContentResponse]) -> AsyncGenerator[LlmResponse, None]:
    """Partial responses for the chunks and then the whole, as ADK makes them for Gemini."""
    aggregator = StreamingResponseAggregator()
    async for chunk in chunks:
        async with aclosing(aggregator.process_response(chunk)) as partials:
            async for partial in partials:
                yield partial
    whole = aggregator.close()
    if whole is not None:
        yield whole
