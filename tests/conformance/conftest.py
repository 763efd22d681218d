"""The targets of the conformance suite, and its results: the chosen cases of a target run together."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.postgres import Server
from tests.support.temporal_server import TemporalServer

from perdure.testing.conformance import CaseResult, ConformanceCase, Target, run_suite

Results = dict[str, CaseResult]
JOBS = 3


@pytest.fixture(scope="session")
def targets(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Target]:
    """Name -> target; servers are started when their target is asked for."""

    def sqlite() -> str:
        return f"sqlite:///{tmp_path_factory.mktemp('conformance') / 'sessions.db'}"

    def local_postgresql() -> Target:
        server: Server = request.getfixturevalue("postgres")

        async def restart() -> None:
            await asyncio.to_thread(server.restart)

        return Target(server.address(server.new_schema()), restart_services=restart)

    def temporal(store: Target) -> Target:
        server: TemporalServer = request.getfixturevalue("temporal_server")

        async def restart() -> None:
            if store.restart_services is not None:
                await store.restart_services()
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)

        engine = f"{server.address}?prefix={server.new_prefix()}"
        return Target(engine, store.engine, restart_services=restart)

    makers: dict[str, Callable[[], Target]] = {
        "local+sqlite": lambda: Target(sqlite()),
        "local+postgresql": local_postgresql,
        "temporal+sqlite": lambda: temporal(Target(sqlite())),
        "temporal+postgresql": lambda: temporal(local_postgresql()),
    }
    return lambda name: makers[name]()


@pytest.fixture(scope="session")
def results(request: pytest.FixtureRequest, targets: Callable[[str], Target]) -> Callable[[str], Results]:
    """Name of a target -> results of the cases that were chosen for it on pytest's command line."""
    known: dict[str, Results] = {}

    def of(name: str) -> Results:
        if name not in known:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of ADK's shapes, which the cases are about
                found = asyncio.run(run_suite(_chosen(request.session, name), targets(name), jobs=JOBS))
            known[name] = {result.case.name: result for result in found}
        return known[name]

    return of


def _chosen(session: pytest.Session, target: str) -> list[ConformanceCase]:
    chosen: list[ConformanceCase] = []
    for item in session.items:
        callspec = getattr(item, "callspec", None)
        if callspec is not None and callspec.params.get("target") == target:
            chosen.append(callspec.params["case"])
    return chosen


def sessions_in(folder: Path) -> str:
    """The address of a store in a folder."""
    return f"sqlite:///{folder / 'sessions.db'}"
