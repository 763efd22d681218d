"""Every error a user of perdure can meet, and the one table that maps them to the outside.

This module imports nothing of ours.  The tree::

    PerdureError
    ├── UsageError                      fix the call (or the set-up) and try again
    │   ├── ValueNotStorable            a value that has no JSON form
    │   └── PayloadTooLarge
    ├── NotFound
    │   ├── SessionNotFound
    │   ├── TurnNotFound
    │   ├── InterruptNotFound
    │   └── FlowNotFound
    ├── Conflict
    │   ├── SessionAlreadyExists
    │   ├── SessionClosed
    │   ├── SessionBlocked
    │   ├── RequestConflict             one request id, two different requests
    │   ├── InterruptAlreadyResolved
    │   ├── InterruptExpired
    │   ├── InterruptWithdrawn
    │   └── EventCursorExpired
    ├── NonDeterminismError             the code no longer repeats what was recorded
    ├── WaitTimeout
    ├── EngineError
    │   ├── LeaseLost
    │   ├── EngineUnavailable           Temporal cannot be reached
    │   ├── EngineAccessDenied
    │   ├── NamespaceNotFound
    │   ├── StoreMismatch               the namespace belongs to another store
    │   └── FrameworkDrift              google-adk changed under a seam we rely on
    └── StoreError
        ├── StoreNotOurs
        ├── StoreTooNew
        ├── StoreBusy
        ├── StoreReadOnly
        ├── StoreFull
        ├── StoreUnavailable            cannot be opened or reached
        └── StoreCorrupt

``ToolExecutionError`` stands beside the tree: a *tool* raises it, to report a failure that the model should see and
that must not be retried.  ``UntestedFrameworkWarning`` is a warning, not an error.

Each error has a stable ``code`` and carries its facts in ``facts`` (and as attributes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


class PerdureError(Exception):
    """Root of all errors that perdure raises.

    ``code`` is stable over releases; ``facts`` holds what the message says as data (JSON values only).
    """

    code: ClassVar[str] = "perdure_error"

    def __init__(self, message: str, /, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts

    def __getattr__(self, name: str) -> object:
        try:
            return self.__dict__["facts"][name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no fact {name!r}") from None


class UsageError(PerdureError):
    """The call or the set-up is wrong; nothing was changed."""

    code = "usage"


class ValueNotStorable(UsageError):
    """A value has no JSON form (an open file, a lock, a function).  Facts: ``where``, ``path``, ``type_name``."""

    code = "value_not_storable"


class PayloadTooLarge(UsageError):
    """A value is larger than the store takes.  Facts: ``where``, ``size``, ``limit`` (bytes)."""

    code = "payload_too_large"


class NotFound(PerdureError):
    """What was named does not exist."""

    code = "not_found"


class SessionNotFound(NotFound):
    """No session has this id.  Facts: ``session_id``."""

    code = "session_not_found"


class TurnNotFound(NotFound):
    """The session has no such turn, or it is no longer the open one.  Facts: ``session_id``, ``turn_id``."""

    code = "turn_not_found"


class InterruptNotFound(NotFound):
    """The session never raised this interrupt.  Facts: ``session_id``, ``interrupt_id``."""

    code = "interrupt_not_found"


class FlowNotFound(NotFound):
    """No flow of this type is known here.  Facts: ``flow_type``, ``known`` (list)."""

    code = "flow_not_found"


class Conflict(PerdureError):
    """The call is well formed, but what it names is in another state."""

    code = "conflict"


class SessionAlreadyExists(Conflict):
    """The id is taken by a session that was started otherwise.  Facts: ``session_id``."""

    code = "session_already_exists"


class SessionClosed(Conflict):
    """The session was closed.  Facts: ``session_id``."""

    code = "session_closed"


class SessionBlocked(Conflict):
    """The agent's code no longer fits the session.  Facts: ``session_id``, ``step``, ``expected``, ``found``."""

    code = "session_blocked"


class RequestConflict(Conflict):
    """A ``request_id`` was used before for another request.  Facts: ``session_id``, ``request_id``."""

    code = "request_conflict"


class InterruptAlreadyResolved(Conflict):
    """The interrupt has another answer.  Facts: ``session_id``, ``interrupt_id``, ``resolved_by``, ``resolved_at``."""

    code = "interrupt_already_resolved"


class InterruptExpired(Conflict):
    """The interrupt's deadline passed before an answer came.  Facts: ``session_id``, ``interrupt_id``, ``deadline``."""

    code = "interrupt_expired"


class InterruptWithdrawn(Conflict):
    """The turn ended before an answer came.  Facts: ``session_id``, ``interrupt_id``."""

    code = "interrupt_withdrawn"


class EventCursorExpired(Conflict):
    """The live stream no longer reaches back to this cursor.  Facts: ``session_id``, ``cursor``, ``oldest``."""

    code = "event_cursor_expired"


class NonDeterminismError(PerdureError):
    """A replay did not repeat what was recorded.  Facts: ``step``, ``expected``, ``found``."""

    code = "non_determinism"


class WaitTimeout(PerdureError):
    """``wait`` gave up; the session goes on.  Facts: ``session_id``, ``timeout`` (seconds), ``status``."""

    code = "wait_timeout"


class EngineError(PerdureError):
    """The engine could not do its part.  ``retryable`` says whether the same call may work later."""

    code = "engine"
    retryable: ClassVar[bool] = False


class LeaseLost(EngineError):
    """Another worker owns the session now; this one's write was refused.  Facts: ``session_id``."""

    code = "lease_lost"
    retryable = True


class EngineUnavailable(EngineError):
    """Temporal's server does not answer.  Facts: ``address``."""

    code = "engine_unavailable"
    retryable = True


class EngineAccessDenied(EngineError):
    """Temporal's server does not accept the credentials, or they do not reach far enough.

    Facts: ``address``, ``namespace``.
    """

    code = "engine_access_denied"


class NamespaceNotFound(EngineError):
    """Temporal's server has no such namespace.  Facts: ``address``, ``namespace``."""

    code = "namespace_not_found"


class StoreMismatch(EngineError):
    """The namespace belongs to another store.

    Facts: ``namespace``, ``registered``, ``registered_address``, ``store``, ``store_address`` (ids and addresses).
    """

    code = "store_mismatch"


class FrameworkDrift(EngineError):
    """The installed google-adk does not have a seam that perdure relies on.  Facts: ``name``, ``version``."""

    code = "framework_drift"


class UntestedFrameworkWarning(UserWarning):
    """The installed google-adk is a release that perdure was not tested with."""


class StoreError(PerdureError):
    """The store could not be read or written.  Facts: ``address``."""

    code = "store"


class StoreNotOurs(StoreError):
    """The file is a database (or a file) of another program."""

    code = "store_not_ours"


class StoreTooNew(StoreError):
    """A newer release of perdure wrote the store.  Facts: ``found``, ``supported`` (schema versions)."""

    code = "store_too_new"


class StoreBusy(StoreError):
    """Another program keeps the database locked.  Facts: ``waited`` (seconds)."""

    code = "store_busy"


class StoreReadOnly(StoreError):
    """The database cannot be written."""

    code = "store_read_only"


class StoreFull(StoreError):
    """The disk (or a quota) is full."""

    code = "store_full"


class StoreUnavailable(StoreError):
    """The store cannot be opened or reached."""

    code = "store_unavailable"


class StoreCorrupt(StoreError):
    """The store holds something that cannot be read.  Facts: ``where``."""

    code = "store_corrupt"


class ToolExecutionError(Exception):
    """Raise it in a tool: the call is recorded as ``failed`` at once, with no retry, and the model sees the message."""


@dataclass(frozen=True, slots=True)
class ErrorMapping:
    """How one error code appears outside: HTTP status, process exit code, console badge."""

    http_status: int
    exit_code: int
    badge: str


ERROR_TABLE: dict[str, ErrorMapping] = {
    PerdureError.code: ErrorMapping(500, 1, "error"),
    UsageError.code: ErrorMapping(400, 2, "usage"),
    ValueNotStorable.code: ErrorMapping(422, 2, "usage"),
    PayloadTooLarge.code: ErrorMapping(413, 2, "usage"),
    NotFound.code: ErrorMapping(404, 3, "not found"),
    SessionNotFound.code: ErrorMapping(404, 3, "not found"),
    TurnNotFound.code: ErrorMapping(404, 3, "not found"),
    InterruptNotFound.code: ErrorMapping(404, 3, "not found"),
    FlowNotFound.code: ErrorMapping(404, 3, "not found"),
    Conflict.code: ErrorMapping(409, 4, "conflict"),
    SessionAlreadyExists.code: ErrorMapping(409, 4, "conflict"),
    SessionClosed.code: ErrorMapping(409, 4, "closed"),
    SessionBlocked.code: ErrorMapping(409, 5, "blocked"),
    RequestConflict.code: ErrorMapping(409, 4, "conflict"),
    InterruptAlreadyResolved.code: ErrorMapping(409, 4, "answered"),
    InterruptExpired.code: ErrorMapping(410, 4, "expired"),
    InterruptWithdrawn.code: ErrorMapping(410, 4, "withdrawn"),
    EventCursorExpired.code: ErrorMapping(410, 4, "expired"),
    NonDeterminismError.code: ErrorMapping(409, 5, "blocked"),
    WaitTimeout.code: ErrorMapping(504, 6, "timeout"),
    EngineError.code: ErrorMapping(500, 7, "engine"),
    LeaseLost.code: ErrorMapping(503, 7, "engine"),
    EngineUnavailable.code: ErrorMapping(503, 7, "engine"),
    EngineAccessDenied.code: ErrorMapping(500, 7, "engine"),
    NamespaceNotFound.code: ErrorMapping(500, 7, "engine"),
    StoreMismatch.code: ErrorMapping(500, 7, "engine"),
    FrameworkDrift.code: ErrorMapping(500, 7, "engine"),
    StoreError.code: ErrorMapping(503, 8, "store"),
    StoreNotOurs.code: ErrorMapping(503, 8, "store"),
    StoreTooNew.code: ErrorMapping(503, 8, "store"),
    StoreBusy.code: ErrorMapping(503, 8, "store"),
    StoreReadOnly.code: ErrorMapping(503, 8, "store"),
    StoreFull.code: ErrorMapping(507, 8, "store"),
    StoreUnavailable.code: ErrorMapping(503, 8, "store"),
    StoreCorrupt.code: ErrorMapping(500, 8, "store"),
}
"""Stable code -> how it appears outside.  Each code has a row; a test holds the two together."""
