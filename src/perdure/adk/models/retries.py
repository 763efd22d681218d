"""Which failures of a model call are worth another try."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import httpx
from google.genai.errors import APIError

_RETRIED_STATUS = frozenset({408, 429})
_CONNECTION_CLASSES = ("APIConnectionError", "APITimeoutError")
"""How the client libraries behind LiteLLM and Anthropic models call a request that got no answer."""


def is_transient(error: BaseException) -> bool:
    """Whether a model may answer the same request later: no connection, a timeout, 429, 5xx."""
    return any(_is_transient(each) for each in _with_causes(error))


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, TimeoutError | ConnectionError | httpx.TransportError):
        return True
    status = error.code if isinstance(error, APIError) else getattr(error, "status_code", None)
    if isinstance(status, int):
        return status in _RETRIED_STATUS or 500 <= status <= 599
    return type(error).__name__ in _CONNECTION_CLASSES or _is_aiohttp_connection_error(error)


def _is_aiohttp_connection_error(error: BaseException) -> bool:
    # google-genai uses aiohttp when it is installed; without it there is nothing to look for.
    aiohttp = sys.modules.get("aiohttp")
    return aiohttp is not None and isinstance(
        error, (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, aiohttp.ServerTimeoutError)
    )
