"""Wrong calls: refused with an error that says what, where and what to do; nothing changes."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import RunConfig
from tests.field.support import ASKED, PATIENCE, SESSION, Field, at_rest, durable, messages_of, say, steps_of, turn_of

from perdure import (
    AgentSessionClient,
    ImageInput,
    InterruptAlreadyResolved,
    InterruptNotFound,
    PerdureError,
    RequestConflict,
    SessionAlreadyExists,
    SessionClosed,
    SessionNotFound,
    SessionStatus,
    StoreNotOurs,
    StoreUnavailable,
    TurnNotFound,
    TurnStatus,
    UsageError,
    WaitTimeout,
    open_engine,
)
from perdure.errors import ERROR_TABLE
from perdure.testing import call, text

Call = Callable[[AgentSessionClient], Awaitable[object]]


async def first_event(client: AgentSessionClient, session_id: str, after: str | None = None) -> object:
    return await anext(client.stream_events(session_id, after=after))


def said_well(error: PerdureError, *words: str) -> None:
    """The message names its subject; the code has its row; the facts are attributes."""
    assert error.code in ERROR_TABLE
    assert all(word in str(error) for word in words), str(error)
    assert all(getattr(error, name) == value for name, value in error.facts.items())


# ---------------------------------------------------------------- what is not there


ON_AN_UNKNOWN_SESSION: list[Call] = [
    lambda c: c.send_user_message("nowhere", "hi"),
    lambda c: c.steer_user_message("nowhere", "hi"),
    lambda c: c.get_agent_snapshot("nowhere"),
    lambda c: c.wait("nowhere"),
    lambda c: c.resolve_interrupt("nowhere", "i", approved=True),
    lambda c: c.cancel_turn("nowhere"),
    lambda c: c.close_session("nowhere"),
    lambda c: c.delete_session("nowhere"),
    lambda c: c.list_messages("nowhere"),
    lambda c: c.read_step_history("nowhere"),
    lambda c: first_event(c, "nowhere"),
]


@pytest.mark.parametrize("wrong", ON_AN_UNKNOWN_SESSION)
async def test_an_unknown_session_is_named(field: Field, wrong: Call) -> None:
    async with field.asking() as client:
        with pytest.raises(SessionNotFound) as refusal:
            await wrong(client)
        said_well(refusal.value, "'nowhere'")
        assert refusal.value.session_id == "nowhere"
        assert (await client.list_sessions()).items == ()


async def test_an_unknown_interrupt_is_named_with_its_session(field: Field) -> None:
    async with field.asking() as client:
        await client.start_session(SESSION)
        with pytest.raises(InterruptNotFound) as refusal:
            await client.resolve_interrupt(SESSION, "e-1:adk-2", approved=True)
        said_well(refusal.value, "'e-1:adk-2'", "'s'")


async def test_an_interrupt_of_another_session_is_unknown_here(field: Field) -> None:
    def pay() -> str:
        """Pays."""
        field.note("pay")
        return "paid"

    async with field.working(field.flow([call("pay"), text("Done.")], [pay], {"pay": ASKED})) as client:
        theirs = (await say(client, "go", "theirs")).pending_interrupts[0]
        await say(client, "go")
        with pytest.raises(InterruptNotFound):
            await client.resolve_interrupt(SESSION, theirs.interrupt_id, approved=True)
        assert field.world == []


@pytest.mark.parametrize("timeout", [math.nan, math.inf, -math.inf, "5"])
async def test_a_time_that_is_none_is_not_waited_for(field: Field, timeout: float) -> None:
    async with field.asking() as client:
        await client.start_session(SESSION, "hello")
        with pytest.raises(UsageError, match=f"timeout is {timeout!r}; it must be a finite number of seconds"):
            await client.wait(SESSION, timeout=timeout)


async def test_a_session_whose_flow_type_nobody_serves_waits_and_says_for_what(field: Field) -> None:
    """It is no error: the worker may come later."""
    async with field.working(field.flow(text("Yes."))) as ours:
        async with field.asking("Nobody") as client:
            await client.start_session(SESSION, "hello")
            snapshot = await client.get_agent_snapshot(SESSION)
            assert (snapshot.status, snapshot.served, snapshot.flow_type) == (SessionStatus.RUNNING, False, "Nobody")
            with pytest.raises(WaitTimeout, match="no live worker serves the flow type 'Nobody'") as late:
                await client.wait(SESSION, timeout=0.01)
            assert late.value.facts == {"session_id": SESSION, "timeout": 0.01, "status": "running"}
        assert turn_of(await say(ours, "hello", "another")).status is TurnStatus.COMPLETED
    async with field.working(durable(field.agent(text("Here I am.")), flow_type="Nobody")) as client:
        snapshot = await client.wait(SESSION, timeout=PATIENCE)
        assert (snapshot.status, snapshot.served) == (SessionStatus.IDLE, True)
        assert [message.text for message in await messages_of(client)] == ["hello", "Here I am."]


# ---------------------------------------------------------------- what is in another state


async def test_a_closed_session_takes_no_message_and_can_be_read(field: Field) -> None:
    async with field.working(field.flow(text("Yes."))) as client:
        await say(client, "hi")
        await client.close_session(SESSION)
        await client.close_session(SESSION)
        with pytest.raises(SessionClosed) as refusal:
            await client.send_user_message(SESSION, "more")
        said_well(refusal.value, "'s'")
        snapshot = await client.wait(SESSION, timeout=PATIENCE)
        assert (snapshot.status, snapshot.queued_messages) == (SessionStatus.CLOSED, 0)
        assert len(await messages_of(client)) == 2


async def test_closing_cancels_what_is_open_and_drops_what_is_queued(field: Field) -> None:
    def pay() -> str:
        """Pays."""
        field.note("pay")
        return "paid"

    async with field.working(field.flow([call("pay"), text("Done.")], [pay], {"pay": ASKED})) as client:
        (interrupt,) = (await say(client, "go")).pending_interrupts
        queued = await client.send_user_message(SESSION, "and then?")
        await client.close_session(SESSION)
        with pytest.raises(PerdureError):
            await client.send_user_message(SESSION, "more")
        snapshot = await at_rest(client, SessionStatus.CLOSED)
        assert (turn_of(snapshot).status, snapshot.pending_interrupts) == (TurnStatus.CANCELLED, ())
        assert queued not in {step.turn_id for step in await steps_of(client)}
        with pytest.raises(PerdureError):
            await client.resolve_interrupt(SESSION, interrupt.interrupt_id, approved=True)
        assert field.world == []


async def test_an_id_that_is_taken_is_refused_unless_the_start_is_the_same(field: Field) -> None:
    async with field.working(field.flow(text("Yes."))) as client:
        turn_id = await client.start_session(SESSION, "hi", user_id="ann", state={"a": 1})
        await client.wait(SESSION, timeout=PATIENCE)
        assert await client.start_session(SESSION, "hi", user_id="ann", state={"a": 1}) == turn_id
        others: list[dict[str, Any]] = [
            {"message": "hi", "user_id": "ben", "state": {"a": 1}},
            {"message": "ho", "user_id": "ann", "state": {"a": 1}},
            {"message": "hi", "user_id": "ann", "state": {"a": True}},
            {"user_id": "ann"},
        ]
        for other in others:
            with pytest.raises(SessionAlreadyExists) as refusal:
                await client.start_session(SESSION, **other)
            said_well(refusal.value, "'s'")
        snapshot = await client.wait(SESSION, timeout=PATIENCE)
        assert (turn_of(snapshot).number, snapshot.state) == (1, {"a": 1})


async def test_a_request_id_is_for_one_request(field: Field) -> None:
    async with field.working(field.flow(text("Yes."))) as client:
        await client.start_session(SESSION)
        turn_id = await client.send_user_message(SESSION, "one", request_id="r1")
        assert await client.send_user_message(SESSION, "one", request_id="r1") == turn_id
        with pytest.raises(RequestConflict) as refusal:
            await client.send_user_message(SESSION, "two", request_id="r1")
        said_well(refusal.value, "'r1'", "'s'")
        with pytest.raises(RequestConflict):
            await client.close_session(SESSION, request_id="r1")
        snapshot = await client.wait(SESSION, timeout=PATIENCE)
        assert (snapshot.status, turn_of(snapshot).number) == (SessionStatus.IDLE, 1)


async def test_a_second_different_answer_says_who_was_first(field: Field) -> None:
    def pay() -> str:
        """Pays."""
        return "paid"

    async with field.working(field.flow([call("pay"), text("Done.")], [pay], {"pay": ASKED})) as client:
        (interrupt,) = (await say(client, "go")).pending_interrupts
        await client.resolve_interrupt(SESSION, interrupt.interrupt_id, approved=True, resolved_by="ann")
        with pytest.raises(InterruptAlreadyResolved) as refusal:
            await client.resolve_interrupt(SESSION, interrupt.interrupt_id, approved=False, resolved_by="ben")
        said_well(refusal.value, interrupt.interrupt_id, "approved by ann")
        assert (await client.wait(SESSION, timeout=PATIENCE)).status is SessionStatus.IDLE


# ---------------------------------------------------------------- what is malformed


MALFORMED: list[tuple[Call, str]] = [
    (lambda c: c.start_session(""), "session id"),
    (lambda c: c.start_session("x" * 257), "session id"),
    (lambda c: c.start_session("a\nb"), "session id"),
    (lambda c: c.start_session("new", ""), "empty message"),
    (lambda c: c.start_session("new", state_delta={"a": 1}), "go with a message"),
    (lambda c: c.send_user_message(SESSION, ""), "empty message"),
    (lambda c: c.steer_user_message(SESSION, ""), "empty text"),
    (lambda c: c.steer_user_message(SESSION, "é" * 500_001), "1000002 bytes"),
    (lambda c: c.send_user_message(SESSION, "hi", run_config={"max_llm_calls": "many"}), "run_config"),
    (lambda c: c.send_user_message(SESSION, "hi", run_config={"no_such_option": 1}), "run_config"),
    (lambda c: c.send_user_message(SESSION, "hi", run_config=RunConfig(support_cfc=True)), "support_cfc"),
    (lambda c: c.list_messages(SESSION, limit=0), "limit is 0"),
    (lambda c: c.list_messages(SESSION, limit=1001), "limit is 1001"),
    (lambda c: c.list_messages(SESSION, after="x"), "'x' is no page cursor"),
    (lambda c: c.read_step_history(SESSION, after="-1"), "'-1' is no page cursor"),
    (lambda c: c.list_sessions(after="x"), "'x'"),
    (lambda c: first_event(c, SESSION, after="x"), "'x' is no event cursor"),
]


@pytest.mark.parametrize(("wrong", "words"), MALFORMED)
async def test_a_malformed_call_is_refused_and_changes_nothing(field: Field, wrong: Call, words: str) -> None:
    async with field.engine(flow := field.flow(text("Yes."))) as engine:
        client = AgentSessionClient(engine, flow)
        await client.start_session(SESSION)
        before = await client.get_agent_snapshot(SESSION)
        with pytest.raises(UsageError, match="(?s)" + words.replace("(", r"\(")) as refusal:
            await wrong(client)
        said_well(refusal.value)
        assert await client.get_agent_snapshot(SESSION) == before
        assert len((await client.list_sessions()).items) == 1


async def test_what_is_too_deep_or_too_long_is_named_in_a_few_words(field: Field) -> None:
    """A path of thousands of brackets, or a value of a megabyte, hides what is wrong."""
    deep: Any = []
    for _ in range(900):
        deep = [deep]
    long = "x" * 1_000_000
    wrong: list[Call] = [
        lambda c: c.send_user_message(SESSION, "hi", state_delta={"cart": deep}),
        lambda c: c.send_user_message(SESSION, "hi", state_delta={long: object()}),
        lambda c: c.send_user_message(SESSION, "hi", state_delta={"cart": {long: {"a": {1: 2}}}}),
        lambda c: c.send_user_message(SESSION, "hi", images=long),  # type: ignore[arg-type]  # that is the test
        lambda c: c.send_user_message(SESSION, "hi", state_delta=[long]),  # type: ignore[arg-type]  # that is the test
        lambda c: c.resolve_interrupt(SESSION, "i", approved=long),  # type: ignore[arg-type]  # that is the test
        lambda c: c.list_messages(SESSION, after=long),
        lambda c: first_event(c, SESSION, after=long),
        lambda c: c.start_session(long),
    ]
    async with field.asking() as client:
        await client.start_session(SESSION)
        for one in wrong:
            with pytest.raises(UsageError) as refusal:
                await one(client)
            assert len(str(refusal.value)) < 400, str(refusal.value)[:1000]


async def test_a_client_without_a_flow_reads_and_sends_but_starts_nothing(field: Field) -> None:
    async with field.engine() as engine:
        await AgentSessionClient(engine, "Nobody").start_session(SESSION)
        client = AgentSessionClient(engine)
        with pytest.raises(UsageError, match=r"AgentSessionClient\(engine, flow\)"):
            await client.start_session("new")
        await client.send_user_message(SESSION, "hi")
        assert (await client.get_agent_snapshot(SESSION)).queued_messages == 1


async def test_an_image_alone_is_a_message(field: Field) -> None:
    async with field.working(field.flow(text("A dot."))) as client:
        await client.start_session(SESSION)
        await client.send_user_message(SESSION, "", images=[ImageInput(data=b"\x89PNG", mime_type="image/png")])
        await client.wait(SESSION, timeout=PATIENCE)
        first, second = await messages_of(client)
        assert (first.images, first.text, second.text) == (("image/png",), "", "A dot.")


# ---------------------------------------------------------------- the engine's own


async def test_an_engine_without_flows_has_no_worker(field: Field) -> None:
    async with field.engine() as engine:
        with pytest.raises(UsageError, match=r"flows=\[...\]"):
            async with engine.worker():
                pass


async def test_an_engine_must_be_opened(field: Field) -> None:
    with pytest.raises(UsageError, match="not open"):
        async with field.engine(field.flow(text("Yes."))).worker():
            pass


def test_two_flows_of_one_type_are_refused(field: Field) -> None:
    with pytest.raises(UsageError, match="flow_type 'Field'"):
        field.engine(field.flow(text("One.")), field.flow(text("Two.")))


@pytest.mark.parametrize("address", ["", "support.db", "sqlite:///", "sqlite:///:memory:", "mysql://x/y"])
def test_an_address_of_no_known_kind_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="sqlite:///"):
        open_engine(address)


async def test_a_file_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text(
        "Dear Ann, this is no database, and it is longer than a hundred bytes, so that it cannot be one. " * 3
    )
    before = path.read_bytes()
    with pytest.raises(StoreNotOurs, match="choose another path"):
        async with open_engine(f"sqlite:///{path}"):
            pass
    assert path.read_bytes() == before
    with pytest.raises(StoreUnavailable, match="does not exist"):
        async with open_engine(f"sqlite:///{tmp_path / 'no' / 'where.db'}"):
            pass


async def test_cancelling_a_turn_that_never_was_is_refused(field: Field) -> None:
    async with field.asking() as client:
        await client.start_session(SESSION)
        with pytest.raises(TurnNotFound) as refusal:
            await client.cancel_turn(SESSION, turn_id="e-never")
        said_well(refusal.value, "'e-never'", "'s'")
        await client.cancel_turn(SESSION)
