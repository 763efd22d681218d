"""Scripts: how a scripted model chooses its reply.

A script is one of

* a ``Reply`` or a ``Failure``: always this;
* a list: its nth entry is the nth response of the turn, counted in the contents of the request;
* a rule: a function from the request to a script.

The choice depends on nothing but the request, so a model call that is repeated after a crash, by a process that starts
from nothing, gets the same reply.  (How often a request was made is the one thing remembered, and only a ``Failure``
asks for it.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

from google.genai.errors import APIError, ClientError, ServerError

from perdure.errors import UsageError
from perdure.testing.outcome import Outcome
from perdure.testing.reading import agent_name, replies_this_turn, user_messages, user_text
from perdure.testing.replies import Reply

if TYPE_CHECKING:
    from google.adk.models.llm_request import LlmRequest

_API_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


class ScriptError(AssertionError):
    """The script has no reply for a request; the message says which request, and what the script has."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A model call that fails.  Make it with ``failing``.

    Attributes:
        error: what is raised.
        times: how many requests with the same contents fail; ``None`` is all of them.
        then: the script for the requests after that, and for what a failing stream begins with.
        after_chunks: how many chunks of ``then`` a stream gives before it fails.
    """

    error: Exception
    times: int | None
    then: Script | None
    after_chunks: int


Rule: TypeAlias = "Callable[[LlmRequest], Script]"
"""Chooses by the request."""

Script: TypeAlias = "Reply | Failure | Sequence[Script] | Rule"


def failing(
    error: Exception | int, *, times: int | None = None, then: Script | None = None, after_chunks: int = 0
) -> Failure:
    """A model call that fails, for ever or a number of times.

    Requests are the same when their contents and system instruction are; each has its own count.  The count is kept in
    the model's memory, or in its log file when it has one, and then survives the process.

    Args:
        error: what to raise; a number is short for ``api_error(number)``.
        times: how often it fails, at least 1; ``None`` is for ever.
        then: what comes after that; needed exactly when ``times`` or ``after_chunks`` is given.
        after_chunks: a stream fails only after so many chunks of ``then``; what is not streamed fails at once.

    Raises:
        UsageError: ``then`` is missing or of no use, or a number is too small.
    """
    if times is not None and times < 1:
        raise UsageError(f"failing(times={times}): a failure happens at least once")
    if after_chunks < 0:
        raise UsageError(f"failing(after_chunks={after_chunks}): it must not be negative")
    if (then is None) != (times is None and after_chunks == 0):
        raise UsageError("failing() takes then= exactly when times= or after_chunks= says that there is something else")
    return Failure(api_error(error) if isinstance(error, int) else error, times, then, after_chunks)


def api_error(code: int, message: str | None = None, *, retry_after: timedelta | None = None) -> APIError:
    """The error that google-genai raises for an HTTP error of the Gemini API.

    Args:
        code: the HTTP status, 400 to 599.
        message: the API's own words; ``None`` makes some.
        retry_after: the pause that the API asks for, as ``google.rpc.RetryInfo`` in the details.
    """
    status = _API_STATUS.get(code, "UNKNOWN")
    error: dict[str, object] = {"code": code, "message": message or f"scripted {status}", "status": status}
    if retry_after is not None:
        retry_info = {
            "@type": "type.googleapis.com/google.rpc.RetryInfo",
            "retryDelay": f"{retry_after.total_seconds():g}s",
        }
        error["details"] = [retry_info]
    kind = ClientError if code < 500 else ServerError
    return kind(code, {"error": error})


def by_message(scripts: Mapping[str, Script], *, otherwise: Script | None = None) -> Rule:
    """A rule that goes by the last user message: the first key that occurs in it (in any case) gives the script.

    Args:
        otherwise: the script for all other messages; ``None`` makes them an error.
    """

    def rule(request: LlmRequest) -> Script:
        said = user_text(request).casefold()
        for key, script in scripts.items():
            if key.casefold() in said:
                return script
        if otherwise is not None:
            return otherwise
        raise ScriptError(f"no script for the user message {user_text(request)!r}; there are scripts for {[*scripts]}")

    return rule


def by_turn(*scripts: Script) -> Rule:
    """A rule for a conversation: the nth user message in the request gives the nth script.

    It counts what the request shows, so it does not fit an agent that sees only part of the conversation.
    """

    def rule(request: LlmRequest) -> Script:
        number = max(user_messages(request), 1)
        if number > len(scripts):
            raise ScriptError(f"no script for user message {number} ({user_text(request)!r}); there are {len(scripts)}")
        return scripts[number - 1]

    return rule


def by_agent(scripts: Mapping[str, Script]) -> Rule:
    """A rule for several agents that share one model: the name of the agent that asks gives the script."""

    def rule(request: LlmRequest) -> Script:
        name = agent_name(request)
        if name is None or name not in scripts:
            raise ScriptError(f"no script for the agent {name!r}; there are scripts for {[*scripts]}")
        return scripts[name]

    return rule


def resolve(script: Script, request: LlmRequest, attempt: int) -> Outcome:
    """What becomes of ``request`` under ``script``.

    Args:
        attempt: how often this request was made, this time included.

    Raises:
        ScriptError: the script has no reply for the request.
    """
    match script:
        case Reply():
            return Outcome(script)
        case Failure():
            return _resolve_failure(script, request, attempt)
        case Sequence():
            return resolve(_nth_of_turn(script, request), request, attempt)
        case _:
            return resolve(script(request), request, attempt)


def _resolve_failure(failure: Failure, request: LlmRequest, attempt: int) -> Outcome:
    times = failure.times
    fails = times is None or attempt <= times
    if not fails and failure.then is not None and times is not None:
        return resolve(failure.then, request, attempt - times)
    begun = Reply(()) if failure.then is None else resolve(failure.then, request, 1).reply
    return Outcome(begun, failure.error, failure.after_chunks)


def _nth_of_turn(script: Sequence[Script], request: LlmRequest) -> Script:
    given = replies_this_turn(request)
    if given >= len(script):
        raise ScriptError(
            f"no entry {given + 1} in a script of {len(script)}: the model has answered {given} times since the user "
            f"said {user_text(request)!r}"
        )
    return script[given]
