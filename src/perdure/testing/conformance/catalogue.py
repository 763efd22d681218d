"""All cases of perdure, area by area."""

from __future__ import annotations

from importlib import import_module

from perdure.testing.conformance.case import ConformanceCase

AREAS = (
    "sessions",
    "queues",
    "effects",
    "crashes",
    "approvals",
    "frontiers",
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
        found += [value for value in vars(module).values() if isinstance(value, ConformanceCase)]
    return found
