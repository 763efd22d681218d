"""The way to Temporal's server: what its client is given, and what it means when no connection comes about."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Mapping
from typing import Any

from temporalio.client import Client
from temporalio.envconfig import ClientConfig
from temporalio.service import RPCError, TLSConfig

from perdure.engine.temporal.errors import DENIED, WrongWay, access_denied, unreachable
from perdure.engine.temporal.options import TemporalAddress, TemporalOptions, TemporalTls
from perdure.errors import EngineError

PROBE_LIMIT = 2.0
"""Seconds that a server has to say whether it speaks TLS."""

# Of what goes wrong in a connection Temporal's client tells nothing but a text.
_DENIED_WORDS = re.compile(r"code: (Unauthenticated|PermissionDenied)")
_NO_TLS_WORDS = re.compile(r"InvalidMessage\(")
_TLS_WORDS = re.compile(r"InvalidCertificate|AlertReceived|PrivateKey|[Cc]ertificate")
_FOREIGN_WORDS = re.compile(r"(FRAME_SIZE|PROTOCOL)_ERROR, Library|code: Unimplemented")
_NAME_WORDS = re.compile(r"Name or service not known|No address associated|nodename nor servname")
_CUT_OFF_WORDS = re.compile(r"after connection")


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


async def try_to_connect(address: TemporalAddress, options: TemporalOptions) -> Client:
    """Connects, or says why not.

    Raises:
        EngineUnavailable: nobody answers; later somebody may.
        WrongWay: the server speaks another protocol, or it is about TLS.
        EngineAccessDenied
    """
    arguments = connect_arguments(address, options)
    try:
        return await Client.connect(**arguments)
    except (RuntimeError, RPCError, ValueError) as error:
        raise await _explained(error, arguments, _who_decided(address, options, arguments)) from error


def _who_decided(address: TemporalAddress, options: TemporalOptions, arguments: Mapping[str, Any]) -> str:
    """Who switched TLS on or off."""
    if options.tls is not None:
        return "TemporalOptions.tls"
    if address.tls is not None:
        return f"?tls={str(address.tls).lower()}"
    if options.api_key is not None:
        return "TemporalOptions.api_key"
    if arguments.get("api_key") or arguments.get("tls"):
        return "Temporal's environment: TEMPORAL_API_KEY, TEMPORAL_TLS or its configuration file"
    return "nothing asks for it"


async def _explained(error: Exception, arguments: Mapping[str, Any], decided: str) -> EngineError:
    target, namespace, why = arguments["target_host"], arguments["namespace"], str(error)
    encrypted = bool(arguments.get("tls"))
    if (isinstance(error, RPCError) and error.status in DENIED) or _DENIED_WORDS.search(why):
        return access_denied(target, namespace, error)
    if encrypted and _NO_TLS_WORDS.search(why):
        return _wrong(
            target, f"TLS is on (because of {decided}); this server seems to speak without it: tls=False, or ?tls=false"
        )
    if not encrypted and _CUT_OFF_WORDS.search(why) and await _speaks_tls(target):
        return _wrong(
            target, f"TLS is off ({decided}); this server seems to speak nothing else: tls=True, or ?tls=true"
        )
    if _FOREIGN_WORDS.search(why):
        return _wrong(target, f"what answers does not speak Temporal's protocol ({why}); correct the address")
    if _TLS_WORDS.search(why):
        return _wrong(target, f"TLS fails ({why}); check the certificates of the server and of TemporalOptions.tls")
    if _NAME_WORDS.search(why):
        return _wrong(target, f"nobody knows this host ({why}); correct the address")
    if isinstance(error, ValueError):
        return _wrong(target, f"{why}; correct the address, or Temporal's environment")
    return unreachable(target, why)


def _wrong(target: str, why: str) -> WrongWay:
    return WrongWay(f"Temporal cannot be reached at {target}: {why}", address=target)


async def _speaks_tls(target: str) -> bool:
    """Whether a server begins to speak TLS when it is asked to.  Nothing is said over the connection."""
    host, _, port = target.rpartition(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        async with asyncio.timeout(PROBE_LIMIT):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context)
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")  # It refuses us in the words of TLS.
    except (OSError, ValueError):
        return False
    writer.transport.abort()
    return True
