"""Sign-in requests and their answers.

What is asked for is shown without any secret.  What is answered is checked and completed as ADK's own auth preprocessor
does it, and put into the session's ``temp:`` state, which lives for the turn and is in no message.  There ADK's
``get_auth_response`` and ``CredentialManager`` look for it; they exchange it for a token (see ``credentials``).
"""

from __future__ import annotations

import hashlib
import json
import logging
from typing import Any
from urllib.parse import parse_qs, urlsplit

from google.adk.auth.auth_credential import AuthCredential
from google.adk.auth.auth_tool import AuthConfig
from google.adk.sessions.state import State
from pydantic import BaseModel, ValidationError

from perdure.adk import seams
from perdure.session.model import JsonObject, JsonValue

_logger = logging.getLogger(__name__)

_NOT_SHOWN = ("client_secret", "code_verifier", "access_token", "refresh_token", "id_token")
"""Of an OAuth2 credential: nobody who answers needs them."""


def shown_request(config: AuthConfig) -> JsonObject:
    """What whoever signs in is shown: ADK's ``AuthConfig`` as JSON, without secrets."""
    shown = config.model_copy(deep=True)
    for credential in (shown.raw_auth_credential, shown.exchanged_auth_credential):
        if credential is not None and credential.oauth2 is not None:
            for name in _NOT_SHOWN:
                setattr(credential.oauth2, name, None)
    return _form_of(shown)


def note_of(config: AuthConfig, state: dict[str, Any]) -> JsonObject:
    """What is kept of a request until it is answered."""
    return {"config": _form_of(config), "before": _fingerprint(state.get(_state_key(config)))}


def config_of(note: JsonObject) -> AuthConfig:
    """The request that a note is of."""
    return AuthConfig.model_validate(note["config"])


def store_answer(state: dict[str, Any], delta: dict[str, Any], note: JsonObject | None, response: JsonValue) -> None:
    """Stores the credential that the answer to a request brings.

    Two calls may ask for one login.  If it came meanwhile, it is used, and a second answer to the same question is not.
    An answer that does not fit its request changes nothing: the tool will ask again.

    Args:
        delta: what the call that asked has set itself; a credential there that did not do is forgotten.
    """
    if note is None:
        return
    config = config_of(note)
    key = _state_key(config)
    if _fingerprint(state.get(key)) == note["before"]:
        credential = _credential_of(config, response)
        if credential is None:
            return
        state[key] = credential
    delta.pop(key, None)


def _state_key(config: AuthConfig) -> str:
    return f"{State.TEMP_PREFIX}{config.credential_key}"


def _form_of(config: AuthConfig) -> JsonObject:
    form: JsonObject = config.model_dump(mode="json", exclude_none=True, by_alias=True)
    return form


def _fingerprint(credential: object) -> str | None:
    if credential is None:
        return None
    form = credential.model_dump(mode="json") if isinstance(credential, BaseModel) else credential
    return hashlib.sha256(json.dumps(form, sort_keys=True, default=str).encode()).hexdigest()


def _credential_of(config: AuthConfig, response: JsonValue) -> AuthCredential | None:
    """The credential in an answer: an ``AuthConfig``, an ``AuthCredential``, or a bare API key."""
    credential: AuthCredential | None
    try:
        credential = AuthConfig.model_validate(response).exchanged_auth_credential
    except (ValidationError, TypeError):
        try:
            credential = seams.credential_from_value(config, response)
        except (ValidationError, TypeError):
            credential = None
    if credential is None:
        _logger.warning("the answer to a sign-in request carries no credential; the tool will ask again")
        return None
    if not _fits(config, credential):
        _logger.warning("the answer to a sign-in request has another OAuth state than the request; it is not used")
        return None
    asked = config.exchanged_auth_credential or config.raw_auth_credential
    return seams.complete_credential(credential, asked, config.raw_auth_credential)


def _fits(config: AuthConfig, credential: AuthCredential) -> bool:
    """Whether the OAuth state that comes back, as a field or in the redirect, is the one that was sent."""
    asked = config.exchanged_auth_credential
    expected = asked.oauth2.state if asked is not None and asked.oauth2 is not None else None
    if expected is None or credential.oauth2 is None:
        return True
    returned = [credential.oauth2.state] if credential.oauth2.state is not None else []
    if credential.oauth2.auth_response_uri:
        returned += parse_qs(urlsplit(credential.oauth2.auth_response_uri).query).get("state", [])
    return all(state == expected for state in returned)
