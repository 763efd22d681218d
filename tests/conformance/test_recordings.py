"""Recordings: canonical names, readable differences, references, and what a run leaves behind."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.conformance.conftest import sessions_in

from perdure import AgentSessionFlow, FlowNotFound, PerdureError, UsageError
from perdure.testing import text
from perdure.testing.conformance import (
    ConformanceFailure,
    Stage,
    Target,
    World,
    case,
    cases,
    differences,
    refused,
    run_case,
    run_suite,
)
from perdure.testing.conformance.names import Names, digest


def talker(world: World) -> AgentSessionFlow:
    return world.flow(world.agent(text("Hello.")))


@case("own/hello", "It says hello.", talker)
async def hello(stage: Stage) -> None:
    await stage.start()
    await stage.completed()
    stage.notes["turn"] = (await stage.messages())[0].turn_id


async def test_a_case_of_ones_own_is_recorded_and_compared(tmp_path: Path) -> None:
    target, references = Target(sessions_in(tmp_path)), tmp_path / "reference"
    with pytest.raises(ConformanceFailure, match="own/hello has no reference"):
        await run_case(hello, target, references=references)
    recording = await run_case(hello, target, references=references, record_anew=True)
    assert recording["notes"] == {"turn": "<turn 1>"}
    assert await run_case(hello, target, references=references) == recording
    path = references / "own.hello.json"
    path.write_text(path.read_text().replace('"Hello."', '"Good bye."'))
    with pytest.raises(ConformanceFailure, match=r"messages\[1\] \(assistant helper\)\.text: expected \"Good bye.\""):
        await run_case(hello, target, references=references)


async def test_a_run_leaves_no_session_behind(tmp_path: Path) -> None:
    chosen = [case for case in cases("sessions") if case.name in ("sessions/lists", "sessions/many")]
    results = await run_suite(chosen, Target(sessions_in(tmp_path)), jobs=2)
    assert [result.failure for result in results] == [None, None]
    with closing(sqlite3.connect(tmp_path / "sessions.db")) as database:
        for table in ("sessions", "turns", "messages", "events", "workers"):
            assert database.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table


async def test_one_failure_stops_no_other_case_and_is_told(tmp_path: Path) -> None:
    @case("own/fails", "It fails.", talker)
    async def fails(stage: Stage) -> None:
        raise ZeroDivisionError("something foreign")

    first = cases("sessions")[0]
    told: list[str] = []
    results = await run_suite(
        [fails, first], Target(sessions_in(tmp_path)), tell=lambda result: told.append(result.case.name)
    )
    assert told == ["own/fails", first.name]
    assert "ZeroDivisionError: something foreign" in (results[0].failure or "")
    assert results[1].failure is None


def test_what_differs_is_told_with_its_place() -> None:
    steps = [{"name": "RunModel", "attempts": 1}, {"name": "CallTool", "tool": "look", "attempts": 1}]
    more = {"name": "ResumeTurn"}
    assert differences({"steps": steps}, {"steps": steps}) == []
    assert differences({"steps": steps}, {"steps": [steps[0], {**steps[1], "attempts": 2}]}) == [
        "steps[1] (CallTool look).attempts: expected 1, found 2"
    ]
    assert differences({"steps": steps}, {"steps": [more, *steps]}) == [
        'steps[0] (ResumeTurn): not expected: {"name": "ResumeTurn"}'
    ]
    assert differences({"steps": steps}, {"steps": steps[:1]}) == [
        'steps[1] (CallTool look): missing: {"attempts": 1, "name": "CallTool", "tool": "look"}'
    ]
    assert differences({"a": 1}, {"b": 1}) == ["a: missing, expected 1", "b: not expected: 1"]
    assert differences({"a": 1}, {"a": True}) == ["a: expected 1, found true"]


def test_ids_get_names_wherever_they_are() -> None:
    names = Names()
    turn, first, second = "e-0123456789", "c-1-23456789", "c-2-23456789"
    names.give(turn, "<turn 1>")
    names.give_call(first, "look", {"order": "7"})
    names.give_call(second, "look", {"order": "7"})
    names.give(turn, "<another>")
    names.give("colour", "<an id that a person made up>")
    assert names.put({turn: [f"{turn}:{first}", (second, 7, None), "colour"]}) == {
        "<turn 1>": ['<turn 1>:look(order="7")', ['look(order="7")#2', 7, None], "colour"]
    }
    assert names.put("adk-0f8fad5b-d9cb-469f-a165-70867728950e") == "<id>"
    assert names.put("x" * 500) == digest("x" * 500)
    assert digest("x" * 500) != digest("x" * 499 + "y")


def test_a_reference_is_json_with_one_row_a_line() -> None:
    path = Path(cases.__code__.co_filename).parent / "reference" / "sessions.one-turn.json"
    lines = path.read_text(encoding="utf-8").splitlines()
    assert json.loads("\n".join(lines))["case"] == "sessions/one-turn"
    assert sum('"name": "CallTool"' in line for line in lines) == 1


def test_a_target_goes_to_other_processes_without_what_only_this_one_has() -> None:
    async def restart() -> None: ...

    target = Target("temporal://127.0.0.1:7233/default", "sqlite:///s.db", restart_services=restart)
    assert Target(**target.to_json()) == target
    assert target.label == "temporal+sqlite"
    assert Target("postgresql://ann:secret@host/db").label == "local+postgresql"
    with pytest.raises(UsageError, match="prefix"):
        Target("sqlite:///s.db", prefix="a b")
    with pytest.raises(UsageError, match="cannot be imported"):
        Target("sqlite:///s.db", opener="nowhere:nothing").open([], None)  # type: ignore[arg-type]  # is not reached


def refuse(error: PerdureError) -> None:
    raise error


def test_refusals_are_told_apart() -> None:
    with refused(UsageError) as refusal:
        refuse(UsageError("so"))
    assert str(refusal.error) == "so"
    with pytest.raises(ConformanceFailure, match="nothing was refused"), refused(UsageError):
        pass
    words = "expected UsageError, was refused with FlowNotFound"
    with pytest.raises(ConformanceFailure, match=words), refused(UsageError):
        refuse(FlowNotFound("other"))


def test_a_name_says_area_and_what_it_shows() -> None:
    with pytest.raises(UsageError, match="area/what-it-shows"):
        case("nothing", "No.", talker)
