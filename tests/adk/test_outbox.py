"""A replay that makes events in another order than before stores none twice and leaves none out."""

from __future__ import annotations

from google.adk.events.event import Event
from google.genai import types

from perdure.adk.live.outbox import Outbox
from perdure.session.runner import ControlCall

TURN = "e-1"


def event(event_id: str, author: str, words: str) -> Event:
    content = types.Content(role="model", parts=[types.Part(text=words)])
    return Event(id=event_id, invocation_id=TURN, author=author, branch=author, content=content)


def replayed(stored: list[Event], again: list[Event]) -> tuple[Outbox, list[Event]]:
    """An outbox and a session after a replay that gave these events."""
    outbox, events = Outbox(TURN, 0, stored), list[Event]()
    for one in again:
        events.append(one)
        outbox.add(one)
        outbox.sort(events)
    return outbox, events


def test_j5_branches_in_another_order_store_no_message_twice() -> None:
    a, b = event("1", "a", "x"), event("2", "b", "y")
    new = event("3", "a", "z")
    outbox, events = replayed([a, b], [b.model_copy(), new, a.model_copy()])
    messages, _ = outbox.take()
    assert [(message.ordinal, message.text) for message in messages] == [(2, "z")]
    assert [one.id for one in events] == ["1", "2", "3"]
    assert (outbox.count, outbox.is_whole) == (3, True)


def test_an_event_with_another_id_is_known_by_its_looks() -> None:
    """Code that changed may draw one id more; what it says is the same."""
    outbox, _ = replayed([event("1", "a", "x")], [event("other", "a", "x")])
    assert outbox.take()[0] == ()
    assert outbox.is_whole


def test_what_did_not_come_back_is_noticed() -> None:
    outbox, _ = replayed([event("1", "a", "x"), event("2", "a", "y")], [event("1", "a", "x"), event("3", "a", "z")])
    assert [(message.ordinal, message.text) for message in outbox.take()[0]] == [(2, "z")]
    assert (outbox.count, outbox.is_whole) == (2, False)


def test_a_state_that_a_later_message_set_stays() -> None:
    a, b = event("1", "a", "x"), event("2", "b", "y")
    outbox, events = Outbox(TURN, 0, [a, b]), [b]
    outbox.add(b)
    assert outbox.sort(events) == []
    events.append(a)
    outbox.add(a)
    assert outbox.sort(events) == [b]


def test_control_calls_whose_message_is_stored_were_shown_before() -> None:
    call = types.FunctionCall(id="c1", name="exit_loop", args={})
    stored = Event(
        id="1", invocation_id=TURN, author="a", content=types.Content(parts=[types.Part(function_call=call)])
    )
    outbox = Outbox(TURN, 0, [stored])
    outbox.add_control_call(ControlCall("c1", "exit_loop", {}))
    outbox.add_control_call(ControlCall("c2", "exit_loop", {}))
    assert [one.call_id for one in outbox.take()[1]] == ["c2"]
