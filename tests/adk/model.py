"""A scripted model, small and for the tests of the ADK binding only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.platform import uuid as platform_uuid
from google.genai import types
from pydantic import Field, PrivateAttr


@dataclass(frozen=True)
class Flaky:
    """Fails with each of ``errors`` in turn, then answers ``then``.  ``partial``: what it streams before it fails."""

    errors: tuple[Exception, ...]
    then: LlmResponse | list[LlmResponse] | None = None
    partial: str = ""


Reply = LlmResponse | list[LlmResponse] | Flaky | Callable[[LlmRequest], LlmResponse]
"""A list streams: its last response is the final one."""


def says(words: str, **more: Any) -> LlmResponse:
    return LlmResponse(content=types.Content(role="model", parts=[types.Part(text=words)]), **more)


def calls(*wanted: tuple[str, dict[str, Any]], **more: Any) -> LlmResponse:
    parts = [types.Part(function_call=types.FunctionCall(name=name, args=args)) for name, args in wanted]
    return LlmResponse(content=types.Content(role="model", parts=parts), **more)


class ScriptedModel(BaseLlm):
    """Answers by place: the number of model contents in the request says which reply is due.

    So a turn that goes on after a crash gets the reply that the dead process would have had.
    """

    model: str = "scripted"
    replies: list[Any] = Field(default_factory=list)
    _requests: list[LlmRequest] = PrivateAttr(default_factory=lambda: list[LlmRequest]())
    _failed: dict[int, int] = PrivateAttr(default_factory=lambda: dict[int, int]())

    @property
    def requests(self) -> list[LlmRequest]:
        """What the model was asked, copied at that time."""
        return self._requests

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        platform_uuid.new_uuid()  # a replay does not take this id
        contents = [content.model_copy(deep=True) for content in llm_request.contents]
        self._requests.append(llm_request.model_copy(update={"contents": contents}))
        place = sum(1 for content in contents if content.role == "model")
        reply = self.replies[place]
        if isinstance(reply, Flaky):
            failed = self._failed.get(place, 0)
            if failed < len(reply.errors):
                self._failed[place] = failed + 1
                if reply.partial and stream:
                    yield says(reply.partial, partial=True)
                raise reply.errors[failed]
            reply = reply.then
        if callable(reply):
            reply = reply(llm_request)
        if isinstance(reply, list):
            for response in reply[:-1]:
                if stream:
                    await asyncio.sleep(0)
                    yield response.model_copy(deep=True)
            reply = reply[-1]
        assert isinstance(reply, LlmResponse)
        yield reply.model_copy(deep=True)
