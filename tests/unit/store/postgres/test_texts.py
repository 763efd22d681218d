"""What PostgreSQL would change or refuse comes back as it was."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.store.builders import (
    FLOW,
    NOW,
    Owner,
    call_request,
    message,
    model_call,
    new_session,
    record,
    request,
    step,
    worker,
)

from perdure.session.model import JsonObject, StepName, StepStatus, UserMessage
from perdure.session.state import CallPhase
from perdure.store.base import CallPut
from perdure.store.postgres import PostgresStore
from perdure.store.postgres.connection import escape, restore

NASTY = "a\0b\x10c\x100d\x101\\u0000 é \U0001f600 \ufeff"
JSON_TEXT = '{"z": 1.0, "a": 12345678901234567890123, "e": 1e400, "z": 2, "n": "\\u0000"}'
"""Numbers that no float holds, keys twice and in this order: jsonb would keep none of it."""


@given(st.text(alphabet=st.sampled_from("\0\x1001ab")))
def test_an_escaped_text_has_no_nul_and_comes_back(text: str) -> None:
    assert "\0" not in escape(text)
    assert restore(escape(text)) == text


def test_an_ordinary_text_is_stored_as_it_is() -> None:
    assert escape("line\n\ttab é") == "line\n\ttab é"


async def test_texts_and_names_come_back_with_every_character(store: PostgresStore) -> None:
    state: JsonObject = {NASTY: NASTY, f"app:{NASTY}": [NASTY], f"user:{NASTY}": {NASTY: 1}}
    session = new_session(NASTY, user_id=NASTY, app_name=NASTY, state=state)
    await store.create_session(session, (NASTY, UserMessage(text=NASTY)), request(NASTY), NOW)
    assert await store.accept_message(NASTY, "t2", UserMessage(text=""), request(NASTY), NOW) == NASTY, "repeated"
    await store.register_worker(worker(), NOW)
    (claimed,) = await store.claim("w1", [FLOW], 1, NOW)
    owner = Owner(store, claimed)
    assert claimed.inbox[0].message == UserMessage(text=NASTY)
    await owner.begin(NASTY)
    await owner.commit(
        turn_id=NASTY,
        calls=(CallPut(NASTY, NASTY, CallPhase.DUE, 0, NASTY, request=call_request(NASTY, arguments={NASTY: NASTY})),),
        records=(record(NASTY, result=NASTY, turn_id=NASTY, outcome=json.dumps(NASTY)),),
        model_calls=(model_call(NASTY, response=JSON_TEXT),),
        messages=(message(0, item=JSON_TEXT, author=NASTY, tool_name=NASTY, tool_call_id=NASTY),),
        steps=(step(NASTY, StepStatus.SUCCEEDED, NASTY, name=StepName.CALL_TOOL, call_id=NASTY, key=NASTY),),
    )
    snapshot = await store.read_snapshot(NASTY, NOW)
    assert (snapshot.session_id, snapshot.user_id, snapshot.state) == (NASTY, NASTY, state)
    assert (await store.list_messages(NASTY, None, 9)).items[0].author == NASTY
    recorded = await store.read_recorded_turn(NASTY, NASTY)
    assert (recorded.model_calls[0].key, recorded.model_calls[0].response) == (NASTY, JSON_TEXT)
    assert recorded.calls[0].request.arguments == {NASTY: NASTY}
    assert (await store.read_steps(NASTY, None, 9)).items[-1].result == NASTY
    assert await store.free_unheld("w1", [NASTY], NOW) == 0
    assert await store.free_unheld("w1", [], NOW) == 1
    await store.delete_session(NASTY)


@pytest.mark.parametrize("size", [40_000, 3_000_000])
async def test_long_texts_are_kept_by_the_server_itself(store: PostgresStore, size: int) -> None:
    text = "".join(chr(97 + n * n % 26) for n in range(size))
    await store.create_session(new_session(), ("t", UserMessage(text=text)), request(), NOW)
    await store.register_worker(worker(), NOW)
    (claimed,) = await store.claim("w1", [FLOW], 1, NOW)
    assert claimed.inbox[0].message == UserMessage(text=text)
