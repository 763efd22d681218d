"""A seam of google-adk that moves is noticed when a flow is built, loudly and by name."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import pytest
from google.adk.agents import LlmAgent, invocation_context
from google.adk.flows.llm_flows.base_llm_flow import BaseLlmFlow
from google.adk.version import __version__
from tests.adk.model import ScriptedModel, says
from tests.adk.plain import run_plain
from tests.adk.worlds import World

from perdure.adk import seams
from perdure.adk.models import wrapped_model
from perdure.adk.seams import SEAMS, Seam, check_seam, check_seams
from perdure.errors import FrameworkDrift
from perdure.session.model import UserMessage

_HINT = "google-adk changed: find where {name} went, and what does its work now; then change perdure/adk/seams.py"


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.path)
def test_every_seam_is_there(seam: Seam) -> None:
    try:
        check_seam(seam)
    except FrameworkDrift as drift:
        pytest.fail(_HINT.format(name=drift.facts["name"]))


def test_all_of_them_are_checked_at_once() -> None:
    check_seams.cache_clear()
    check_seams()


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.path)
def test_a_seam_that_is_gone_is_named(seam: Seam, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(importlib.import_module(seam.module), seam.path.split(".")[0])
    with pytest.raises(FrameworkDrift, match=seam.path.replace(".", r"\.")) as drift:
        check_seam(seam)
    assert drift.value.facts["version"] == __version__


def test_a_seam_that_takes_other_parameters_is_named() -> None:
    seam = replace(SEAMS[0], parameters=("self", "no_such_parameter"))
    with pytest.raises(FrameworkDrift, match="no_such_parameter"):
        check_seam(seam)


def test_a_seam_that_is_a_value_is_named() -> None:
    with pytest.raises(FrameworkDrift, match="not callable"):
        check_seam(Seam("google.adk.sessions.state", "State.APP_PREFIX", ("x",)))


def test_private_names_of_adk_are_used_in_one_file_only() -> None:
    folder = Path(seams.__file__).parent
    for file in folder.rglob("*.py"):
        if file != folder / "seams.py":
            source = file.read_text()
            assert "reportPrivateUsage" not in source, file
            assert "google.adk" not in source or "._" not in "".join(
                line for line in source.splitlines() if line.startswith("from google.adk")
            ), file


async def test_an_invocation_id_that_is_not_the_turn_s_stops_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("google.adk.runners.new_invocation_context_id", lambda: "e-other")
    assert invocation_context.new_invocation_context_id is not None
    scripted = ScriptedModel(replies=[says("never")])
    engine = World(scripted, LlmAgent(name="a", model=scripted)).engine()
    engine.begin("go")
    live = await engine.open()
    with pytest.raises(FrameworkDrift, match="e-other"):
        await live.drive("step", ())
    await live.close()
    assert scripted.requests == []


async def test_a_model_outside_a_durable_turn_is_left_alone() -> None:
    wrapped_model.install()
    patched = BaseLlmFlow.__dict__["_get_llm"]
    wrapped_model.install()
    assert BaseLlmFlow.__dict__["_get_llm"] is patched
    scripted = ScriptedModel(replies=[says("plain")])
    events, _, failure = await run_plain(LlmAgent(name="a", model=scripted), [UserMessage(text="go")])
    assert failure is None
    assert events[-1]["content"]["parts"] == [{"text": "plain"}]
