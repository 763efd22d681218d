"""All cases of perdure, area by area."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from perdure.testing.conformance.case import ConformanceCase

AREAS = (
    "sessions",
    "queues",
    "steering",
    "effects",
    "crashes",
    "workers",
    "approvals",
    "confirmations",
    "frontiers",
    "questions",
    "shapes",
    "workflows",
    "cancel",
    "usage",
    "streams",
    "errors",
)
"""Each is a module of ``areas`` and the first word of its cases' names."""


def cases(*areas: str) -> list[ConformanceCase]:
    """The cases of some areas, or of all, in the order in which they are written."""
    found: list[ConformanceCase] = []
    for area in areas or AREAS:
        module = import_module(f"perdure.testing.conformance.areas.{area}")
        for value in vars(module).values():
            several = cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,)
            found += [each for each in several if isinstance(each, ConformanceCase)]
    return found
