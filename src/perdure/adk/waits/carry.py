"""What one leg of a turn hands on to the next, because it is in no event."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from google.adk.sessions.state import State

from perdure.adk.records.codec import decode, dumps, encode
from perdure.session.model import JsonObject, JsonValue


@dataclass(frozen=True, slots=True)
class Carry:
    """What one leg hands on to the next.

    Attributes:
        temp: the ``temp:`` part of the state.
        model_calls: that ADK has counted in the turn.
        silent: paths of nodes that have run and left no event.
        steps: values of durable steps by their key.
    """

    temp: JsonObject = field(default_factory=dict[str, JsonValue])
    model_calls: int = 0
    silent: tuple[str, ...] = ()
    steps: JsonObject = field(default_factory=dict[str, JsonValue])

    @classmethod
    def of(cls, state: dict[str, Any], model_calls: int, silent: Sequence[str], steps: JsonObject) -> Carry:
        """What is to be handed on from a session's state and the rest.

        Raises:
            ValueNotStorable: a ``temp:`` value has no form that can be stored.
        """
        temp = {
            key: encode(value, f"state key {key!r}")
            for key, value in state.items()
            if key.startswith(State.TEMP_PREFIX)
        }
        return cls(temp, model_calls, tuple(silent), steps)

    @classmethod
    def read(cls, text: str | None) -> Carry:
        """From the text that the leg before gave; ``None`` in the first leg."""
        if text is None:
            return cls()
        form: JsonObject = json.loads(text)
        return cls(form["temp"], form["model_calls"], tuple(form["silent"]), form["steps"])

    def to_text(self) -> str:
        """As JSON text."""
        return dumps(
            {"temp": self.temp, "model_calls": self.model_calls, "silent": list(self.silent), "steps": self.steps}
        )

    def state(self) -> dict[str, Any]:
        """The ``temp:`` state itself.

        Raises:
            UnknownType: a value is of a class that is gone.
        """
        return {key: decode(value) for key, value in self.temp.items()}
