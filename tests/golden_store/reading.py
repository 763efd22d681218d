"""All that can be read of a store, as JSON, and whether it is what was read before."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, cast

from pydantic import BaseModel

from perdure.store.base import SessionFilter, SessionStore

LONG = 1_000
"""Longer texts are expected by their SHA-256."""

ALL = 1_000


async def seen(store: SessionStore, interrupts: Mapping[str, Sequence[str]], now_ms: int) -> dict[str, Any]:
    """All that can be read of a store.

    Args:
        interrupts: the ids of all interrupts of each session.
    """
    listed = (await store.list_sessions(SessionFilter(), None, ALL)).items
    sessions = {
        one.session_id: await seen_session(store, one.session_id, interrupts.get(one.session_id, ()), now_ms)
        for one in listed
    }
    return {"store_id": await store.store_id(), "list": plain(listed), "sessions": sessions}


async def seen_session(store: SessionStore, session_id: str, interrupts: Sequence[str], now_ms: int) -> dict[str, Any]:
    """All that can be read of a session."""
    messages = (await store.list_messages(session_id, None, ALL)).items
    steps = (await store.read_steps(session_id, None, ALL)).items
    turns = sorted({one.turn_id for one in messages} | {one.turn_id for one in steps if one.turn_id is not None})
    found: dict[str, Any] = {
        "snapshot": await store.read_snapshot(session_id, now_ms),
        "messages": messages,
        "steps": steps,
        "interrupts": [await store.read_interrupt(session_id, one) for one in interrupts],
        "events": (await store.read_events(session_id, None, ALL)).events,
        "recorded": {turn_id: await store.read_recorded_turn(session_id, turn_id) for turn_id in turns},
        "earlier calls": {turn_id: await store.read_earlier_calls(session_id, turn_id) for turn_id in turns},
        "states": [await store.read_turn_state(session_id, number) for number in range(1, len(turns) + 2)],
    }
    return cast("dict[str, Any]", plain(found))


def plain(value: Any) -> Any:
    """Anything that a store gives as JSON, its long texts as their digests."""
    match value:
        case BaseModel():
            return plain(value.model_dump(mode="json"))
        case Enum():
            return value.value
        case str() if len(value) > LONG:
            return f"{len(value)} characters, SHA-256 {hashlib.sha256(value.encode()).hexdigest()}"
        case timedelta():
            return value.total_seconds()
        case dict():
            return {str(key): plain(part) for key, part in value.items()}
        case list() | tuple():
            return [plain(part) for part in value]
        case _ if is_dataclass(value):
            return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
        case _:
            return value


def lost(expected: Any, found: Any, where: str = "") -> list[str]:
    """What is no longer as it was, one line each.  Attributes that are new are no loss."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return [
            line
            for key, part in expected.items()
            for line in (lost(part, found[key], f"{where}/{key}") if key in found else [f"{where}/{key} is gone"])
        ]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        return [
            line
            for n, (part, other) in enumerate(zip(expected, found, strict=True))
            for line in lost(part, other, f"{where}/{n}")
        ]
    return [] if type(expected) is type(found) and expected == found else [f"{where} was {expected!r}, is {found!r}"]
