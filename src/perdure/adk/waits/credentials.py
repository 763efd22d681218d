"""Token exchanges and refreshes of a durable turn: each is made once, whatever crashes.

An authorization code can be redeemed once, and many servers take a refresh token once.  So what comes back from a token
server is recorded before anything follows from it, and a later attempt, on another worker, gets it from the record.

The record holds the tokens.  It is the one place where perdure keeps any: messages, steps, interrupts and the live
stream have none.  ``install`` puts this into ADK's own exchanger and refresher; outside a durable turn nothing changes.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

from google.adk.auth.auth_credential import AuthCredential, AuthCredentialTypes, OAuth2Auth

from perdure.adk import seams
from perdure.adk.live.core import TurnCore, current_turn
from perdure.adk.live.journal import ASIDE
from perdure.adk.marks import is_ours, ours
from perdure.session.model import NO_USAGE


def install() -> None:
    """Makes ADK exchange and refresh tokens through here, once per process."""
    original = seams.token_methods()
    if is_ours(original.exchange):
        return

    async def exchange(self: Any, auth_credential: AuthCredential, auth_scheme: Any = None) -> seams.ExchangeResult:
        core = current_turn.get()
        key = _exchange_key(auth_credential)
        if core is None or key is None:
            return await original.exchange(self, auth_credential, auth_scheme)
        async with core.tokens:
            known = _recorded(core, key, auth_credential)
            if known is not None:
                return seams.ExchangeResult(known, True)
            result = await original.exchange(self, auth_credential, auth_scheme)
            if result.was_exchanged:
                await _record(core, key, result.credential)
            return result

    def exchange_sync(self: Any, auth_credential: AuthCredential, auth_scheme: Any = None) -> seams.ExchangeResult:
        core = current_turn.get()
        key = _exchange_key(auth_credential)
        if core is None or key is None:
            return original.exchange_sync(self, auth_credential, auth_scheme)
        if not _runs_in(core.loop):
            done = asyncio.run_coroutine_threadsafe(exchange(self, auth_credential, auth_scheme), core.loop)
            return done.result()
        # A coroutine called ADK's synchronous method: the loop stands still, and the record is written right after.
        known = _recorded(core, key, auth_credential)
        if known is not None:
            return seams.ExchangeResult(known, True)
        result = original.exchange_sync(self, auth_credential, auth_scheme)
        if result.was_exchanged:
            core.conductor.journal.asides[key] = text_of(result.credential)
            writing = core.loop.create_task(_record(core, key, result.credential))
            core.writing.add(writing)
            writing.add_done_callback(core.writing.discard)
        return result

    async def refresh(self: Any, auth_credential: AuthCredential, auth_scheme: Any = None) -> AuthCredential:
        core = current_turn.get()
        key = _refresh_key(auth_credential)
        if core is None or key is None:
            return await original.refresh(self, auth_credential, auth_scheme)
        async with core.tokens:
            known = _recorded(core, key, auth_credential)
            if known is not None:
                return known
            before = auth_credential.oauth2.model_copy() if auth_credential.oauth2 else None
            refreshed = await original.refresh(self, auth_credential, auth_scheme)
            if refreshed.oauth2 != before:
                await _record(core, key, refreshed)
            return refreshed

    async def load_from_auth_response(self: Any, context: Any) -> AuthCredential | None:
        core = current_turn.get()
        if core is None:
            return await original.load_from_auth_response(self, context)
        # It would exchange the credential on the spot and let the event loop wait.
        try:
            return await asyncio.to_thread(context.get_auth_response, self._auth_config)
        except asyncio.CancelledError:
            core.conductor.parking.guard()
            raise

    seams.set_token_methods(seams.TokenMethods(ours(exchange), exchange_sync, refresh, load_from_auth_response))


async def written() -> None:
    """Waits until what the running tool got from a token server is in the journal."""
    core = current_turn.get()
    if core is not None and core.writing:
        await asyncio.gather(*core.writing)


def text_of(credential: AuthCredential) -> str:
    """A credential as it is recorded: without the application's own secret, which its configuration has."""
    return seams.without_client_secret(credential).model_dump_json(exclude_none=True)


def _runs_in(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def _oauth2_of(credential: AuthCredential) -> OAuth2Auth | None:
    oauth = (AuthCredentialTypes.OAUTH2, AuthCredentialTypes.OPEN_ID_CONNECT)
    return credential.oauth2 if credential.auth_type in oauth else None


def _exchange_key(credential: AuthCredential) -> str | None:
    """``None``: there is nothing to exchange that could be exchanged only once."""
    oauth2 = _oauth2_of(credential)
    if oauth2 is None or oauth2.access_token or not (oauth2.auth_code or oauth2.auth_response_uri):
        return None
    return _key("exchange", oauth2.client_id, oauth2.auth_code, oauth2.auth_response_uri)


def _refresh_key(credential: AuthCredential) -> str | None:
    oauth2 = _oauth2_of(credential)
    if oauth2 is None or not oauth2.refresh_token:
        return None
    # With the old access token: a server may let one refresh token be used again and again.
    return _key("refresh", oauth2.client_id, oauth2.refresh_token, oauth2.access_token)


def _key(what: str, *parts: str | None) -> str:
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return f"{ASIDE}{what}|{digest[:32]}"


def _recorded(core: TurnCore, key: str, credential: AuthCredential) -> AuthCredential | None:
    """The recorded successor of a credential, with the client secret that it came with."""
    text = core.conductor.journal.asides.get(key)
    if text is None:
        return None
    known = AuthCredential.model_validate_json(text)
    if known.oauth2 is not None and credential.oauth2 is not None:
        known.oauth2.client_secret = credential.oauth2.client_secret
    return known


async def _record(core: TurnCore, key: str, credential: AuthCredential) -> None:
    await record_aside(core, key, text_of(credential))


async def record_aside(core: TurnCore, key: str, text: str) -> None:
    """Records something that a replay looks up when it needs it; when this returns it is on disk.

    Args:
        key: begins with ``journal.ASIDE``.
    """
    try:
        await core.log.record_model_call(key, text, NO_USAGE, core.log.now_ms())
        await core.log.written()
    except asyncio.CancelledError:
        core.conductor.parking.guard()
        raise
    except Exception as failure:  # the engine's trouble: the turn fails, whatever the tool makes of it
        core.conductor.fail(failure)
        raise
    core.conductor.journal.asides[key] = text
