"""What a scripted model says: text, thoughts and function calls, as one response or cut into streamed chunks.

A reply is turned into the ``GenerateContentResponse``s that Gemini itself would send.  ``ScriptedModel`` hands them to
ADK, ``GeminiServer`` sends them over HTTP; so both stream alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import pairwise

from google.genai import types

from perdure.errors import UsageError
from perdure.session.model import JsonValue
from perdure.testing.gate import Gate

DEFAULT_TEXT_CHUNKS = 2
"""Into how many pieces a text is cut when it is streamed."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """What one response costs, in tokens."""

    prompt: int
    candidates: int
    thoughts: int = 0
    tool_use_prompt: int = 0

    def metadata(self) -> types.GenerateContentResponseUsageMetadata:
        """The usage as the Gemini API reports it, with a response or the last chunk of one."""
        return types.GenerateContentResponseUsageMetadata(
            prompt_token_count=self.prompt,
            candidates_token_count=self.candidates or None,
            thoughts_token_count=self.thoughts or None,
            tool_use_prompt_token_count=self.tool_use_prompt or None,
            total_token_count=self.prompt + self.candidates + self.thoughts + self.tool_use_prompt,
        )

    def metadata_so_far(self) -> types.GenerateContentResponseUsageMetadata:
        """The usage as it is reported with the earlier chunks: that of the prompt."""
        return replace(self, candidates=0, thoughts=0).metadata()


DEFAULT_USAGE = Tokens(10, 5)
"""What a reply costs that does not say: the same each time, so that a test can count."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One part of a reply.  ``chunks``: into how many pieces its text is cut when it is streamed."""

    part: types.Part
    chunks: int = 1

    def __post_init__(self) -> None:
        if self.chunks < 1:
            raise UsageError(f"a text cannot be cut into {self.chunks} chunks; chunks must be at least 1")

    def cut(self) -> Iterator[types.Part]:
        """Copies of the part, cut for streaming; a thought signature comes with the last piece, as Gemini sends it."""
        whole = self.part
        if not whole.text or self.chunks == 1:
            yield whole.model_copy(deep=True)
            return
        count = min(self.chunks, len(whole.text))
        ends = [len(whole.text) * number // count for number in range(count + 1)]
        for number, (start, end) in enumerate(pairwise(ends), 1):
            signature = whole.thought_signature if number == count else None
            yield types.Part(text=whole.text[start:end], thought=whole.thought, thought_signature=signature)


@dataclass(frozen=True, slots=True)
class Pause:
    """A stop after so many streamed chunks: for a length of time, or until a gate opens."""

    until: timedelta | Gate
    after_chunks: int


@dataclass(frozen=True, slots=True)
class Reply:
    """One response of the model.  Make it with ``text``, ``call``, ``thought`` and ``reply``.

    Attributes:
        pieces: the parts, in order.
        usage: the tokens it cost; ``None`` reports none.
        finish_reason: why the model stopped; ADK reports every reason but ``STOP`` as an error.
        pauses: where it stops on the way.  A reply that is not streamed makes all its pauses before it comes.
    """

    pieces: tuple[Piece, ...]
    usage: Tokens | None = DEFAULT_USAGE
    finish_reason: types.FinishReason = types.FinishReason.STOP
    pauses: tuple[Pause, ...] = ()

    def signed(self, signature: bytes) -> Reply:
        """The same reply with a thought signature on its last part."""
        return self._with_last(self._last().part.model_copy(update={"thought_signature": signature}))

    def with_id(self, call_id: str) -> Reply:
        """The same reply with an id on its last part, which must be a function call.

        Raises:
            UsageError: the last part is no function call.
        """
        part = self._last().part
        if part.function_call is None:
            raise UsageError("with_id gives an id to a function call; this reply does not end with one")
        numbered = part.function_call.model_copy(update={"id": call_id})
        return self._with_last(part.model_copy(update={"function_call": numbered}))

    def delayed(self, delay: timedelta, *, after_chunks: int = 0) -> Reply:
        """The same reply with a wait before it, or after so many of its streamed chunks.

        For demos and for the measurement of slow models; a test that waits for something uses ``held``.
        """
        return replace(self, pauses=(*self.pauses, Pause(delay, after_chunks)))

    def held(self, gate: Gate, *, after_chunks: int = 0) -> Reply:
        """The same reply, held back at ``gate`` before it comes, or after so many of its streamed chunks."""
        return replace(self, pauses=(*self.pauses, Pause(gate, after_chunks)))

    def whole(self, model: str) -> types.GenerateContentResponse:
        """The response as Gemini sends it when it does not stream.

        Args:
            model: the name that the response gives as its model version.
        """
        parts = [piece.part.model_copy(deep=True) for piece in self.pieces]
        return self._response(parts, model, self._metadata(), self.finish_reason)

    def chunks(self, model: str) -> list[types.GenerateContentResponse]:
        """The response as Gemini streams it: one part to a chunk, the full usage and the reason to stop on the last.

        Args:
            model: the name that the response gives as its model version.
        """
        parts: list[list[types.Part]] = [[part] for piece in self.pieces for part in piece.cut()] or [[]]
        so_far = None if self.usage is None else self.usage.metadata_so_far()
        return [
            *(self._response(chunk, model, so_far, None) for chunk in parts[:-1]),
            self._response(parts[-1], model, self._metadata(), self.finish_reason),
        ]

    def _metadata(self) -> types.GenerateContentResponseUsageMetadata | None:
        return None if self.usage is None else self.usage.metadata()

    def _last(self) -> Piece:
        if not self.pieces:
            raise UsageError("this reply has no part")
        return self.pieces[-1]

    def _with_last(self, part: types.Part) -> Reply:
        return replace(self, pieces=(*self.pieces[:-1], replace(self._last(), part=part)))

    @staticmethod
    def _response(
        parts: list[types.Part],
        model: str,
        usage: types.GenerateContentResponseUsageMetadata | None,
        finish_reason: types.FinishReason | None,
    ) -> types.GenerateContentResponse:
        candidate = types.Candidate(
            content=types.Content(role="model", parts=parts), index=0, finish_reason=finish_reason
        )
        return types.GenerateContentResponse(candidates=[candidate], usage_metadata=usage, model_version=model)


def text(value: str, *, chunks: int = DEFAULT_TEXT_CHUNKS) -> Reply:
    """A reply in words.

    Args:
        chunks: into how many pieces it is cut when it is streamed, at least 1; a short text makes fewer.

    Raises:
        UsageError: ``chunks`` is below 1.
    """
    return Reply((Piece(types.Part(text=value), chunks),))


def call(tool_name: str, /, **arguments: JsonValue) -> Reply:
    """A reply that calls one tool.  The call has no id, as most models leave it; ``with_id`` gives it one."""
    return Reply((Piece(types.Part(function_call=types.FunctionCall(name=tool_name, args=arguments))),))


def thought(value: str, *, signature: bytes | None = None, chunks: int = 1) -> Reply:
    """A reply that only thinks; put it before others with ``reply``.

    Args:
        signature: the opaque bytes that the model wants back with the next request.
        chunks: into how many pieces it is cut when it is streamed, at least 1.

    Raises:
        UsageError: ``chunks`` is below 1.
    """
    return Reply((Piece(types.Part(text=value, thought=True, thought_signature=signature), chunks),))


def image(data: bytes, mime_type: str = "image/png") -> Reply:
    """A reply that shows an image (or other media: the type says which)."""
    return Reply((Piece(types.Part(inline_data=types.Blob(data=data, mime_type=mime_type))),))


def reply(
    *parts: Reply | types.Part,
    usage: Tokens | None = DEFAULT_USAGE,
    finish_reason: types.FinishReason = types.FinishReason.STOP,
) -> Reply:
    """One response of several parts: ``reply(thought("Hm."), call("stock", sku="A"), call("stock", sku="B"))``.

    Args:
        parts: replies and bare ``Part``s, in order.  Pauses of the replies are kept, each before its own parts.
        usage: the tokens it cost, for example ``Tokens(120, 8)``; ``None`` reports none.
        finish_reason: why the model stopped.
    """
    pieces: list[Piece] = []
    pauses: list[Pause] = []
    streamed = 0
    for part in parts:
        given = part if isinstance(part, Reply) else Reply((Piece(part),))
        pauses.extend(replace(pause, after_chunks=pause.after_chunks + streamed) for pause in given.pauses)
        pieces.extend(given.pieces)
        streamed += sum(1 for piece in given.pieces for _ in piece.cut())
    return Reply(tuple(pieces), usage, finish_reason, tuple(pauses))
