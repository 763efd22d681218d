"""Opening an engine: it waits for a server that is away, says at once what to wait does not help, and keeps the
namespace's registry up to date."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import Client
from tests.support.play import Play
from tests.support.temporal_server import TemporalServer, running_server
from tests.temporal.conftest import Playhouse, link_of

from perdure import (
    AgentSessionClient,
    Engine,
    EngineUnavailable,
    SessionStatus,
    StoreMismatch,
    TemporalOptions,
    TemporalTls,
    open_engine,
)
from perdure.engine.temporal import link
from perdure.engine.temporal.options import TemporalAddress
from perdure.engine.temporal.reaching import try_to_connect
from perdure.store.copying import copy_store

PATIENT = timedelta(seconds=60)


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[Exception | None]:
    """How each try to connect ended."""
    ended: list[Exception | None] = []

    async def noted(address: TemporalAddress, options: TemporalOptions) -> Client:
        try:
            client = await try_to_connect(address, options)
        except Exception as error:
            ended.append(error)
            raise
        ended.append(None)
        return client

    monkeypatch.setattr(link, "try_to_connect", noted)
    return ended


def engine_at(target: str, folder: Path, options: TemporalOptions | None = None, query: str = "") -> Engine:
    options = options or TemporalOptions(connect_timeout=PATIENT)
    return open_engine(f"temporal://{target}/default{query}", store=f"sqlite:///{folder / 'a.db'}", temporal=options)


# ---------------------------------------------------------------- a server that is away


async def test_a_server_that_comes_up_meanwhile(tmp_path: Path, tries: list[Exception | None]) -> None:
    with running_server() as server:
        server.stop()
        opening = asyncio.ensure_future(engine_at(server.target, tmp_path).open())
        while not tries:  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.01)
        await asyncio.to_thread(server.start)
        engine = await opening
        await engine.close()
    assert isinstance(tries[0], EngineUnavailable)
    assert tries[-1] is None


async def test_a_server_that_never_comes_is_tried_until_the_time_is_over(
    tmp_path: Path, tries: list[Exception | None], unused_tcp_port: int
) -> None:
    options = TemporalOptions(connect_timeout=timedelta(seconds=0.5))
    with pytest.raises(EngineUnavailable, match="Is the server up"):
        await engine_at(f"127.0.0.1:{unused_tcp_port}", tmp_path, options).open()
    assert len(tries) > 1


# ---------------------------------------------------------------- what to wait does not help


@pytest.mark.parametrize(
    ("query", "options", "decided"),
    [
        ("?tls=true", {}, "?tls=true"),
        ("", {"tls": True}, "TemporalOptions.tls"),
        ("", {"api_key": "secret"}, "TemporalOptions.api_key"),
    ],
)
async def test_tls_against_a_server_without_it(
    tmp_path: Path,
    temporal_server: TemporalServer,
    tries: list[Exception | None],
    query: str,
    options: dict[str, bool | str],
    decided: str,
) -> None:
    temporal = TemporalOptions(connect_timeout=PATIENT, **options)  # type: ignore[arg-type]  # each has its type
    with pytest.raises(EngineUnavailable) as caught:
        await engine_at(temporal_server.target, tmp_path, temporal, query).open()
    assert f"TLS is on (because of {decided}); this server seems to speak without it" in caught.value.message
    assert "?tls=false" in caught.value.message
    assert not caught.value.retryable
    assert len(tries) == 1


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def speaking(talk: Talk, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server of another kind.  Where it is."""

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        except OSError:
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(served, "127.0.0.1", 0, ssl=context) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(64)
    writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    await reader.read()  # Until they leave: who closes over unread bytes resets the connection, and his words are lost.


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of this machine's, and its key, in one file."""
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    command += f" -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=CA:FALSE -keyout {file} -out {file}.crt"
    subprocess.run(command.split(), check=True, capture_output=True)
    file.write_text(file.read_text() + Path(f"{file}.crt").read_text())
    return file


@pytest.fixture
def context(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    context.set_alpn_protocols(["h2"])
    return context


@pytest.mark.parametrize("strict", [False, True], ids=["any client", "clients with a certificate"])
async def test_no_tls_against_a_server_that_wants_it(
    tmp_path: Path, context: ssl.SSLContext, tries: list[Exception | None], strict: bool
) -> None:
    if strict:
        context.verify_mode = ssl.CERT_REQUIRED
    async with speaking(silence, context) as target:
        with pytest.raises(EngineUnavailable, match=r"TLS is off \(nothing asks for it\)") as caught:
            await engine_at(target, tmp_path).open()
    assert "tls=True, or ?tls=true" in caught.value.message
    assert not caught.value.retryable
    assert len(tries) == 1


async def test_a_certificate_that_nobody_vouches_for(
    tmp_path: Path, context: ssl.SSLContext, tries: list[Exception | None]
) -> None:
    async with speaking(silence, context) as target:
        with pytest.raises(EngineUnavailable, match=r"TLS fails .*check the certificates"):
            await engine_at(target, tmp_path, query="?tls=true").open()
    assert len(tries) == 1


@pytest.mark.parametrize("encrypted", [False, True])
async def test_a_port_of_another_protocol(
    tmp_path: Path, certificate: Path, context: ssl.SSLContext, tries: list[Exception | None], encrypted: bool
) -> None:
    tls = TemporalTls(server_root_ca=certificate.read_bytes()) if encrypted else None  # noqa: ASYNC240 - it is small
    async with speaking(http, context if encrypted else None) as target:
        with pytest.raises(EngineUnavailable, match="does not speak Temporal's protocol"):
            await engine_at(target, tmp_path, TemporalOptions(tls=tls, connect_timeout=PATIENT)).open()
    # Of the same answer Temporal's client sometimes tells only that the connection was closed, which may pass.
    *before, last = [error for error in tries if isinstance(error, EngineUnavailable)]
    assert not last.retryable
    assert all(error.retryable and "operation was canceled" in error.message for error in before)


# ---------------------------------------------------------------- over TLS


@asynccontextmanager
async def behind_tls(server: TemporalServer, context: ssl.SSLContext) -> AsyncIterator[str]:
    """A place where a server speaks TLS."""
    host, port = server.target.rsplit(":", 1)

    async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            sink.write(data)
            await sink.drain()
        sink.close()

    async def both_ways(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(host, int(port))
        try:
            await asyncio.gather(carry(reader, inner_writer), carry(inner_reader, writer))
        finally:
            inner_writer.close()

    async with speaking(both_ways, context) as target:
        yield target


@pytest.mark.parametrize("mutual", [False, True], ids=["its certificate", "both certificates"])
async def test_a_session_over_tls(
    house: Playhouse, tmp_path: Path, certificate: Path, context: ssl.SSLContext, mutual: bool
) -> None:
    both = certificate.read_bytes()  # noqa: ASYNC240 - it is small
    tls = TemporalTls(server_root_ca=both)
    if mutual:
        context.load_verify_locations(certificate)
        context.verify_mode = ssl.CERT_REQUIRED
        tls = TemporalTls(server_root_ca=both, client_cert=both, client_key=both)

    async def script(play: Play) -> None:
        play.say("done")

    flow = house.flow(script)
    options = TemporalOptions(prefix=house.prefix, tls=tls, api_key="secret")
    async with (
        behind_tls(house.server, context) as target,
        open_engine(f"temporal://{target}/default", store=house.store, flows=[flow], temporal=options) as engine,
        engine.worker(),
    ):
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "hello")
        assert (await client.wait("s", timeout=30)).status is SessionStatus.IDLE


# ---------------------------------------------------------------- a store that was moved


async def test_the_registry_names_where_a_moved_store_is_now(house: Playhouse, tmp_path: Path) -> None:
    async with house.engine():
        pass
    moved = replace(house, store=f"sqlite:///{tmp_path / 'moved.db'}")
    await copy_store(house.store, moved.store)
    runs: list[str | None] = []
    for _ in range(2):  # the second time nothing has to be done
        async with moved.engine() as engine:
            registry = link_of(engine).client.get_workflow_handle(f"{house.prefix}-store")
            described = await registry.describe()
            assert (await described.memo())["store_address"] == moved.store
            runs.append(described.run_id)
    assert runs[0] == runs[1]
    other = replace(house, store=f"sqlite:///{tmp_path / 'other.db'}")
    with pytest.raises(StoreMismatch, match=r"moved\.db.*other\.db"):
        await other.engine().open()
