"""What goes through Temporal comes out as it went in, but for the words of errors, which stay in the store."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.engine.temporal.wire import StepCommand, pack, unpack, unpack_command, unpack_input
from perdure.session.model import ErrorInfo
from perdure.session.state import Input, ModelFailed, ModelStepSettled, OpenTurn, SessionState

st.register_type_strategy(ErrorInfo, st.builds(ErrorInfo, code=st.text(), message=st.just(""), facts=st.just({})))


@settings(max_examples=300)
@given(st.one_of([st.from_type(kind) for kind in get_args(Input)]))
def test_an_input_comes_out_as_it_went_in(given_input: Input) -> None:
    assert unpack_input(json.loads(json.dumps(pack(given_input)))) == given_input


@settings(max_examples=100)
@given(st.one_of([st.from_type(kind) for kind in get_args(StepCommand)]))
def test_a_command_comes_out_as_it_went_in(command: StepCommand) -> None:
    assert unpack_command(json.loads(json.dumps(pack(command)))) == command


@settings(max_examples=200)
@given(st.from_type(SessionState))
def test_a_state_comes_out_as_it_went_in(state: SessionState) -> None:
    assert unpack(SessionState, json.loads(json.dumps(pack(state)))) == state


def test_what_is_as_by_default_costs_nothing() -> None:
    assert pack(SessionState("s", turn=OpenTurn("t", 1))) == {
        "is": "SessionState",
        "session_id": "s",
        "turn": {"is": "OpenTurn", "turn_id": "t", "number": 1},
    }


def test_of_an_error_only_the_code_goes_along() -> None:
    secret = ErrorInfo(code="KeyError", message="no customer 4711", facts={"customer": 4711})
    packed = pack(ModelStepSettled("s", ModelFailed(secret)))
    assert "4711" not in json.dumps(packed)
    assert unpack_input(packed) == ModelStepSettled("s", ModelFailed(ErrorInfo(code="KeyError", message="")))


@pytest.mark.parametrize("packed", [{"is": "RunModel", "step_id": "s", "call_ids": []}, {"is": "Nothing"}])
def test_what_is_no_input_is_refused(packed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=packed["is"]):
        unpack_input(packed)
