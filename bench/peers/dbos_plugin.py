"""DBOS with its ADK plugin, as its README sets it up: a turn is a workflow, the tool a step, models the plugin's.

Its system database is PostgreSQL where the course has one, else a SQLite file.  The transcript stays in memory, as in
that README: keeping it as well costs a second database.
"""
# Its packages are in an environment of its own: the checkers do not see them.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from dbos import DBOS, DBOSConfig
from dbos_google_adk import DBOSPlugin
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService

from bench.orders import FLOW_TYPE, USER, orders_agent
from bench.orders import lookup as plain_lookup
from bench.peers.child import Places
from bench.peers.course import History
from bench.peers.plain import last_text


@DBOS.step()
async def lookup(order_id: str) -> dict[str, Any]:
    """Reads an order.

    Args:
        order_id: the order's id.
    """
    return await plain_lookup(order_id)


_runner = Runner(
    app_name=FLOW_TYPE,
    agent=orders_agent([lookup]),
    plugins=[DBOSPlugin()],
    session_service=InMemorySessionService(),
)


@DBOS.workflow()
async def run_turn(session_id: str, text: str) -> str:
    return await last_text(_runner, session_id, text)


class _Dbos:
    async def open(self, session_id: str) -> None:
        await _runner.session_service.create_session(app_name=FLOW_TYPE, user_id=USER, session_id=session_id)

    async def turn(self, session_id: str, text: str) -> str:
        return await run_turn(session_id, text)

    async def history(self, session_id: str) -> History | None:
        return None


@asynccontextmanager
async def contender(places: Places) -> AsyncGenerator[_Dbos]:
    database = places.postgres or f"sqlite:///{places.folder}/dbos.sqlite"
    config: DBOSConfig = {"name": "peers", "system_database_url": database, "log_level": "ERROR"}
    DBOS(config=config)
    DBOS.launch()
    try:
        yield _Dbos()
    finally:
        DBOS.destroy()
