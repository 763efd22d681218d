"""A local server that speaks the Gemini API's REST protocol and plays a script.

With it the real google-genai client and ADK's own ``Gemini`` model are tested, and so are programs in other processes:
the server is in the test's process and outlives the worker that is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import threading
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Self, cast
from urllib.parse import urlsplit

from google.adk.models.llm_request import LlmRequest
from google.genai import types
from google.genai.errors import APIError

from perdure.errors import UsageError
from perdure.session.model import JsonObject
from perdure.testing._http import EventStream, HttpRequest, read_request, send_json
from perdure.testing.history import check_history
from perdure.testing.outcome import Outcome
from perdure.testing.request_log import RequestLog
from perdure.testing.script import Script, api_error, resolve

_METHOD = re.compile(r"/models/(?P<model>[^/:]+):(?P<method>generateContent|streamGenerateContent)$")


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """One HTTP request to the server.

    Attributes:
        path: without the query.
        headers: names in lower case.
        body: the JSON that was sent.
    """

    path: str
    headers: Mapping[str, str]
    body: JsonObject


class GeminiServer:
    """The Gemini API on 127.0.0.1, for the length of a ``with`` block.

    ::

        with GeminiServer([call("search", q="x"), text("Found it.")]) as server:
            client = genai.Client(api_key="any", http_options=types.HttpOptions(base_url=server.url))

    It answers ``generateContent`` and ``streamGenerateContent`` by the same scripts as ``ScriptedModel``.  Rules see
    the contents, the system instruction and the tools of a request; the rest of it is in ``received``.  An API error
    of the script is answered as the API does (in the middle of a stream: as an error event); any other exception of
    the script breaks the connection off.  It has a thread of its own, so it also serves a test that blocks.

    Args:
        script: what to answer.
        strict: answer a history that strict providers refuse with 400 (see ``check_history``).
        log: a file to append every request to; ``None`` for none.
    """

    def __init__(self, script: Script, *, strict: bool = True, log: str | os.PathLike[str] | None = None) -> None:
        self._script = script
        self._strict = strict
        self._log = RequestLog(log)
        self._received: list[ReceivedRequest] = []
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()

    @property
    def url(self) -> str:
        """The base URL, such as ``http://127.0.0.1:40123``.

        Raises:
            UsageError: the server does not run.
        """
        if self._socket is None:
            raise UsageError("the server runs only inside its with block")
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that lead google-genai to this server, for a child process."""
        return {"GOOGLE_GEMINI_BASE_URL": self.url, "GOOGLE_API_KEY": "no-key-needed"}

    @property
    def requests(self) -> list[LlmRequest]:
        """The requests to the model, oldest first, as rules see them."""
        return self._log.requests

    @property
    def received(self) -> list[ReceivedRequest]:
        """The requests to the model as they came over the wire, oldest first."""
        return list(self._received)

    def __enter__(self) -> Self:
        self._socket = socket.create_server(("127.0.0.1", 0))
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(started)), name="gemini-server")
        self._thread.start()
        started.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._loop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._socket = None

    async def _serve(self, started: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._serve_connection, sock=self._socket)
        started.set()
        await self._stop.wait()
        server.close()

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await read_request(reader)) is not None:
                await self._answer(request, writer)
        except ConnectionError:
            pass  # the client has left
        finally:
            writer.transport.abort()

    async def _answer(self, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
        """Answers one request.

        Raises:
            ConnectionError: the connection is to be broken off.
        """
        path = urlsplit(request.target).path
        found = _METHOD.search(path)
        if found is None or request.method != "POST":
            await self._send_error(writer, api_error(404, f"no such method: {request.method} {path}"))
            return
        body: JsonObject = json.loads(request.body)
        self._received.append(ReceivedRequest(path, request.headers, body))
        model, stream = found["model"], found["method"] == "streamGenerateContent"
        try:
            outcome = self._choose(_llm_request(model, body), stream=stream)
        except Exception as problem:  # noqa: BLE001 - whatever a rule raises helps whoever reads the client's error
            await self._send_error(writer, api_error(400, f"{type(problem).__name__}: {problem}"))
            return
        if stream:
            await self._stream(outcome, model, writer)
        else:
            await self._send(outcome, model, writer)

    def _choose(self, request: LlmRequest, *, stream: bool) -> Outcome:
        attempt = self._log.record(request, stream=stream)
        if self._strict:
            check_history(request)
        return resolve(self._script, request, attempt)

    async def _send(self, outcome: Outcome, model: str, writer: asyncio.StreamWriter) -> None:
        try:
            async with aclosing(outcome.play(model, stream=False)) as responses:
                async for response in responses:
                    await send_json(writer, 200, _to_json(response))
        except APIError as error:
            await self._send_error(writer, error)
        except Exception as error:
            raise ConnectionAbortedError from error

    async def _stream(self, outcome: Outcome, model: str, writer: asyncio.StreamWriter) -> None:
        events = EventStream(writer)
        try:
            async with aclosing(outcome.play(model, stream=True)) as responses:
                async for response in responses:
                    await events.send(_to_json(response))
            await events.end()
        except APIError as error:
            if events.begun:
                await events.send(_error_json(error))
                await events.end()
            else:
                await self._send_error(writer, error)
        except Exception as error:
            raise ConnectionAbortedError from error

    @staticmethod
    async def _send_error(writer: asyncio.StreamWriter, error: APIError) -> None:
        await send_json(writer, error.code, _error_json(error))


def _llm_request(model: str, body: JsonObject) -> LlmRequest:
    """What a rule needs to know of a request, in ADK's form."""
    config = {key: body[key] for key in ("systemInstruction", "tools", "toolConfig") if key in body}
    return LlmRequest(
        model=model,
        contents=[types.Content.model_validate(content) for content in body.get("contents", ())],
        config=types.GenerateContentConfig.model_validate(config),
    )


def _error_json(error: APIError) -> JsonObject:
    """The error as the API sends it, with the details that it was made with."""
    made_with = cast(object, error.details)  # pyright: ignore[reportUnknownMemberType]  # genai leaves it untyped
    if isinstance(made_with, dict) and "error" in made_with:
        return cast(JsonObject, made_with)
    return {"error": {"code": error.code, "message": error.message, "status": error.status}}


def _to_json(response: types.GenerateContentResponse) -> JsonObject:
    return response.model_dump(mode="json", by_alias=True, exclude_none=True)
