"""A real MCP server, over stdio or streamable HTTP.  It notes in a file each listing and call, and for whom it was.

Run as a script: ``mcp_server.py LOG stdio``, or ``mcp_server.py LOG http``, which prints its port when it listens.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import Tool, ToolAnnotations


def build(log: Path) -> MCPServer[Any]:
    """The server."""

    def note(what: str, context: Context[Any, Any] | None = None) -> None:
        request = None if context is None else getattr(context.request_context, "request", None)
        tenant = "" if request is None else f" for {request.headers.get('x-tenant')}"
        with log.open("a") as file:
            file.write(f"{what}{tenant} by {os.getpid()}\n")

    class Noting(MCPServer[Any]):
        async def list_tools(self) -> list[Tool]:
            note("list")
            return await super().list_tools()

    server = Noting("warehouse")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def look(item: str, context: Context[Any, Any]) -> str:
        """Looks an item up."""
        note(f"look {item}", context)
        return f"{item}: 3 left"

    @server.tool(annotations=ToolAnnotations(idempotent_hint=True))
    def put(item: str, count: int) -> dict[str, Any]:
        """Sets the stock of an item."""
        note(f"put {item} {count}")
        return {"item": item, "count": count}

    @server.tool()
    def pay(amount: int) -> str:
        """Pays."""
        note(f"pay {amount}")
        return "paid"

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def wait(item: str) -> str:
        """Never answers."""
        note(f"wait {item}")
        await asyncio.get_running_loop().create_future()
        return "never"

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def fail(item: str) -> str:
        """Fails."""
        note(f"fail {item}")
        raise ValueError(f"no {item}")

    return server


async def serve_http(server: MCPServer[Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        app = server.streamable_http_app(host="127.0.0.1")
        config = uvicorn.Config(app, log_level="error", lifespan="on")
        print(listener.getsockname()[1], flush=True)
        await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    warehouse = build(Path(sys.argv[1]))
    if sys.argv[2] == "stdio":
        warehouse.run("stdio")
    else:
        asyncio.run(serve_http(warehouse))
