"""ADK's telemetry of a model call is left out of durable turns as long as nobody listens, and only then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.adk.telemetry import tracing
from opentelemetry import _logs, metrics, trace
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from tests.adk.plain import run_plain
from tests.adk.worlds import WORLDS, World

from perdure.adk.live import telemetry

PROVIDERS = {
    "get_tracer_provider": (trace, TracerProvider),
    "get_meter_provider": (metrics, MeterProvider),
    "get_logger_provider": (_logs, LoggerProvider),
}

DESCRIBE = "set_operation_details_attributes_from_request"


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Collects the requests that ADK describes to OpenTelemetry."""
    requests: list[object] = []
    describe: Any = getattr(tracing, DESCRIBE)

    def note(attributes: object, request: object) -> None:
        requests.append(request)
        describe(attributes, request)

    monkeypatch.setattr(tracing, DESCRIBE, note)
    return requests


def a_world() -> World:
    return next(iter(WORLDS.values()))()


async def durable_turns() -> None:
    world = a_world()
    engine = world.engine()
    for message in world.messages:
        await engine.turn(message)
    assert engine.disk.error is None


async def test_nothing_is_described_when_nobody_listens(described: list[object]) -> None:
    await durable_turns()
    assert described == []


@pytest.mark.parametrize("getter", PROVIDERS)
async def test_everything_is_described_as_soon_as_somebody_listens(
    getter: str, described: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, provider = PROVIDERS[getter]
    listening: Callable[[], object] = provider
    instance = listening()
    monkeypatch.setattr(module, getter, lambda: instance)
    await durable_turns()
    assert described


async def test_a_plain_run_beside_durable_ones_describes_its_requests(described: list[object]) -> None:
    telemetry.install()
    world = a_world()
    await run_plain(world.agent, world.messages, **world.services)
    assert described
