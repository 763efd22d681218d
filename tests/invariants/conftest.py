"""How hard the property tests look, chosen with the environment variable ``HYPOTHESIS_PROFILE``.

* ``fast`` (the default): always the same examples, in a few seconds; what fails is shown as it was found.
* ``thorough``: many more and longer examples, other ones each time; what fails is made as small as it goes.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "fast",
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
settings.register_profile(
    "thorough",
    max_examples=1000,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))
