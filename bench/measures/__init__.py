"""The measures, one module per subject."""

from bench.measures.base import Conditions, Measure, Work
from bench.measures.commits import COMMITS
from bench.measures.footprint import IDLE, WAITING
from bench.measures.replay import REPLAY
from bench.measures.session import GROWTH, HUNDRED
from bench.measures.takeover import TAKEOVER
from bench.measures.temporal import LONG_TURN, PAYLOADS, TEMPORAL_WAITING
from bench.measures.throughput import THROUGHPUT
from bench.measures.turn import PARALLEL, TURN

MEASURES: dict[str, Measure] = {
    measure.name: measure
    for measure in (
        TURN,
        PARALLEL,
        HUNDRED,
        GROWTH,
        THROUGHPUT,
        COMMITS,
        REPLAY,
        TAKEOVER,
        IDLE,
        WAITING,
        LONG_TURN,
        PAYLOADS,
        TEMPORAL_WAITING,
    )
}
"""By name, in the order in which they run."""

__all__ = ["MEASURES", "Conditions", "Measure", "Work"]
