"""Which releases of google-adk perdure is tested with, and the warning on any other."""

from __future__ import annotations

import re
import warnings
from functools import lru_cache

from google.adk.version import __version__ as adk_version

from perdure.errors import UntestedFrameworkWarning

TESTED_RELEASES = ((2, 13), (2, 13))
"""The first and the last (major, minor) release that the tests run with."""


@lru_cache(maxsize=1)
def warn_of_untested_release() -> None:
    """Warns, once per process, when the installed google-adk is a release that perdure was not tested with."""
    first, last = TESTED_RELEASES
    installed = _release(adk_version)
    if installed is not None and first <= installed <= last:
        return
    tested = _text(first) if first == last else f"{_text(first)} to {_text(last)}"
    warnings.warn(
        f"perdure is tested with google-adk {tested}, and {adk_version} is installed. What it needs of google-adk is "
        "there; whether it behaves as before is not known. Run your own tests, or install a tested release.",
        UntestedFrameworkWarning,
        stacklevel=2,
    )


def _release(version: str) -> tuple[int, int] | None:
    """Major and minor of a version; ``None`` when it has none."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return None if match is None else (int(match[1]), int(match[2]))


def _text(release: tuple[int, int]) -> str:
    return ".".join(map(str, release))
