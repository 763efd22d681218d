"""Small makers of what a store is given, and ``Owner``, which writes turns as an engine would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from perdure.clock import to_datetime
from perdure.faults import DurableWrite
from perdure.session.events import cursor_for
from perdure.session.model import (
    AgentEvent,
    AgentEventType,
    ErrorInfo,
    InterruptKind,
    JsonObject,
    JsonValue,
    MessageRole,
    RecordStatus,
    SessionStatus,
    StepName,
    StepStatus,
    TurnStatus,
    Usage,
    UserMessage,
)
from perdure.session.policy import RetryPolicy, ToolEffect
from perdure.session.runner import Answer, CallRequest, ModelCall, NewMessage, Question, QuestionWait
from perdure.session.state import CallPhase
from perdure.store.base import (
    CallPut,
    ClaimedSession,
    EventPut,
    InterruptPut,
    Lease,
    LegBegin,
    LegEnd,
    NewSession,
    QuestionEnd,
    QuestionPut,
    RecordPut,
    Request,
    SessionPut,
    SessionStore,
    SessionWrite,
    StepPut,
    TurnBegin,
    TurnChange,
    Worker,
)

NOW = 1_750_000_000_000
FLOW = "SupportAgent"
DEFINITION = "code-1"
LEASE_MS = 10_000
USAGE = Usage(input_tokens=10, output_tokens=5, model_calls=1)


def new_session(session_id: str = "s", **changes: Any) -> NewSession:
    base = NewSession(
        session_id=session_id,
        incarnation=f"inc-{session_id}",
        flow_type=FLOW,
        app_name="shop",
        user_id="user",
        state={},
        event_capacity_bytes=1 << 20,
        await_step_id="await/1",
    )
    return replace(base, **changes)


def request(request_id: str | None = None, fingerprint: str = "f") -> Request:
    return Request(request_id, fingerprint)


def text_message(text: str = "hello") -> UserMessage:
    return UserMessage(text=text)


def worker(worker_id: str = "w1", definition: str = DEFINITION, flows: Sequence[str] = (FLOW,)) -> Worker:
    return Worker(worker_id, dict.fromkeys(flows, definition), LEASE_MS)


def event(number: int, kind: AgentEventType = AgentEventType.TEXT_DELTA, text: str | None = "x") -> EventPut:
    shown = AgentEvent(
        cursor=cursor_for(1, number),
        type=kind,
        session_id="s",
        turn_id="t1",
        text=text,
        created_at=to_datetime(NOW),
    )
    return EventPut(number, shown)


def message(ordinal: int, text: str = "hi", state: JsonObject | None = None, **changes: Any) -> NewMessage:
    base = NewMessage(
        ordinal=ordinal,
        role=MessageRole.ASSISTANT,
        author="agent",
        text=text,
        item=f'{{"n":{ordinal},"text":"{text}"}}',
        created_at_ms=NOW,
        state_delta=state or {},
    )
    return replace(base, **changes)


def call_request(call_id: str = "c1", **changes: Any) -> CallRequest:
    base = CallRequest(
        call_id=call_id,
        group="m1",
        tool_name="refund_order",
        arguments={"order": 7},
        agent_name="agent",
        effect=ToolEffect.READ,
        retry=RetryPolicy(),
    )
    return replace(base, **changes)


def question(question_id: str = "q1", wait: QuestionWait = QuestionWait.LIVE, **changes: Any) -> Question:
    base = Question(
        question_id=question_id,
        kind=InterruptKind.INPUT,
        group="g1",
        wait=wait,
        tool_name="ask",
        arguments={"about": question_id},
        agent_name="agent",
        path="flow/node",
        hint="which one?",
        payload={"choices": 2},
    )
    return replace(base, **changes)


def model_call(key: str = "m1", sequence: int = 1, response: str = '{"r":1}') -> ModelCall:
    return ModelCall(key, sequence, response, USAGE, NOW)


def step(step_id: str, status: StepStatus, turn_id: str | None = "t1", **changes: Any) -> StepPut:
    base = StepPut(
        step_id=step_id,
        turn_id=turn_id,
        name=StepName.RUN_MODEL,
        status=status,
        attempts=1,
        started_at_ms=NOW,
        settled_at_ms=NOW if status.settled else None,
    )
    return replace(base, **changes)


def record(call_id: str = "c1", result: JsonValue = None, turn_id: str = "t1", **changes: Any) -> RecordPut:
    base = RecordPut(turn_id, call_id, 2, RecordStatus.SUCCEEDED, NOW, outcome='{"o":1}', result=result)
    return replace(base, **changes)


def write(*kinds: DurableWrite, **parts: Any) -> SessionWrite:
    return SessionWrite(kinds=kinds, **parts)


RUNNING = SessionPut(SessionStatus.RUNNING, definition=DEFINITION)
IDLE = SessionPut(SessionStatus.IDLE, await_step_id="await/2")
WAITING = SessionPut(SessionStatus.WAITING)


class Owner:
    """Writes one session as its owner, one call per write an engine makes."""

    def __init__(self, store: SessionStore, claimed: ClaimedSession, now_ms: int = NOW) -> None:
        self.store = store
        self.claimed = claimed
        self.lease: Lease = claimed.lease
        self.now_ms = now_ms

    async def commit(self, *kinds: DurableWrite, **parts: Any) -> None:
        await self.store.commit(self.lease, write(*kinds, **parts), self.now_ms)

    async def begin(self, turn_id: str = "t1", number: int = 1) -> None:
        await self.commit(DurableWrite.TURN_STARTED, session=RUNNING, begin=TurnBegin(turn_id, number, self.now_ms))

    async def ask(self, call_id: str = "c1", turn_id: str = "t1", deadline_ms: int | None = None) -> str:
        """A call that waits for an approval.  Returns the interrupt's id."""
        interrupt_id = f"{turn_id}:{call_id}"
        await self.commit(
            DurableWrite.MODEL_STEP_SETTLED,
            turn_id=turn_id,
            calls=(
                CallPut(
                    turn_id,
                    call_id,
                    CallPhase.AWAITING,
                    0,
                    f"{turn_id}/call/{call_id}",
                    f"{turn_id}/approve/{call_id}",
                    interrupt_id,
                    call_request(call_id, ask=InterruptKind.APPROVAL, hint="really?", payload={"limit": 5}),
                ),
            ),
            interrupts=(
                InterruptPut(interrupt_id, turn_id, call_id, InterruptKind.APPROVAL, self.now_ms, deadline_ms),
            ),
        )
        return interrupt_id

    async def ask_question(
        self,
        question_id: str = "q1",
        wait: QuestionWait = QuestionWait.LIVE,
        *,
        turn_id: str = "t1",
        deadline_ms: int | None = None,
        number: int = 1,
        **changes: Any,
    ) -> str:
        """A question with its interrupt and its step.  Returns the interrupt's id."""
        asked = question(question_id, wait, **changes)
        suffix = "" if number == 1 else f":{number}"
        interrupt_id = f"{turn_id}:{question_id}{suffix}"
        step_id = f"{turn_id}/answer/{question_id}{suffix}"
        raised = InterruptPut(interrupt_id, turn_id, question_id, asked.kind, self.now_ms, deadline_ms)
        await self.commit(
            DurableWrite.MODEL_STEP_SETTLED,
            turn_id=turn_id,
            steps=(step(step_id, StepStatus.PENDING, turn_id, name=StepName.AWAIT_ANSWER, call_id=question_id),),
            interrupts=(raised,),
            questions=(QuestionPut(interrupt_id, turn_id, step_id, asked),),
        )
        return interrupt_id

    async def answer(self, interrupt_id: str, sequence: int, value: JsonValue = None, **parts: Any) -> None:
        """Takes up the answer to a question of the open turn."""
        given = Answer(interrupt_id.split(":")[1], sequence, value, parts.pop("error", None), self.now_ms)
        await self.commit(question_ends=(QuestionEnd(interrupt_id, given),), turn_id="t1", **parts)

    async def end_leg(self, carry: str | None = None, turn_id: str = "t1") -> None:
        await self.commit(DurableWrite.LEG_ENDED, leg_end=LegEnd(carry), turn_id=turn_id)

    async def begin_leg(self, leg: int = 2, turn_id: str = "t1", **parts: Any) -> None:
        await self.commit(DurableWrite.LEG_STARTED, leg_begin=LegBegin(leg), turn_id=turn_id, **parts)

    async def suspend(self, turn_id: str = "t1", wake_at_ms: int | None = None) -> None:
        await self.commit(
            DurableWrite.SESSION_RELEASED,
            session=WAITING,
            turn=TurnChange(turn_id, TurnStatus.WAITING),
            release=True,
            wake_at_ms=wake_at_ms,
        )

    async def end(
        self, turn_id: str = "t1", status: TurnStatus = TurnStatus.COMPLETED, *, release: bool = True, **parts: Any
    ) -> None:
        await self.commit(
            DurableWrite.TURN_ENDED,
            session=parts.pop("session", IDLE),
            turn=TurnChange(turn_id, status, self.now_ms, parts.pop("error", None)),
            turn_id=turn_id,
            release=release,
            **parts,
        )

    async def release(self, wake_at_ms: int | None = None) -> None:
        await self.commit(DurableWrite.SESSION_RELEASED, release=True, wake_at_ms=wake_at_ms)


async def claim(store: SessionStore, worker_id: str = "w1", now_ms: int = NOW) -> Owner:
    """Claims the one session that is due."""
    (claimed,) = await store.claim(worker_id, [FLOW], 10, now_ms)
    return Owner(store, claimed, now_ms)


async def open_turn(store: SessionStore, session_id: str = "s", turn_id: str = "t1") -> Owner:
    """A new session with an open turn, owned by the new worker ``w1``."""
    await store.register_worker(worker(), NOW)
    await store.create_session(new_session(session_id), (turn_id, text_message()), request(), NOW)
    owner = await claim(store)
    await owner.begin(turn_id)
    return owner


BLOCKED = ErrorInfo(
    code="non_determinism", message="the code changed", facts={"step": "m1", "expected": "a", "found": "b"}
)
