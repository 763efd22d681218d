"""The requests that a scripted model got: in memory, and in a file that outlives a killed process."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from google.genai import types

from perdure.session.model import JsonObject
from perdure.testing.reading import system_text, tool_names

if TYPE_CHECKING:
    from google.adk.models.llm_request import LlmRequest


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request, as a log file keeps it.

    Attributes:
        fingerprint: equal for requests with the same model, contents and system instruction.
        attempt: how often this request had been made when it was made, this time included.
        process_id: of the process that made it.
        tools: the names of the functions that were offered.
    """

    fingerprint: str
    attempt: int
    process_id: int
    model: str | None
    stream: bool
    system_instruction: str
    tools: tuple[str, ...]
    contents: tuple[types.Content, ...]


class RequestLog:
    """Keeps requests, and counts how often each was made.

    Args:
        path: a file to append every request to, one JSON object a line; several processes may share it.  ``None``
            keeps them in memory only.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path = None if path is None else Path(path)
        self._lock = threading.Lock()
        self._requests: list[LlmRequest] = []
        self._attempts: Counter[str] = Counter()
        self._counted_to = 0
        """Up to which byte of the file ``_attempts`` has counted."""

    @property
    def requests(self) -> list[LlmRequest]:
        """Deep copies of the requests that came in this process, as they were when they came, oldest first."""
        with self._lock:
            return list(self._requests)

    def record(self, request: LlmRequest, *, stream: bool) -> int:
        """Keeps ``request``.  Returns how often it was made, this time included.

        With a file, the request is on it (though perhaps not yet on the disk) when this returns.
        """
        fingerprint = request_fingerprint(request)
        with self._lock:
            self._requests.append(copy_request(request))
            if self._path is None:
                self._attempts[fingerprint] += 1
            else:
                self._count(self._path, _append(self._path, _entry(request, fingerprint, stream=stream)))
            return self._attempts[fingerprint]

    def _count(self, path: Path, end: int) -> None:
        """Counts what this and other processes have appended, up to the byte ``end``, where this one's line ends."""
        with path.open("rb") as file:
            file.seek(self._counted_to)
            lines = file.read(end - self._counted_to).splitlines()
        self._attempts.update(json.loads(line)["fingerprint"] for line in lines)
        self._counted_to = end

    def __deepcopy__(self, memo: dict[int, object]) -> RequestLog:
        return self


def read_request_log(path: str | os.PathLike[str]) -> list[LoggedRequest]:
    """The requests in a log file, oldest first; none when there is no such file."""
    if not os.path.exists(path):
        return []
    attempts: Counter[str] = Counter()
    logged: list[LoggedRequest] = []
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        attempts[entry["fingerprint"]] += 1
        contents = tuple(types.Content.model_validate(content) for content in entry.pop("contents"))
        tools = tuple(entry.pop("tools"))
        logged.append(LoggedRequest(attempt=attempts[entry["fingerprint"]], contents=contents, tools=tools, **entry))
    return logged


def request_fingerprint(request: LlmRequest) -> str:
    """A hash that is equal for requests with the same model, contents and system instruction."""
    asked = [request.model, system_text(request), _contents(request)]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def copy_request(request: LlmRequest) -> LlmRequest:
    """A copy that no later change of ``request`` reaches; the tools are the same, ``http_options`` are left out."""
    config = request.config.model_copy(update={"http_options": None}).model_copy(deep=True)
    contents = [content.model_copy(deep=True) for content in request.contents]
    return request.model_copy(update={"contents": contents, "config": config, "tools_dict": dict(request.tools_dict)})


def _contents(request: LlmRequest) -> list[JsonObject]:
    return [content.model_dump(mode="json", by_alias=True, exclude_none=True) for content in request.contents]


def _entry(request: LlmRequest, fingerprint: str, *, stream: bool) -> JsonObject:
    return {
        "fingerprint": fingerprint,
        "process_id": os.getpid(),
        "model": request.model,
        "stream": stream,
        "system_instruction": system_text(request),
        "tools": tool_names(request),
        "contents": _contents(request),
    }


def _append(path: Path, entry: JsonObject) -> int:
    """Appends one line in a single write, so that lines of several processes do not mix.  Returns where it ends."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, json.dumps(entry).encode() + b"\n")
        return os.lseek(descriptor, 0, os.SEEK_CUR)
    finally:
        os.close(descriptor)
