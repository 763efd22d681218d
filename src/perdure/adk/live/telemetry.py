"""Leaves out what ADK tells OpenTelemetry of each model call of a durable turn when nobody listens.

ADK turns every request into span attributes and log records, an exporter or not.  That is a sixth of a short turn, and
it grows with the session: more than a quarter after a hundred turns.  As soon as the application has set a provider
for spans, logs or metrics, ADK does all of it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from opentelemetry import _logs, metrics, trace

from perdure.adk import seams
from perdure.adk.live.core import current_turn
from perdure.adk.marks import is_ours, ours


def install() -> None:
    """Makes ADK open its spans of model calls through here, once per process."""
    original = seams.use_inference_span()
    if is_ours(original):
        return

    @asynccontextmanager
    async def use_inference_span(
        llm_request: LlmRequest, invocation_context: InvocationContext, model_response_event: Event
    ) -> AsyncGenerator[Any]:
        if current_turn.get() is not None and not is_heard():
            yield None  # what ADK itself yields when another library records the call
            return
        async with original(llm_request, invocation_context, model_response_event) as span:
            yield span

    seams.set_use_inference_span(ours(use_inference_span))


def is_heard() -> bool:
    """Whether the application has set a provider for spans, logs or metrics."""
    providers = (trace.get_tracer_provider(), metrics.get_meter_provider(), _logs.get_logger_provider())
    return not all("Proxy" in type(provider).__name__ for provider in providers)
