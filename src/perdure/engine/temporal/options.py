"""How an engine reaches Temporal: the address, and what belongs into no address.  Imports nothing of Temporal."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from perdure.arguments import expect, expect_count, expect_secret, wrong
from perdure.errors import UsageError

TEMPORAL_PREFIX = "temporal://"
DEFAULT_PORT = 7233

FEWEST_EVENTS = 10
"""Of a run: with fewer it would end where it begins."""

_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,100}")
POSITIVE = "a timedelta that is more than zero"
PREFIX_RULE = "a str of 1 to 100 letters (a-z, A-Z), digits, dots, underscores or hyphens"


@dataclass(frozen=True, slots=True)
class TemporalTls:
    """Certificates, each in PEM form.  ``None``: what the system trusts; no certificate of the client's own.

    Raises:
        UsageError: one of them is of the wrong type, or a certificate is without its key; names it.
    """

    server_root_ca: bytes | None = None
    client_cert: bytes | None = None
    client_key: bytes | None = field(default=None, repr=False)
    server_name: str | None = None

    def __post_init__(self) -> None:
        for name in ("server_root_ca", "client_cert", "client_key"):
            expect_secret(getattr(self, name), bytes, f"TemporalTls.{name}", "bytes in PEM form")
        expect(self.server_name, str, "TemporalTls.server_name", "a str", optional=True)
        if (self.client_cert is None) != (self.client_key is None):
            missing = "client_cert" if self.client_cert is None else "client_key"
            raise UsageError(f"TemporalTls.{missing} is missing; give client_cert and client_key, or neither")


@dataclass(frozen=True, slots=True)
class TemporalOptions:
    """What an address of Temporal does not say.  ``None``: as Temporal's own environment has it.

    Attributes:
        api_key: switches TLS on, unless ``tls`` says otherwise.
        tls: ``True`` for TLS with the system's certificates.
        profile: of Temporal's configuration file; ``None``: its default one.
        prefix: what the names of all task queues and the ids of all workflows begin with: up to 100 letters (of ASCII),
            digits, dots, underscores and hyphens.  A store has one; another prefix makes room for another store in the
            same namespace.
        events_per_run: of a workflow's history, at least 10; at the next quiet point another run begins.
        connect_timeout: how long opening the engine may wait for Temporal.

    Raises:
        UsageError: one of them is of the wrong type or out of its range; names it.
    """

    api_key: str | None = field(default=None, repr=False)
    tls: bool | TemporalTls | None = None
    profile: str | None = None
    prefix: str = "perdure"
    events_per_run: int = 4_000
    connect_timeout: timedelta = timedelta(seconds=10)

    def __post_init__(self) -> None:
        expect_secret(self.api_key, str, "TemporalOptions.api_key", "a str")
        expect(self.profile, str, "TemporalOptions.profile", "a str", optional=True)
        expect(self.tls, (bool, TemporalTls), "TemporalOptions.tls", "a bool or a TemporalTls", optional=True)
        expect_count(self.events_per_run, "TemporalOptions.events_per_run", least=FEWEST_EVENTS)
        expect(self.prefix, str, "TemporalOptions.prefix", PREFIX_RULE)
        if not _PREFIX.fullmatch(self.prefix):
            raise wrong("TemporalOptions.prefix", self.prefix, PREFIX_RULE)
        expect(self.connect_timeout, timedelta, "TemporalOptions.connect_timeout", POSITIVE)
        if self.connect_timeout <= timedelta(0):
            raise wrong("TemporalOptions.connect_timeout", self.connect_timeout, POSITIVE)


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
    if "prefix" in asked and not _PREFIX.fullmatch(asked["prefix"]):
        raise _malformed(address, f"prefix must be {PREFIX_RULE}")
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
