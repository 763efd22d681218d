"""``AgentSessionClient``: start, talk to, answer and watch sessions, from any process that reaches the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from datetime import timedelta

from pydantic import BaseModel

from perdure.arguments import expect, expect_each, expect_seconds
from perdure.client.answers import reply, suitable_answer, verdict
from perdure.client.checks import (
    DEFAULT_PAGE,
    check_optional_text,
    check_session_id,
    check_text,
    mapping,
    page_limit,
    page_position,
    request_of,
    text_id,
)
from perdure.engine.base import Engine
from perdure.engine.feed import Subscription
from perdure.errors import EventCursorExpired, FlowNotFound, PayloadTooLarge, UsageError, WaitTimeout
from perdure.ids import new_turn_id
from perdure.session.flow import await_step_id
from perdure.session.model import (
    MAX_STEERING_BYTES,
    AgentEvent,
    AgentEventType,
    AgentSnapshot,
    ImageInput,
    Interrupt,
    JsonObject,
    JsonValue,
    Message,
    Page,
    SessionStatus,
    SessionSummary,
    StepRecord,
    UserMessage,
)
from perdure.session.runner import DEFAULT_EVENT_STREAM_CAPACITY_BYTES, AgentSessionFlow
from perdure.session.values import ensure_storable
from perdure.store.base import GivenAnswer, NewSession, Request, SessionFilter

WATCH_INTERVAL = timedelta(seconds=1)
"""How often ``wait`` and ``stream_events`` look even when nothing woke them."""

_EVENT_PAGE = 500

_REST = frozenset(
    {
        AgentEventType.TURN_SUSPENDED,
        AgentEventType.TURN_COMPLETED,
        AgentEventType.TURN_FAILED,
        AgentEventType.TURN_CANCELLED,
        AgentEventType.INTERRUPT_RESOLVED,
        AgentEventType.SESSION_BLOCKED,
        AgentEventType.SESSION_CLOSED,
    }
)
"""Events with which a session may have come to rest."""


class AgentSessionClient:
    """Talks to the sessions of one flow (or, without a flow, to any session that exists).

    Every mutating method takes a ``request_id``: the same call under the same id is done once, and its repeat returns
    what the first one returned.  A call that fails with a ``StoreError``, or that is cancelled, may have been carried
    out or not: repeat it under the same id.

    Args:
        engine: an open engine.
        flow: the flow whose sessions are started; its ``flow_type`` is enough.  ``None``: this client starts none.

    Raises:
        UsageError: an argument is of the wrong type.
        FlowNotFound: the engine has flows, but none of this type.
    """

    def __init__(self, engine: Engine, flow: AgentSessionFlow | str | None = None) -> None:
        expect(engine, Engine, "engine", "an engine, as open_engine(...) returns it")
        expect(flow, (AgentSessionFlow, str), "flow", "an AgentSessionFlow or its flow_type", optional=True)
        self._engine = engine
        self._store = engine.store
        if isinstance(flow, str):
            self._flow_type: str | None = flow
            self._flow = engine.flows.get(flow)
            if engine.flows and self._flow is None:
                known = sorted(engine.flows)
                raise FlowNotFound(
                    f"no flow of type {flow!r} here; this engine has {', '.join(known)}", flow_type=flow, known=known
                )
        else:
            self._flow_type = flow.flow_type if flow is not None else None
            self._flow = flow

    # ------------------------------------------------------------ writing

    async def start_session(
        self,
        session_id: str,
        message: str | None = None,
        *,
        user_id: str | None = None,
        state: Mapping[str, JsonValue] | None = None,
        state_delta: Mapping[str, JsonValue] | None = None,
        images: Sequence[ImageInput] = (),
        run_config: BaseModel | Mapping[str, JsonValue] | None = None,
        content: BaseModel | Mapping[str, JsonValue] | None = None,
        request_id: str | None = None,
    ) -> str | None:
        """Creates a session and, with a message, begins its first turn.  Idempotent: an equal second start is no error.

        Args:
            session_id: 1 to 256 printable characters; also the ADK session id.
            message: the first user message; ``None`` creates an idle session.
            user_id: the ADK user id; ``None`` (or an empty one) is the flow's.
            state: the session's initial state; ``app:`` and ``user:`` keys are shared as ADK defines them.
            state_delta: state to set with the first message.
            run_config: the framework's run configuration for the first turn; ``None`` is the flow's.
            content: the first message in the framework's own form (ADK's ``Content``), in place of text and images;
                ``message`` is then what of it people are shown.

        Returns:
            The id of the first turn; ``None`` without a message.

        Raises:
            UsageError: an argument is wrong, or the client has no flow.
            ValueNotStorable: a state value has no JSON form; names its key.
            SessionAlreadyExists: the id is taken by a session that was started otherwise.
        """
        if self._flow_type is None:
            raise UsageError("this client has no flow to start sessions of; use AgentSessionClient(engine, flow)")
        check_session_id(session_id)
        initial = mapping(state, "state")
        first = None if message is None else self._message("message", message, images, state_delta, run_config, content)
        if message is None and (images or state_delta or run_config or content):
            raise UsageError("images, state_delta, run_config and content go with a message; pass one")
        check_optional_text(user_id, "user_id")
        user = user_id or (self._flow.user_id if self._flow is not None else "user")
        new = NewSession(
            session_id=session_id,
            incarnation=self._engine.ids.new_id(),
            flow_type=self._flow_type,
            app_name=self._flow.app_name if self._flow is not None else self._flow_type,
            user_id=user,
            state=initial,
            event_capacity_bytes=(
                self._flow.event_stream_capacity_bytes if self._flow else DEFAULT_EVENT_STREAM_CAPACITY_BYTES
            ),
            await_step_id=await_step_id(0),
        )
        content = None if first is None else first.model_dump(mode="json")
        request = request_of(request_id, "start", self._flow_type, user, initial, content)
        turn = None if first is None else (new_turn_id(self._engine.ids), first)
        turn_id = await self._store.create_session(new, turn, request, self._now())
        if turn_id is not None:
            await self._engine.notify(session_id)
        return turn_id

    async def send_user_message(
        self,
        session_id: str,
        text: str,
        *,
        state_delta: Mapping[str, JsonValue] | None = None,
        images: Sequence[ImageInput] = (),
        run_config: BaseModel | Mapping[str, JsonValue] | None = None,
        content: BaseModel | Mapping[str, JsonValue] | None = None,
        request_id: str | None = None,
    ) -> str:
        """Sends a message.  While a turn runs it is queued, first in first out.  When this returns it is on disk.

        Args:
            content: the message in the framework's own form (ADK's ``Content``), in place of text and images; ``text``
                is then what of it people are shown.

        Returns:
            The id of the turn that the message starts.

        Raises:
            SessionNotFound, SessionClosed, RequestConflict
            UsageError: an argument is wrong.
            ValueNotStorable: a state value has no JSON form (names its key), or the text is no valid Unicode.
            PayloadTooLarge
        """
        message = self._message("text", text, images, state_delta, run_config, content)
        request = request_of(request_id, "send", message.model_dump(mode="json"))
        turn_id = new_turn_id(self._engine.ids)
        turn_id = await self._store.accept_message(text_id(session_id), turn_id, message, request, self._now())
        await self._engine.notify(session_id)
        return turn_id

    async def steer_user_message(self, session_id: str, text: str, *, request_id: str | None = None) -> str:
        """Tells a running turn something: it sees the text at its next model call, as the user's next message.

        It joins at a model call of an agent that takes part in the conversation; one that is called as a tool, that
        does a single turn, or that leaves the conversation out of its requests is none.  Up to then the text is in the
        queue, and ``cancel_turn`` can drop it.  If the turn ends without such a call, or none is open, the text starts
        a turn like any other message: it is seen once, and never lost.  When this returns it is on disk.

        Returns:
            The message's id: that of the turn that it starts if it joins none.

        Raises:
            SessionNotFound, SessionClosed, RequestConflict
            UsageError: the text is empty or no text.
            ValueNotStorable: it is no valid Unicode.
            PayloadTooLarge: it has more than 1,000,000 bytes as UTF-8: what joins a request has to leave room in it.
        """
        check_text(text, "text")
        if not text:
            raise UsageError("an empty text: pass what the turn is to be told", argument="text")
        size = len(text.encode(errors="replace"))
        if size > MAX_STEERING_BYTES:
            raise PayloadTooLarge(
                f"the text has {size} bytes; a turn that runs can be told {MAX_STEERING_BYTES}. Send it with "
                "send_user_message, or say where it is to be found",
                where="text",
                size=size,
                limit=MAX_STEERING_BYTES,
            )
        request = request_of(request_id, "steer", text)
        message, message_id = UserMessage(text=text, steers=True), new_turn_id(self._engine.ids)
        message_id = await self._store.accept_message(text_id(session_id), message_id, message, request, self._now())
        await self._engine.notify(session_id)
        return message_id

    async def resolve_interrupt(
        self,
        session_id: str,
        interrupt_id: str,
        *,
        approved: bool,
        payload: JsonValue = None,
        message: str | None = None,
        resolved_by: str | None = None,
        request_id: str | None = None,
    ) -> Interrupt:
        """Approves or rejects what an approval, a confirmation or a sign-in asks.

        Once: the identical answer again changes nothing.

        Args:
            payload: reaches the tool as ``ToolConfirmation.payload``; of a sign-in, ADK's auth response.
            message: what the model sees of a rejection; ``None`` for ADK's words.
            resolved_by: who decides; kept with the interrupt.

        Raises:
            SessionNotFound, InterruptNotFound, InterruptAlreadyResolved, InterruptExpired, InterruptWithdrawn
            UsageError: it is a question; use ``answer_question``.
            SessionBlocked: the agent's code does not fit the session; the interrupt stays pending.
            ValueNotStorable: the payload has no JSON form, or a text is no valid Unicode.
        """
        check_text(interrupt_id, "interrupt_id")
        answer = verdict(approved, payload, message, resolved_by)
        request = request_of(request_id, "resolve", interrupt_id, approved, payload, message)
        return await self._answer(session_id, interrupt_id, answer, request)

    async def answer_question(
        self,
        session_id: str,
        interrupt_id: str,
        answer: JsonValue,
        *,
        resolved_by: str | None = None,
        request_id: str | None = None,
    ) -> Interrupt:
        """Answers a question, a long-running call or a request for input.

        Once: the identical answer again changes nothing.  If the turn that asked did not wait for it, the answer
        starts a turn; while another turn runs, it is queued like a message.

        Args:
            answer: a JSON object, or another value, which becomes ``{"result": value}``; not ``None``.
            resolved_by: who answers; kept with the interrupt.

        Raises:
            SessionNotFound, InterruptNotFound, InterruptAlreadyResolved, InterruptExpired, InterruptWithdrawn
            UsageError: the answer is ``None``; or the interrupt takes yes or no: use ``resolve_interrupt``.
            SessionBlocked: the agent's code does not fit the session; the question stays open.
            SessionClosed: the answer would start a turn.
            ValueNotStorable, PayloadTooLarge
        """
        check_text(interrupt_id, "interrupt_id")
        given = reply(answer, f"the answer to interrupt {interrupt_id!r}", resolved_by)
        request = request_of(request_id, "answer", interrupt_id, given.value)
        return await self._answer(session_id, interrupt_id, given, request)

    async def resume(
        self,
        session_id: str,
        resume_map: Mapping[str, JsonValue],
        *,
        resolved_by: str | None = None,
        request_id: str | None = None,
    ) -> tuple[Interrupt, ...]:
        """Answers everything that a session asks, in one transaction: all of it or nothing.

        Once: the identical answers again change nothing.

        Args:
            resume_map: an answer for exactly the pending interrupts, by their ids.  For what takes yes or no: a bool,
                or an object with ``approved`` (bool) and, if wanted, ``payload`` and ``message``; else as in
                ``answer_question``.

        Returns:
            The interrupts, in the order of the map.

        Raises:
            UsageError: something pending is not named, or an answer does not suit what it answers.
            And all that ``resolve_interrupt`` and ``answer_question`` raise.
        """
        expect(resume_map, Mapping, "resume_map", "a mapping of interrupt ids to answers")
        if not resume_map:
            raise UsageError("resume_map is empty; give it an answer for each pending interrupt", session_id=session_id)
        given: dict[str, GivenAnswer] = {}
        for interrupt_id, value in resume_map.items():
            check_text(interrupt_id, "an interrupt id in resume_map")
            interrupt = await self._store.read_interrupt(text_id(session_id), interrupt_id)
            given[interrupt_id] = suitable_answer(interrupt, value, resolved_by)
        request = request_of(request_id, "resume", dict(resume_map))
        turn_id = new_turn_id(self._engine.ids)
        done = await self._store.answer_interrupts(session_id, given, request, self._now(), turn_id=turn_id)
        await self._engine.notify(session_id)
        return tuple(interrupt.for_readers() for interrupt in done)

    async def _answer(self, session_id: str, interrupt_id: str, answer: GivenAnswer, request: Request) -> Interrupt:
        turn_id = new_turn_id(self._engine.ids)
        now = self._now()
        answered = await self._store.answer_interrupt(
            text_id(session_id), interrupt_id, answer, request, now, turn_id=turn_id
        )
        await self._engine.notify(session_id)
        return answered.for_readers()

    async def cancel_turn(self, session_id: str, *, turn_id: str | None = None, request_id: str | None = None) -> None:
        """Stops the turn that is running or waiting at this moment; with ``turn_id`` that turn, be it open or queued.

        Without an open turn and a ``turn_id`` nothing happens.
        Running reads stop, a write that is under way gets the outcome ``outcome_unknown``, pending interrupts are
        withdrawn, and a note tells the next turn's model.  Returns when the request is on disk; ``wait`` shows its end.

        Raises:
            SessionNotFound
            TurnNotFound: ``turn_id`` is neither open nor queued.
        """
        check_optional_text(turn_id, "turn_id")
        request = request_of(request_id, "cancel", turn_id)
        await self._store.accept_cancel(text_id(session_id), turn_id, request, self._now())
        await self._engine.notify(session_id)

    async def close_session(self, session_id: str, *, request_id: str | None = None) -> None:
        """Closes a session: it takes no more messages, its open turn is cancelled, queued messages never begin.

        It can still be read.  Idempotent.

        Raises:
            SessionNotFound
        """
        request = request_of(request_id, "close")
        await self._store.accept_close(text_id(session_id), request, self._now())
        await self._engine.notify(session_id)

    async def delete_session(self, session_id: str) -> None:
        """Deletes a session and everything of it, at once and for good.

        Raises:
            SessionNotFound
        """
        await self._store.delete_session(text_id(session_id))
        await self._engine.notify(session_id)

    # ------------------------------------------------------------ reading

    async def get_agent_snapshot(self, session_id: str) -> AgentSnapshot:
        """The session as it is now.

        Raises:
            SessionNotFound
        """
        # The store may answer without a pause, and a loop around this must not keep the worker from running.
        await asyncio.sleep(0)
        return await self._store.read_snapshot(text_id(session_id), self._now())

    async def wait(self, session_id: str, *, timeout: float | None = None) -> AgentSnapshot:
        """Waits until the session is idle with an empty queue, waits for someone, is blocked, or is closed.

        Args:
            timeout: seconds, a finite number; ``None`` waits for ever.

        Raises:
            UsageError: ``timeout`` is none of these.
            SessionNotFound
            WaitTimeout: the time ran out; the session goes on.
        """
        expect_seconds(timeout, "timeout")
        subscription = self._engine.subscribe(text_id(session_id), _REST)
        try:
            async with asyncio.timeout(timeout):
                while True:
                    told = bool(subscription.items)
                    subscription.wake.clear()
                    subscription.items.clear()
                    if told or _rests(*await self._store.read_status(session_id)):
                        snapshot = await self.get_agent_snapshot(session_id)
                        if _rests(snapshot.status, snapshot.queued_messages):
                            return snapshot
                    if not told:
                        await _woken(subscription)
        except TimeoutError:
            snapshot = await self.get_agent_snapshot(session_id)
            if _rests(snapshot.status, snapshot.queued_messages):
                return snapshot
            raise WaitTimeout(
                f"session {session_id!r} is still {snapshot.status.value} after {timeout:g} s{_why(snapshot)}",
                session_id=session_id,
                timeout=timeout,
                status=snapshot.status.value,
            ) from None
        finally:
            self._engine.unsubscribe(session_id, subscription)

    async def list_messages(
        self, session_id: str, *, after: str | None = None, limit: int = DEFAULT_PAGE
    ) -> Page[Message]:
        """The conversation, oldest first.

        Args:
            after: ``next_cursor`` of the page before; ``None`` from the start.
            limit: 1 to 1000.

        Raises:
            SessionNotFound, UsageError
        """
        return await self._store.list_messages(text_id(session_id), page_position(after), page_limit(limit))

    async def read_step_history(
        self, session_id: str, *, after: str | None = None, limit: int = DEFAULT_PAGE
    ) -> Page[StepRecord]:
        """Every step of the session, in the order in which they came up; arguments as for ``list_messages``.

        Raises:
            SessionNotFound, UsageError
        """
        return await self._store.read_steps(text_id(session_id), page_position(after), page_limit(limit))

    async def list_sessions(
        self,
        *,
        flow_type: str | None = None,
        user_id: str | None = None,
        status: SessionStatus | None = None,
        after: str | None = None,
        limit: int = DEFAULT_PAGE,
    ) -> Page[SessionSummary]:
        """Sessions, the most recently changed first; of this client's flow unless ``flow_type`` names another.

        Raises:
            UsageError: an argument is wrong.
        """
        check_optional_text(flow_type, "flow_type")
        check_optional_text(user_id, "user_id")
        check_optional_text(after, "after")
        expect(status, SessionStatus, "status", "a SessionStatus", optional=True)
        chosen = SessionFilter(flow_type or self._flow_type, user_id, status)
        return await self._store.list_sessions(chosen, after, page_limit(limit))

    async def stream_events(self, session_id: str, *, after: str | None = None) -> AsyncGenerator[AgentEvent, None]:
        """The live stream, from a cursor on, without an end; nothing is lost or doubled, over processes and restarts.

        A reader that leaves changes nothing.

        Args:
            after: cursor of the last event seen; ``None`` begins with the oldest kept.

        Raises:
            SessionNotFound
            UsageError: ``after`` is no cursor.
            EventCursorExpired: the stream no longer reaches back that far, or the reader fell behind so far; read the
                messages, then stream without a cursor.
        """
        check_optional_text(after, "after")
        subscription = self._engine.subscribe(text_id(session_id))
        cursor = after
        try:
            while True:
                subscription.wake.clear()
                # What is shown by now comes right behind all that the store holds, so the store goes first.
                shown_by_now = len(subscription.items)
                async for event in self._stored_events(session_id, cursor):
                    cursor = event.cursor
                    yield await self._complete(event)
                while subscription.items and not subscription.lacks(cursor):
                    shown = subscription.items[0]
                    new = cursor is None or shown.event.cursor > cursor
                    if new and shown_by_now <= 0 and cursor not in (None, shown.previous):
                        break  # An earlier owner's events are in the store.
                    subscription.items.popleft()
                    shown_by_now -= 1
                    if new:
                        cursor = shown.event.cursor
                        yield await self._complete(shown.event)
                await _woken(subscription)
        finally:
            self._engine.unsubscribe(session_id, subscription)

    async def _stored_events(self, session_id: str, cursor: str | None) -> AsyncIterator[AgentEvent]:
        """What the store holds behind a cursor, in pages."""
        while True:
            batch = await self._store.read_events(text_id(session_id), cursor, _EVENT_PAGE)
            if batch.trimmed and cursor is not None:
                raise EventCursorExpired(
                    f"the live stream of session {session_id!r} no longer holds what came after {cursor}; read the "
                    "messages, then stream without a cursor",
                    session_id=session_id,
                    cursor=cursor,
                    oldest=batch.oldest,
                )
            for event in batch.events:
                yield event
            if len(batch.events) < _EVENT_PAGE:
                return
            cursor = batch.events[-1].cursor

    # ------------------------------------------------------------ small hands

    def _now(self) -> int:
        return self._engine.clock.now_ms()

    def _message(
        self,
        argument: str,
        text: str,
        images: Sequence[ImageInput],
        state_delta: Mapping[str, JsonValue] | None,
        run_config: BaseModel | Mapping[str, JsonValue] | None,
        content: BaseModel | Mapping[str, JsonValue] | None,
    ) -> UserMessage:
        check_text(text, argument)
        expect_each(images, ImageInput, "images", "ImageInput")
        if not text and not images and content is None:
            raise UsageError(f"an empty message: pass some {argument} or an image", argument=argument)
        if images and content is not None:
            raise UsageError("images and content are two ways to say the same; pass one of them")
        delta = mapping(state_delta, "state_delta")
        message = UserMessage(
            text=text,
            images=tuple(images),
            state_delta=delta,
            run_config=_as_json(run_config, "run_config"),
            content=_as_json(content, "content"),
        )
        if self._flow is not None:
            self._flow.runner.check_message(message)
        return message

    async def _complete(self, event: AgentEvent) -> AgentEvent:
        """A ``message`` event is stored without its item, which is in the message; puts it in."""
        if event.type is not AgentEventType.MESSAGE or "framework_item" in event.data:
            return event
        index = event.data["index"]
        page = await self._store.list_messages(event.session_id, index - 1, 1)
        item = page.items[0].framework_item if page.items else {}
        return event.model_copy(update={"data": {**event.data, "framework_item": item}})


def _as_json(value: BaseModel | Mapping[str, JsonValue] | None, argument: str) -> JsonObject | None:
    """One of the framework's own objects as JSON.  Raises: UsageError, ValueNotStorable."""
    if value is None:
        return None
    expect(value, (BaseModel, Mapping), argument, "one of the framework's own objects, or a mapping")
    plain = value.model_dump(mode="json", exclude_unset=True) if isinstance(value, BaseModel) else dict(value)
    ensure_storable(plain, argument)
    return plain


def _why(snapshot: AgentSnapshot) -> str:
    """Why a session may not move, as far as its snapshot tells, and what to do."""
    reasons = ""
    if snapshot.lost_workers:
        died = "a worker died" if snapshot.lost_workers == 1 else f"{snapshot.lost_workers} workers in a row died"
        reasons += (
            f"; {died} in its turn: look for a crash or for memory running out in the model, the tools or the callbacks"
        )
    if not snapshot.served:
        reasons += (
            f"; no live worker serves the flow type {snapshot.flow_type!r}: start one (engine.worker(), engine.serve() "
            "or 'perdure serve')"
        )
    return f"{reasons}. It goes on; wait again"


def _rests(status: SessionStatus, queued_messages: int) -> bool:
    if status is SessionStatus.IDLE:
        return queued_messages == 0
    return status in (SessionStatus.WAITING, SessionStatus.BLOCKED, SessionStatus.CLOSED)


async def _woken(subscription: Subscription) -> None:
    try:
        async with asyncio.timeout(WATCH_INTERVAL.total_seconds()):
            await subscription.wake.wait()
    except TimeoutError:
        pass
