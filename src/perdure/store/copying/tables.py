"""Which tables of a store a copy carries over, and how their rows are told apart and put in order.

What the columns are, each database says by itself; both have the same.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """One table.

    Attributes:
        order: its primary key, by which its rows are in the same order in every database.
        of_turns: its rows belong to turns; else they belong to sessions.
        counted: its key is a number that the database gives out.
    """

    name: str
    order: tuple[str, ...]
    of_turns: bool = False
    counted: bool = False


SESSIONS = Table("sessions", ("session_key",), counted=True)
TURNS = Table("turns", ("turn_key",), counted=True)

OF_SESSION = (
    SESSIONS,
    TURNS,
    Table("legs", ("turn_key", "leg"), of_turns=True),
    Table("steps", ("session_key", "position")),
    Table("calls", ("call_key",), of_turns=True, counted=True),
    Table("model_calls", ("turn_key", "leg", "key"), of_turns=True),
    Table("interrupts", ("interrupt_key",), counted=True),
    Table("questions", ("question_key",), counted=True),
    Table("messages", ("session_key", "position")),
    Table("inbox", ("session_key", "position")),
    Table("requests", ("session_key", "request_id")),
    Table("events", ("session_key", "fence", "number")),
    Table("session_state", ("session_key", "name", "turn_number", "leg")),
)
"""What belongs to one session, and is carried over with it.  Long texts are carried over where they are referred to."""

SHARED = Table("shared_state", ("app_name", "scope", "user_id", "name"))
"""What sessions share; it is carried over whole."""

LEFT_BEHIND = frozenset({"meta", "workers", "worker_flows", "writers", "payloads", "payload_refs"})
"""What belongs to the store itself, or to processes that have it open, or is the way in which one kind keeps texts."""

OWN_META = frozenset({"format", "schema_version", "moved_to", "copy_of", "copy_run"})
"""Facts of a store about itself that another one does not take over."""
