"""What a write changed, as a short text for other processes."""

from __future__ import annotations

from perdure.store.base import Change

ANYTHING = Change(None, True)

_WORK = "w"
_NO_WORK = "-"


def encode(change: Change, limit: int) -> str:
    """A change as text: whether there is work, then the ids, or nothing for "any session".

    Args:
        limit: most bytes that the ids may take; more are sent as "any session".
    """
    head = _WORK if change.work else _NO_WORK
    if change.sessions is None or any("\n" in session_id or "\0" in session_id for session_id in change.sessions):
        return head
    body = "\n".join(change.sessions)
    return head + body if len(body.encode()) <= limit else head


def decode(text: str) -> Change:
    """The change that a text tells of."""
    ids = text[1:]
    return Change(frozenset(ids.split("\n")) if ids else None, text[:1] != _NO_WORK)


def merge(one: Change, other: Change) -> Change:
    """Both changes as one."""
    sessions = None if one.sessions is None or other.sessions is None else one.sessions | other.sessions
    return Change(sessions, one.work or other.work)
