"""``AgentSessionClient``: start, talk to, answer and watch sessions, from any process that reaches the store."""

from perdure.client.checks import DEFAULT_PAGE, MAX_PAGE, MAX_SESSION_ID_LENGTH, check_session_id, check_text
from perdure.client.sessions import AgentSessionClient

__all__ = [
    "DEFAULT_PAGE",
    "MAX_PAGE",
    "MAX_SESSION_ID_LENGTH",
    "AgentSessionClient",
    "check_session_id",
    "check_text",
]
