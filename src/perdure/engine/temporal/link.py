"""The link to a namespace of Temporal: makes sure that the namespace is this store's, and tells workflows of news."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from temporalio.client import AsyncActivityCancelledError, Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from perdure.engine.temporal.errors import translate, unreachable
from perdure.engine.temporal.options import TemporalAddress, TemporalOptions
from perdure.engine.temporal.reaching import connect_arguments, try_to_connect
from perdure.engine.temporal.wire import POKE, REPORT, WORKFLOW, Report, Start
from perdure.errors import EngineUnavailable, StoreMismatch

logger = logging.getLogger("perdure.temporal")

REGISTRY = "PerdureStore"
"""Type of the workflow that holds which store a namespace belongs to.  Nobody runs it: it stays as it was started."""

SIGNAL_TIMEOUT = timedelta(seconds=3)
"""How long a signal may take.  One that does not get through is made good by a sweep."""

CONNECT_PAUSE = timedelta(seconds=0.1)
"""Between two tries to connect while the engine is opened."""

TASK_TIMEOUT = timedelta(seconds=4)
"""How long a worker may take to think, before another one does it.  A worker that leaves may lose what it was just
given."""

MAX_ID_BYTES = 500
"""Of a session's id as it is; Temporal's own limit is 1000 bytes for an id of a workflow."""


class TemporalLink:
    """An open connection to one namespace."""

    def __init__(self, client: Client, options: TemporalOptions, store_id: str) -> None:
        self.client = client
        self.store_id = store_id
        self._options = options

    def queue(self, flow_type: str) -> str:
        """Where the workers of a flow are found."""
        return f"{self._options.prefix}-{flow_type}"

    def worker_queue(self, name: str) -> str:
        """Where one worker is found."""
        return f"{self._options.prefix}-worker-{name}"

    def workflow_id(self, session_id: str) -> str:
        """The id of the workflow of a session."""
        if len(session_id.encode()) > MAX_ID_BYTES:
            session_id = f"sha256-{hashlib.sha256(session_id.encode()).hexdigest()}"
        return f"{self._options.prefix}-session-{session_id}"

    async def poke(self, session_id: str, flow_type: str, fence: int | None = None) -> None:
        """Has a session looked at: by its workflow, or by one that begins now.

        Args:
            fence: leases up to this one are worth nothing any more.

        Raises:
            EngineError
        """
        queue = self.queue(flow_type)
        await _asked(
            self.client.start_workflow(
                WORKFLOW,
                Start(session_id, self.store_id, queue, self._options.events_per_run),
                id=self.workflow_id(session_id),
                task_queue=queue,
                task_timeout=TASK_TIMEOUT,
                start_signal=POKE,
                start_signal_args=[fence],
                rpc_timeout=SIGNAL_TIMEOUT,
            ),
            self.client,
        )

    async def end(self, session_id: str) -> None:
        """Ends the workflow of a session that is not there any more, if there is one.

        It cannot be left to the workflow: perhaps there is no worker of its flow any more, either.

        Raises:
            EngineError
        """
        handle = self.client.get_workflow_handle(self.workflow_id(session_id))
        try:
            await handle.terminate(reason="the session was deleted", rpc_timeout=SIGNAL_TIMEOUT)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise translate(error, self.client) from error

    async def report(self, session_id: str, report: Report) -> bool:
        """Tells the workflow of a session what its host has applied.  ``False``: there is no such workflow.

        Raises:
            EngineError
        """
        return await self._signal(session_id, REPORT, report)

    async def is_running(self, session_id: str) -> bool:
        """Whether a session has a workflow at this moment.

        Raises:
            EngineError
        """
        handle = self.client.get_workflow_handle(self.workflow_id(session_id))
        try:
            found = await handle.describe(rpc_timeout=SIGNAL_TIMEOUT)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise translate(error, self.client) from error
        return found.status is WorkflowExecutionStatus.RUNNING

    async def waits_for(self, attempt: bytes) -> bool:
        """Whether the server still waits for an attempt of an activity, given by its token.

        A process that stood still finds attempts in its sockets that were given to others long ago.

        Raises:
            EngineError
        """
        try:
            await self.client.get_async_activity_handle(task_token=attempt).heartbeat(rpc_timeout=SIGNAL_TIMEOUT)
        except AsyncActivityCancelledError:
            return False
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise translate(error, self.client) from error
        return True

    async def _signal(self, session_id: str, name: str, content: object) -> bool:
        handle = self.client.get_workflow_handle(self.workflow_id(session_id))
        try:
            await handle.signal(name, content, rpc_timeout=SIGNAL_TIMEOUT)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise translate(error, self.client) from error
        return True


async def connect(
    address: TemporalAddress, options: TemporalOptions, store_id: str, store_address: str
) -> TemporalLink:
    """Connects, and registers the store with the namespace, or makes sure that it is the one that is registered.

    Waits for a server that is away, as long as ``connect_timeout`` says.

    Raises:
        EngineUnavailable, EngineAccessDenied, NamespaceNotFound, StoreMismatch
    """
    last: EngineUnavailable | None = None
    try:
        async with asyncio.timeout(options.connect_timeout.total_seconds()):
            while True:
                try:
                    client = await try_to_connect(address, options)
                    await _register_store(client, options, store_id, store_address)
                    return TemporalLink(client, options, store_id)
                except EngineUnavailable as error:
                    if not error.retryable:
                        raise
                    last = error
                await asyncio.sleep(CONNECT_PAUSE.total_seconds())
    except TimeoutError as error:
        target = connect_arguments(address, options)["target_host"]
        seconds = options.connect_timeout.total_seconds()
        raise last or unreachable(target, f"no answer within {seconds:g} s") from error


async def _register_store(client: Client, options: TemporalOptions, store_id: str, store_address: str) -> None:
    found = await _registered(client, options, store_id, store_address, WorkflowIDConflictPolicy.USE_EXISTING)
    registered, its_address = found.get("store_id"), found.get("store_address")
    if registered != store_id:
        raise StoreMismatch(
            f"namespace {client.namespace!r} belongs to the store {its_address} (id {registered}), and this is "
            f"{store_address} (id {store_id}). Open the engine with that store, use another namespace, or another "
            f"TemporalOptions.prefix. If that store is given up for good, terminate the workflow "
            f"{_registry_id(options)!r}",
            namespace=client.namespace,
            registered=registered,
            registered_address=its_address,
            store=store_id,
            store_address=store_address,
        )
    if its_address != store_address:
        # It was moved.  A memo that nobody runs cannot be changed, so in one step another takes its place.
        await _registered(client, options, store_id, store_address, WorkflowIDConflictPolicy.TERMINATE_EXISTING)


async def _registered(
    client: Client, options: TemporalOptions, store_id: str, store_address: str, policy: WorkflowIDConflictPolicy
) -> Mapping[str, Any]:
    """Registers the store, if none is there or the policy wants it.  Returns what is registered."""
    handle: WorkflowHandle[Any, Any] = await _asked(
        client.start_workflow(
            REGISTRY,
            id=_registry_id(options),
            task_queue=_registry_id(options),
            id_conflict_policy=policy,
            memo={"store_id": store_id, "store_address": store_address},
            static_summary="which store this namespace belongs to; no worker runs this",
            rpc_timeout=options.connect_timeout,
        ),
        client,
    )
    found = await _asked(handle.describe(rpc_timeout=options.connect_timeout), client)
    memo: Mapping[str, Any] = await found.memo()
    return memo


def _registry_id(options: TemporalOptions) -> str:
    return f"{options.prefix}-store"


async def _asked(call: Any, client: Client) -> Any:
    try:
        return await call
    except RPCError as error:
        raise translate(error, client) from error
