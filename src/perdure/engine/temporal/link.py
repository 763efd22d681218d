"""The way to Temporal's server: connects, makes sure that the namespace is this store's, tells workflows of news."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.envconfig import ClientConfig
from temporalio.service import RPCError, RPCStatusCode, TLSConfig

from perdure.engine.temporal.options import TemporalAddress, TemporalOptions, TemporalTls
from perdure.engine.temporal.wire import POKE, REPORT, WORKFLOW, Report, Start
from perdure.errors import EngineAccessDenied, EngineError, EngineUnavailable, NamespaceNotFound, StoreMismatch

logger = logging.getLogger("perdure.temporal")

REGISTRY = "PerdureStore"
"""Type of the workflow that holds which store a namespace belongs to.  Nobody runs it: it stays as it was started."""

SIGNAL_TIMEOUT = timedelta(seconds=3)
"""How long a signal may take.  One that does not get through is made good by a sweep."""

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

    async def poke_if_known(self, session_id: str) -> bool:
        """Has a session looked at by its workflow, if there is one.

        Raises:
            EngineError
        """
        return await self._signal(session_id, POKE, None)

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

    Raises:
        EngineUnavailable, EngineAccessDenied, NamespaceNotFound, StoreMismatch
    """
    arguments = connect_arguments(address, options)
    target, namespace = arguments["target_host"], arguments["namespace"]
    seconds = options.connect_timeout.total_seconds()
    try:
        async with asyncio.timeout(seconds):
            client = await Client.connect(**arguments)
    except (RuntimeError, TimeoutError, RPCError, ValueError) as error:
        if isinstance(error, RPCError) and error.status in _DENIED:
            raise _access_denied(target, namespace, error) from error
        why = str(error) or f"no answer within {seconds:g} s"
        raise EngineUnavailable(
            f"Temporal cannot be reached at {target}: {why}. Is the server up, is the address right, and does it want "
            "TLS (?tls=true)?",
            address=target,
        ) from error
    await _register_store(client, options, store_id, store_address)
    return TemporalLink(client, options, store_id)


def connect_arguments(address: TemporalAddress, options: TemporalOptions) -> dict[str, Any]:
    """What ``Client.connect`` gets: the environment, then the address, then the options, the last word counts."""
    found: Mapping[str, Any] = ClientConfig.load_client_connect_config(options.profile)
    arguments: dict[str, Any] = {"target_host": "localhost:7233", "namespace": "default", **found}
    chosen: dict[str, Any] = {"target_host": address.target, "namespace": address.namespace, "tls": address.tls}
    if options.api_key is not None:
        chosen["api_key"] = options.api_key
        chosen["tls"] = True if address.tls is None else address.tls
    if isinstance(options.tls, TemporalTls):
        chosen["tls"] = TLSConfig(
            server_root_ca_cert=options.tls.server_root_ca,
            client_cert=options.tls.client_cert,
            client_private_key=options.tls.client_key,
            domain=options.tls.server_name,
        )
    elif options.tls is not None:
        chosen["tls"] = options.tls
    arguments.update({name: value for name, value in chosen.items() if value is not None})
    return arguments


async def _register_store(client: Client, options: TemporalOptions, store_id: str, store_address: str) -> None:
    registry_id = f"{options.prefix}-store"
    handle: WorkflowHandle[Any, Any] = await _asked(
        client.start_workflow(
            REGISTRY,
            id=registry_id,
            task_queue=registry_id,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            memo={"store_id": store_id, "store_address": store_address},
            static_summary="which store this namespace belongs to; no worker runs this",
            rpc_timeout=options.connect_timeout,
        ),
        client,
    )
    found = await _asked(handle.describe(rpc_timeout=options.connect_timeout), client)
    memo = await found.memo()
    if memo.get("store_id") != store_id:
        registered, its_address = memo.get("store_id"), memo.get("store_address")
        raise StoreMismatch(
            f"namespace {client.namespace!r} belongs to the store {its_address} (id {registered}), and this is "
            f"{store_address} (id {store_id}). Open the engine with that store, use another namespace, or another "
            f"TemporalOptions.prefix. If that store is given up for good, terminate the workflow {registry_id!r}",
            namespace=client.namespace,
            registered=registered,
            registered_address=its_address,
            store=store_id,
            store_address=store_address,
        )


# ---------------------------------------------------------------- errors

_DENIED = (RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.PERMISSION_DENIED)


async def _asked(call: Any, client: Client) -> Any:
    try:
        return await call
    except RPCError as error:
        raise translate(error, client) from error


def translate(error: RPCError, client: Client) -> EngineError:
    """An error of Temporal's service as one of ours."""
    target, namespace = client.service_client.config.target_host, client.namespace
    if error.status in _DENIED:
        return _access_denied(target, namespace, error)
    if error.status is RPCStatusCode.NOT_FOUND:
        return NamespaceNotFound(
            f"Temporal at {target} has no namespace {namespace!r}; create it, or correct the address: "
            "temporal://HOST:PORT/NAMESPACE",
            address=target,
            namespace=namespace,
        )
    return EngineUnavailable(f"Temporal at {target} does not answer: {error.message}", address=target)


def _access_denied(target: str, namespace: str, error: Exception) -> EngineAccessDenied:
    return EngineAccessDenied(
        f"Temporal at {target} refuses access to namespace {namespace!r}: {error}. Check TEMPORAL_API_KEY, or the "
        "certificates in TemporalOptions",
        address=target,
        namespace=namespace,
    )
