"""Just enough HTTP/1.1 for a local test server: read a request, answer with JSON or with server-sent events.

Written out because a test server must be able to do what frameworks prevent: break a connection off in the middle.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

from perdure.session.model import JsonObject


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request.  Names of headers are in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


async def read_request(reader: asyncio.StreamReader) -> HttpRequest | None:
    """The next request of a connection; ``None`` when the client has closed it."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        start, *lines = head.decode("latin-1").rstrip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    method, target, _ = start.split(" ", 2)
    return HttpRequest(method, target, headers, body)


async def send_json(writer: asyncio.StreamWriter, status: int, value: JsonObject) -> None:
    """Answers with a JSON object."""
    body = json.dumps(value).encode()
    writer.write(_head(status, {"Content-Type": "application/json; charset=UTF-8", "Content-Length": str(len(body))}))
    writer.write(body)
    await writer.drain()


class EventStream:
    """An answer in server-sent events.  A stream that is not ended is broken, and the client can tell."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.begun = False

    async def send(self, value: JsonObject) -> None:
        """Sends one event; the first one begins the answer."""
        if not self.begun:
            self.begun = True
            self._writer.write(_head(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}))
        event = b"data: " + json.dumps(value).encode() + b"\r\n\r\n"
        self._writer.write(b"%x\r\n%b\r\n" % (len(event), event))
        await self._writer.drain()

    async def end(self) -> None:
        """Ends the answer in good order."""
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
