"""Session state: versions of the session's own keys by turn and leg, and the keys that sessions share.

``app:`` keys are shared by all sessions of an application, ``user:`` keys by all of one user in it; ``temp:`` keys are
never stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from perdure.session.model import JsonObject, JsonValue
from perdure.store.codec import Packed, ensure_name_fits, from_json, pack, to_json
from perdure.store.sql.connection import Connection
from perdure.store.sql.rows import load
from perdure.store.sql.transaction import Transaction

APP_PREFIX = "app:"
USER_PREFIX = "user:"
TEMP_PREFIX = "temp:"

CURRENT = 2**62
"""A turn number behind all turns."""


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
        ensure_name_fits(name, f"{where} key {name[:40]!r}...")
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
        "session_state_put",
        [(session_key, name, turn_number, leg, transaction.keep(session_key, value)) for name, value in delta.session],
    )
    # Always in the same order: writers that change the same keys at the same time must not wait for each other.
    shared = [(app_name, "app", "", name, text) for name, text in sorted(delta.app)]
    shared += [(app_name, "user", user_id, name, text) for name, text in sorted(delta.user)]
    transaction.executemany("shared_state_put", shared)


def shared_state_text(connection: Connection, app_name: str, user_id: str) -> str | None:
    """The shared state that a session sees, as JSON with prefixes; ``None`` when there is none."""
    found = connection.execute("shared_state_of", (app_name, user_id)).fetchall()
    parts = [f"{to_json(name, 'key')}:{text}" for name, text in found]
    return "{" + ",".join(parts) + "}" if parts else None


class SessionState:
    """The state that a session sees, asked for at once and read when it is wanted.

    Args:
        before_turn, before_leg: the session's own keys are those as of the end of the leg or turn before this one.
    """

    def __init__(
        self,
        connection: Connection,
        session_key: int,
        session_id: str,
        app_name: str,
        user_id: str,
        *,
        before_turn: int = CURRENT,
        before_leg: int = 1,
    ) -> None:
        self._connection = connection
        self._session_id = session_id
        self._app_name = app_name
        self._own = connection.execute("session_state_before", (session_key, before_turn, before_leg))
        self._shared = connection.execute("shared_state_of", (app_name, user_id))

    def own(self) -> JsonObject:
        """The session's own keys."""
        state: JsonObject = {}
        for name, value in self._own.fetchall():
            where = f"session {self._session_id!r}, state {name!r}"
            state[name] = from_json(load(self._connection, value, where), where)
        return state

    def shared(self) -> JsonObject:
        """The keys of the application and of the user, as they are now."""
        return {
            name: from_json(text, f"shared state {name!r} of app {self._app_name!r}")
            for name, text in self._shared.fetchall()
        }
