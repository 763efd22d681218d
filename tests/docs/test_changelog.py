"""The changelog names the version that is being made, and no release leaves out a heading."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEADINGS = ["Added", "Changed", "Journal format", "Migration"]


def releases() -> dict[str, str]:
    parts = re.split(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_release_has_all_headings() -> None:
    found = {title: re.findall(r"^### (.+)$", text, flags=re.MULTILINE) for title, text in releases().items()}
    assert found == dict.fromkeys(releases(), HEADINGS)


def test_the_newest_release_is_the_version_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert version in next(iter(releases()))
