"""A flow on a release of google-adk that perdure was not tested with warns once."""

from __future__ import annotations

import warnings

import pytest
from google.adk.agents import LlmAgent
from google.adk.version import __version__
from tests.adk.model import ScriptedModel

from perdure.adk import adk_agent_session_flow, release
from perdure.errors import UntestedFrameworkWarning


def build_flow() -> None:
    adk_agent_session_flow(LlmAgent(name="a", model=ScriptedModel(replies=[])), flow_type="Agent")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    release.warn_of_untested_release.cache_clear()


@pytest.mark.parametrize("version", ["2.12.9", "2.14.0", "2.14.0rc1", "3.0.0", "unknown"])
def test_an_untested_release_is_warned_of_once(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "adk_version", version)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        build_flow()
        build_flow()
    assert [warning.category for warning in seen] == [UntestedFrameworkWarning]
    assert version in str(seen[0].message)


@pytest.mark.parametrize("version", [__version__, "2.13.0", "2.13.7"])
def test_a_tested_release_is_not(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "adk_version", version)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_flow()


def test_the_installed_release_is_a_tested_one() -> None:
    first, last = release.TESTED_RELEASES
    assert first <= tuple(int(part) for part in __version__.split(".")[:2]) <= last
