"""The conformance suite: the same stories over every engine and store, compared step by step.

For us, for whoever writes an engine or a store, and for whoever wants to know whether his own servers do what perdure
promises::

    python -m perdure.testing.conformance --engine sqlite:///support.db

``cases()`` gives the cases, ``run_case`` runs one over a ``Target``; ``case`` makes one.  It does not need pytest.
"""

from __future__ import annotations

from perdure.testing.conformance.case import ConformanceCase, case
from perdure.testing.conformance.catalogue import AREAS, cases
from perdure.testing.conformance.checks import ConformanceFailure, holds, refused, same
from perdure.testing.conformance.recording import Recording
from perdure.testing.conformance.reference import differences
from perdure.testing.conformance.run import CaseResult, run_case, run_suite
from perdure.testing.conformance.stage import Stage
from perdure.testing.conformance.target import Target
from perdure.testing.conformance.world import World

__all__ = [
    "AREAS",
    "CaseResult",
    "ConformanceCase",
    "ConformanceFailure",
    "Recording",
    "Stage",
    "Target",
    "World",
    "case",
    "cases",
    "differences",
    "holds",
    "refused",
    "run_case",
    "run_suite",
    "same",
]
