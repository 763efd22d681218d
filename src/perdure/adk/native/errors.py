"""perdure's errors where ADK's own interfaces promise another class: each is both, so either ``except`` catches it."""

from __future__ import annotations

from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError

from perdure.errors import SessionAlreadyExists, SessionNotFound, UsageError


class NoSuchSession(SessionNotFound, SessionNotFoundError):
    """The app and user have no session of this id.  Facts: ``session_id``."""


class SessionIdTaken(SessionAlreadyExists, AlreadyExistsError):
    """A session has this id, be it of another user or app.  Facts: ``session_id``."""


class WrongCall(UsageError, ValueError):
    """The call or the set-up is wrong, in a way for which ADK raises ``ValueError``; nothing was changed."""


def no_such_session(session_id: str, app_name: str, user_id: str, hint: str = "") -> NoSuchSession:
    """The error, which begins with ADK's words.  It says nothing of sessions that others have."""
    told = (
        f"Session not found: {session_id}. User {user_id!r} of app {app_name!r} has no session of this id: check the "
        "three, create it with the session service, or pass auto_create_session=True to the runner"
    )
    return NoSuchSession(f"{told}. {hint}" if hint else told, session_id=session_id)


def session_id_taken(session_id: str, app_name: str, user_id: str, *, theirs: bool) -> SessionIdTaken:
    """The error, which begins with ADK's words.

    Args:
        theirs: the session is not of this app and user.
    """
    who = f"user {user_id!r} of app {app_name!r}"
    what = (
        f"It is not a session of {who}: an id is unique in the whole store, over all users and apps. Choose another "
        "id, or leave session_id out to get one made"
        if theirs
        else f"It is a session of {who}: go on with it, delete it first, or choose another id"
    )
    return SessionIdTaken(f"Session with id {session_id} already exists. {what}", session_id=session_id)
