"""What Temporal's client and server report, as our errors: what happened, where, and what to do."""

from __future__ import annotations

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from perdure.errors import EngineAccessDenied, EngineError, EngineUnavailable, NamespaceNotFound

DENIED = (RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.PERMISSION_DENIED)

_NOT_UNDERSTOOD = (RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.INVALID_ARGUMENT)


class WrongWay(EngineUnavailable):
    """What answers is not what was asked for, or not in this way: to wait does not help."""

    retryable = False


def translate(error: RPCError, client: Client) -> EngineError:
    """An error of Temporal's service as one of ours."""
    target, namespace = client.service_client.config.target_host, client.namespace
    if error.status in DENIED:
        return access_denied(target, namespace, error)
    if error.status is RPCStatusCode.NOT_FOUND:
        return NamespaceNotFound(
            f"Temporal at {target} has no namespace {namespace!r}; create it, or correct the address: "
            "temporal://HOST:PORT/NAMESPACE",
            address=target,
            namespace=namespace,
        )
    kind = WrongWay if error.status in _NOT_UNDERSTOOD else EngineUnavailable
    return kind(f"Temporal at {target} does not answer: {error.message}", address=target)


def access_denied(target: str, namespace: str, error: Exception) -> EngineAccessDenied:
    """The credentials are wrong, or do not reach far enough."""
    return EngineAccessDenied(
        f"Temporal at {target} refuses access to namespace {namespace!r}: {error}. Check TEMPORAL_API_KEY, or the "
        "certificates in TemporalOptions",
        address=target,
        namespace=namespace,
    )


def unreachable(target: str, why: str) -> EngineUnavailable:
    """Nobody answers, so far."""
    return EngineUnavailable(
        f"Temporal cannot be reached at {target}: {why}. Is the server up, is the address right, and does it want "
        "TLS (?tls=true)?",
        address=target,
    )
