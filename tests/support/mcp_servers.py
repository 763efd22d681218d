"""Starts the MCP server of the tests, and tells what happened in it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.adk.tools.mcp_tool import McpToolset, StdioConnectionParams, StreamableHTTPConnectionParams
from mcp import StdioServerParameters

_SERVER = str(Path(__file__).with_name("mcp_server.py"))


@dataclass(frozen=True)
class Noted:
    """One line of the server's log."""

    what: str
    tenant: str | None
    process: int


class ServerLog:
    """What all servers that were given this file have noted."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self) -> list[Noted]:
        if not self.path.exists():
            return []
        noted: list[Noted] = []
        for line in self.path.read_text().splitlines():
            rest, _, process = line.rpartition(" by ")
            what, _, tenant = rest.partition(" for ")
            noted.append(Noted(what, tenant or None, int(process)))
        return noted

    def calls(self) -> list[str]:
        return [entry.what for entry in self.entries() if entry.what != "list"]

    def listings(self) -> int:
        return sum(entry.what == "list" for entry in self.entries())


def stdio_toolset(log: ServerLog, **more: Any) -> McpToolset:
    """A toolset over a server of its own, which is started when it is needed."""
    server = StdioServerParameters(command=sys.executable, args=[_SERVER, str(log.path), "stdio"])
    return McpToolset(connection_params=StdioConnectionParams(server_params=server, timeout=60), **more)


def absent_toolset(**more: Any) -> McpToolset:
    """A toolset whose server cannot be started."""
    server = StdioServerParameters(command="/nonexistent/mcp-server")
    return McpToolset(connection_params=StdioConnectionParams(server_params=server, timeout=5), **more)


def http_toolset(port: int, **more: Any) -> McpToolset:
    return McpToolset(
        connection_params=StreamableHTTPConnectionParams(url=f"http://127.0.0.1:{port}/mcp", timeout=60), **more
    )


@asynccontextmanager
async def http_server(log: ServerLog) -> AsyncGenerator[int]:
    """Runs a server for the length of the block.  Gives its port."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        _SERVER,
        str(log.path),
        "http",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        yield int(await process.stdout.readline())
    finally:
        process.terminate()
        await process.communicate()
