"""Session state: versions of the session's own keys by turn and leg, and the keys that sessions share.

``app:`` keys are shared by all sessions of an application, ``user:`` keys by all of one user in it; ``temp:`` keys are
never stored.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

from perdure.session.model import JsonObject, JsonValue
from perdure.store.codec import Packed, from_json, pack, to_json
from perdure.store.sqlite.queries import sql
from perdure.store.sqlite.rows import load
from perdure.store.sqlite.writer import Transaction

APP_PREFIX = "app:"
USER_PREFIX = "user:"
TEMP_PREFIX = "temp:"

CURRENT = 2**62
"""A turn number behind all turns."""

_SESSION_STATE_PUT = sql("session_state_put")
_SESSION_STATE_BEFORE = sql("session_state_before")
_SHARED_STATE_PUT = sql("shared_state_put")
_SHARED_STATE_OF = sql("shared_state_of")


@dataclass(frozen=True, slots=True)
class StateDelta:
    """State to set, as text, by where it is kept."""

    session: tuple[tuple[str, Packed], ...] = ()
    app: tuple[tuple[str, str], ...] = ()
    user: tuple[tuple[str, str], ...] = ()


NO_DELTA = StateDelta()


def split_delta(delta: Mapping[str, JsonValue], where: str) -> StateDelta:
    """Sorts a state delta by scope.

    Raises:
        ValueNotStorable, PayloadTooLarge: name the key.
    """
    if not delta:
        return NO_DELTA
    session: list[tuple[str, Packed]] = []
    app: list[tuple[str, str]] = []
    user: list[tuple[str, str]] = []
    for name, value in delta.items():
        if name.startswith(TEMP_PREFIX):
            continue
        place = f"{where} key {name!r}"
        text = to_json(value, place)
        packed = pack(text, place)
        if name.startswith(APP_PREFIX):
            app.append((name.removeprefix(APP_PREFIX), text))
        elif name.startswith(USER_PREFIX):
            user.append((name.removeprefix(USER_PREFIX), text))
        else:
            session.append((name, packed))
    return StateDelta(tuple(session), tuple(app), tuple(user))


def apply_delta(
    transaction: Transaction,
    session_key: int,
    app_name: str,
    user_id: str,
    delta: StateDelta,
    *,
    turn_number: int = 0,
    leg: int = 1,
) -> None:
    """Stores a delta: the session's own keys under turn and leg, shared ones for everybody at once."""
    if delta is NO_DELTA:
        return
    transaction.executemany(
        _SESSION_STATE_PUT,
        [(session_key, name, turn_number, leg, transaction.keep(session_key, value)) for name, value in delta.session],
    )
    shared = [(app_name, "app", "", name, text) for name, text in delta.app]
    shared += [(app_name, "user", user_id, name, text) for name, text in delta.user]
    transaction.executemany(_SHARED_STATE_PUT, shared)


def shared_state_text(connection: sqlite3.Connection, app_name: str, user_id: str) -> str | None:
    """The shared state that a session sees, as JSON with prefixes; ``None`` when there is none."""
    parts = [f"{to_json(name, 'key')}:{text}" for name, text in _shared_rows(connection, app_name, user_id)]
    return "{" + ",".join(parts) + "}" if parts else None


def shared_state(connection: sqlite3.Connection, app_name: str, user_id: str) -> JsonObject:
    """The shared state that a session sees, with prefixes."""
    return {
        name: from_json(text, f"shared state {name!r} of app {app_name!r}")
        for name, text in _shared_rows(connection, app_name, user_id)
    }


def _shared_rows(connection: sqlite3.Connection, app_name: str, user_id: str) -> list[tuple[str, str]]:
    of_app = connection.execute(_SHARED_STATE_OF, (app_name, "app", "")).fetchall()
    of_user = connection.execute(_SHARED_STATE_OF, (app_name, "user", user_id)).fetchall()
    return [(APP_PREFIX + name, text) for name, text in of_app] + [(USER_PREFIX + name, text) for name, text in of_user]


def own_state(
    connection: sqlite3.Connection, session_key: int, session_id: str, before_turn: int, before_leg: int = 1
) -> JsonObject:
    """The session's own keys as of the end of the leg or turn before this leg of ``before_turn``."""
    return {
        name: from_json(
            load(connection, value, f"session {session_id}, state {name!r}"), f"session {session_id}, state {name!r}"
        )
        for name, value in connection.execute(_SESSION_STATE_BEFORE, (session_key, before_turn, before_leg)).fetchall()
    }
