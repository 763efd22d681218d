"""Keeps ADK's warnings out of the report."""

from __future__ import annotations

import logging
import warnings


def be_quiet() -> None:
    """ADK says many things that are of no use in a benchmark; perdure's own warnings stay."""
    warnings.filterwarnings("ignore", category=UserWarning, module="google")
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="google")
    logging.getLogger("google_adk").setLevel(logging.ERROR)
    logging.getLogger("google_genai").setLevel(logging.ERROR)
    # Closing an async generator in another task than the one that began it makes OpenTelemetry complain at length.
    logging.getLogger("opentelemetry.context").setLevel(logging.CRITICAL)
