"""What the libraries log and warn about, as far as a person at the command line wants to see it."""

from __future__ import annotations

import logging
import sys
import warnings


def log_to_stderr(level: str | None) -> None:
    """Sends log records from ``level`` on to stderr; ``None``: none at all.

    ADK warns once for each feature that it does not call stable yet.  That says nothing about the user's program, so it
    is hidden, unless Python was told (``-W``, ``PYTHONWARNINGS``) what to do with warnings.
    """
    if level is None:
        logging.basicConfig(handlers=[logging.NullHandler()])
    else:
        form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
        logging.basicConfig(level=level, format=form, stream=sys.stderr)
    if not sys.warnoptions:
        warnings.filterwarnings("ignore", message=r"\[EXPERIMENTAL\]", category=UserWarning)
