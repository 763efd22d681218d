"""Identifiers, as a parameter.  Nothing else in perdure asks for random numbers; imports nothing of ours."""

from __future__ import annotations

import uuid
from typing import Protocol, runtime_checkable


@runtime_checkable
class IdSource(Protocol):
    """Where new identifiers come from."""

    def new_id(self) -> str:
        """A new identifier, unique for ever: 36 characters, a UUID's text form."""
        ...


class RandomIds:
    """Random UUIDs."""

    def new_id(self) -> str:
        return str(uuid.uuid4())


def new_turn_id(ids: IdSource) -> str:
    """A turn id.  It is also the ADK invocation id, so it has ADK's own form: ``e-`` and a UUID."""
    return f"e-{ids.new_id()}"
