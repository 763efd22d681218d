"""How an engine reaches Temporal: the address, and what belongs into no address.  Imports nothing of Temporal."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from perdure.errors import UsageError

TEMPORAL_PREFIX = "temporal://"
DEFAULT_PORT = 7233


@dataclass(frozen=True, slots=True)
class TemporalTls:
    """Certificates, each in PEM form.  ``None``: what the system trusts; no certificate of the client's own."""

    server_root_ca: bytes | None = None
    client_cert: bytes | None = None
    client_key: bytes | None = None
    server_name: str | None = None


@dataclass(frozen=True, slots=True)
class TemporalOptions:
    """What an address of Temporal does not say.  ``None``: as Temporal's own environment has it.

    Attributes:
        api_key: switches TLS on, unless ``tls`` says otherwise.
        tls: ``True`` for TLS with the system's certificates.
        profile: of Temporal's configuration file; ``None``: its default one.
        prefix: what the names of all task queues and the ids of all workflows begin with.  A store has one; another
            prefix makes room for another store in the same namespace.
        events_per_run: of a workflow's history; at the next quiet point another run begins.
        connect_timeout: how long opening the engine may wait for Temporal.
    """

    api_key: str | None = None
    tls: bool | TemporalTls | None = None
    profile: str | None = None
    prefix: str = "perdure"
    events_per_run: int = 4_000
    connect_timeout: timedelta = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class TemporalAddress:
    """``target``: host and port.  ``None``: as ``TemporalOptions`` or Temporal's environment has it."""

    target: str | None = None
    namespace: str | None = None
    tls: bool | None = None
    prefix: str | None = None

    def __str__(self) -> str:
        asked = {"tls": None if self.tls is None else str(self.tls).lower(), "prefix": self.prefix}
        query = urlencode({name: value for name, value in asked.items() if value is not None})
        return f"{TEMPORAL_PREFIX}{self.target or ''}/{self.namespace or ''}{query and '?' + query}"


def parse_address(address: str) -> TemporalAddress:
    """Takes ``temporal://HOST[:PORT][/NAMESPACE][?tls=true&prefix=PREFIX]`` apart.

    Raises:
        UsageError: it is of another form.
    """
    parts = urlsplit(address)
    try:
        port = parts.port
    except ValueError as error:
        raise _malformed(address, str(error)) from None
    asked = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme != "temporal" or not address.startswith(TEMPORAL_PREFIX):
        raise _malformed(address, "it does not begin with temporal://")
    if parts.username is not None or parts.fragment:
        raise _malformed(address, "secrets do not belong into an address; use TemporalOptions or TEMPORAL_API_KEY")
    if asked.keys() - {"tls", "prefix"} or asked.get("tls", "true") not in ("true", "false") or "" in asked.values():
        raise _malformed(address, "after '?' there may be tls=true or tls=false, prefix=..., and nothing else")
    namespace = unquote(parts.path.strip("/"))
    if "/" in namespace:
        raise _malformed(address, f"{namespace!r} is no namespace")
    host = parts.hostname and (f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname)
    target = f"{host}:{port or DEFAULT_PORT}" if host else None
    tls = asked["tls"] == "true" if "tls" in asked else None
    return TemporalAddress(target, namespace or None, tls, asked.get("prefix"))


def _malformed(address: str, why: str) -> UsageError:
    return UsageError(
        f"{address!r} is no address of Temporal: {why}. Use temporal://HOST:PORT/NAMESPACE, for example "
        "temporal://localhost:7233/default",
        address=address,
    )
