"""The wrapped model: a call that the journal has is answered from it; any other is made, tried again and recorded.

``install`` puts the wrapper into the one place where every agent gets its model; outside a durable turn nothing
changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import timedelta

from google.adk.agents.invocation_context import InvocationContext
from google.adk.flows.llm_flows.base_llm_flow import BaseLlmFlow
from google.adk.models import LlmCapabilities
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError

from perdure.adk import seams
from perdure.adk.live import determinism
from perdure.adk.live.core import TurnCore, turn_of
from perdure.adk.live.runs import current_run
from perdure.adk.marks import is_ours, ours
from perdure.adk.models.once import record
from perdure.adk.models.retries import is_transient
from perdure.adk.models.usage import usage_of
from perdure.adk.records.failures import decode_error, encode_error
from perdure.adk.tools.stand_ins import make_tools_durable
from perdure.session.model import JsonObject, Usage


class _Recorded(BaseModel):
    """The record of a model call: its final responses, and the error that it ended with.

    ``seen`` is the first field, where ``journal`` looks for it.
    """

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="strings")

    seen: list[int] | None = None
    responses: list[LlmResponse] = []
    error: JsonObject | None = None


@dataclass(slots=True)
class _Attempts:
    """What came out of calling the real model."""

    responses: list[LlmResponse] = field(default_factory=list[LlmResponse])
    requests: int = 0
    error: Exception | None = None

    @property
    def usage(self) -> Usage:
        """What they cost.  The numbers of one request are cumulative: its last ones count."""
        reported = [response.usage_metadata for response in self.responses if response.usage_metadata is not None]
        return usage_of(reported[-1] if reported else None, self.requests)


def install() -> None:
    """Makes ADK ask for its models through here, once per process."""
    original = seams.get_llm_method()
    if is_ours(original):
        return

    async def _get_llm(self: BaseLlmFlow, invocation_context: InvocationContext) -> BaseLlm:
        llm = await original(self, invocation_context)
        core = turn_of(invocation_context)
        return llm if core is None else DurableModel.around(llm, core, invocation_context)

    seams.set_get_llm_method(ours(_get_llm))


class DurableModel(BaseLlm):
    """A model of a durable turn.  It stands for one model call."""

    _call: _ModelCall = PrivateAttr()

    @classmethod
    def around(cls, inner: BaseLlm, core: TurnCore, invocation: InvocationContext) -> DurableModel:
        """Wraps the model that an agent is about to call."""
        model = cls(model=inner.model)
        model._call = _ModelCall(inner, core, invocation)
        return model

    @property
    def capabilities(self) -> LlmCapabilities:
        """Those of the real model."""
        return self._call.inner.capabilities

    def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """The responses of the record; without one, those of the real model.

        Raises:
            Exception: the model's last failure, live and in every replay.
        """
        return self._call.responses(llm_request, stream)


class _ModelCall:
    """One model call of a durable turn.  (Apart from ``DurableModel``: a pydantic object is slow to look into.)"""

    def __init__(self, inner: BaseLlm, core: TurnCore, invocation: InvocationContext) -> None:
        self.inner = inner
        self._core = core
        self._branch = invocation.branch
        self._agent = invocation.agent.name if invocation.agent else ""
        run = current_run.get()
        assert run is not None, "an agent always runs in a run"
        self._run = run
        self._path = core.place_of(run, invocation)

    async def responses(self, llm_request: LlmRequest, stream: bool) -> AsyncGenerator[LlmResponse, None]:
        core = self._core
        make_tools_durable(llm_request.tools_dict)  # callbacks may have put other tools in
        key = core.next_model_key(self._path)
        core.model_calls[self._path] = core.model_calls.get(self._path, 0) + 1
        record = await core.conductor.enter_model(self._run, key)
        if record is not None:
            recorded = await self._recorded(key, record.response)
        else:
            attempts = _Attempts()
            async with aclosing(self._try(llm_request, stream, attempts)) as partials:
                async for partial in partials:
                    yield partial
            recorded = await self._record(key, attempts)
        calls = [call.id or "" for response in recorded.responses for call in _function_calls(response)]
        core.conductor.leave_model(self._run, key, calls)
        for response in recorded.responses:
            yield response
        if recorded.error is not None:
            raise decode_error(recorded.error)

    async def _recorded(self, key: str, response: str) -> _Recorded:
        """What the record says.  If this code cannot read it, that is no answer of the model: the turn stops here."""
        try:
            return _Recorded.model_validate_json(response)
        except ValidationError as error:
            reason = error.errors(include_url=False, include_input=False)[0]["msg"]
            self._core.conductor.fail_replay(key, "a response of a model", f"none that it can read ({reason})")
            await self._core.conductor.parking.for_ever()

    async def _try(
        self, llm_request: LlmRequest, stream: bool, attempts: _Attempts
    ) -> AsyncGenerator[LlmResponse, None]:
        """Calls the model until it answers or no try is left; yields partial responses as they come."""
        retry = self._core.settings.model_retry
        for attempt in range(1, retry.max_attempts + 1):
            attempts.requests = attempt
            attempts.responses = []
            attempts.error = None
            try:
                async for response in self._request(llm_request, stream):
                    if response.partial:
                        self._note(response, attempt)
                        yield response
                    else:
                        attempts.responses.append(response)
                return
            except asyncio.CancelledError:
                self._core.conductor.parking.guard()
                raise
            except (Exception, SystemExit, KeyboardInterrupt) as raised:  # noqa: BLE001  (it is the model's answer)
                error = raised if isinstance(raised, Exception) else RuntimeError(f"the model raised {raised!r}")
                attempts.error = error
                attempts.responses = []
                if attempt == retry.max_attempts or not is_transient(error):
                    return
            await self._pause(retry.delay_after(attempt))

    async def _request(self, llm_request: LlmRequest, stream: bool) -> AsyncIterator[LlmResponse]:
        """One request to the model, under the time limit, with the real clock and ids."""
        limit = self._core.settings.model_timeout
        deadline = None if limit is None else asyncio.get_running_loop().time() + limit.total_seconds()
        responses = self.inner.generate_content_async(llm_request, stream)
        try:
            while True:
                providers = determinism.suspend()
                try:
                    if deadline is None:
                        response = await anext(responses)
                    else:
                        async with asyncio.timeout_at(deadline):
                            response = await anext(responses)
                except StopAsyncIteration:
                    return
                finally:
                    determinism.resume(providers)
                yield response
        finally:
            await responses.aclose()

    async def _pause(self, delay: timedelta) -> None:
        try:
            await asyncio.sleep(delay.total_seconds())
        except asyncio.CancelledError:
            self._core.conductor.parking.guard()
            raise

    def _note(self, response: LlmResponse, attempt: int) -> None:
        """The response is shown when ADK has made an event of it, which it does of these only."""
        if response.content or response.error_code or response.interrupted:
            # A worker that died in the step may have made all its attempts: those of the next worker count from there.
            attempt += (self._core.step_attempt - 1) * self._core.settings.model_retry.max_attempts
            self._core.note_partial(self._branch, self._agent, attempt)

    async def _record(self, key: str, attempts: _Attempts) -> _Recorded:
        """Records what came out, before anything follows from it."""
        core = self._core
        error = attempts.error
        recorded = _Recorded(error=None if error is None else encode_error(error))
        recorded.responses = attempts.responses
        _fill_call_ids(core, key, attempts.responses)

        def behind(seen: list[int]) -> str:
            recorded.seen = seen
            return recorded.model_dump_json(exclude_none=True)

        await record(core, self._run, key, behind, attempts.usage)
        return recorded


def _function_calls(response: LlmResponse) -> list[types.FunctionCall]:
    parts = (response.content.parts if response.content else None) or []
    return [part.function_call for part in parts if part.function_call]


def _fill_call_ids(core: TurnCore, key: str, responses: list[LlmResponse]) -> None:
    """Gives each call an id of its own in the turn: the model's, or one from ADK's generator."""
    calls = [call for response in responses for call in _function_calls(response)]
    if not calls:
        return
    used: set[str] = set()
    with determinism.ids_from(core.start.turn_id, key):
        for call in calls:
            if not call.id or call.id in used or core.conductor.floor.knows(call.id):
                call.id = seams.new_function_call_id()
            used.add(call.id)
