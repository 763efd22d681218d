"""How hard the property tests look: ``HYPOTHESIS_PROFILE`` is ``fast`` (the default) or ``thorough``."""

from __future__ import annotations

import os
from datetime import timedelta

from hypothesis import HealthCheck, settings

settings.register_profile("fast", max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
settings.register_profile(
    "thorough",
    max_examples=1000,
    stateful_step_count=60,
    deadline=timedelta(seconds=10),
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))
