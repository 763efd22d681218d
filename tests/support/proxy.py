"""A proxy before a server's socket, which a test can cut in the two ways in which a network breaks."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

NAME = ".s.PGSQL.5432"


class Proxy:
    """Passes everything on between its own socket and the server's, until it is told otherwise.

    It works in a thread of its own, so that it goes on whatever the test does.
    """

    def __init__(self, server: Path) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="perdure-px-")
        self.folder = Path(self._directory.name)
        self._server = server / NAME
        self._selector = selectors.DefaultSelector()
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._silent = False
        self._refusing = False
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(os.fspath(self.folder / NAME))
        self._listener.listen(64)
        self._wake, self._woken = socket.socketpair()
        self._going = True
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    def swallow(self) -> None:
        """From now on nothing gets through, and nobody is told: a network that loses every packet."""
        self._silent = True

    def drop(self) -> None:
        """Ends all connections; new ones are refused."""
        self._refusing = True
        with self._lock:
            for one in list(self._pairs):
                self._close(one)

    def heal(self) -> None:
        """New connections get through.  Those that were swallowed stay dead."""
        with self._lock:
            if self._silent:
                for one in list(self._pairs):
                    # The server's side ends now; the client's stays silent, as it would be after a router's restart.
                    with contextlib.suppress(KeyError):
                        self._selector.unregister(one)
        self._silent = self._refusing = False
        self._wake.send(b"x")

    def close(self) -> None:
        self._going = False
        self._wake.send(b"x")
        self._thread.join()
        with self._lock:
            for one in list(self._pairs):
                self._close(one)
        for one in (self._listener, self._wake, self._woken):
            one.close()
        self._directory.cleanup()

    def _run(self) -> None:
        while self._going:
            for key, _ in self._selector.select(0.05):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._woken:
                    self._woken.recv(64)
                elif isinstance(key.fileobj, socket.socket):
                    self._pass_on(key.fileobj)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        if self._refusing:
            client.close()
            return
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(os.fspath(self._server))
        except OSError:
            client.close()
            server.close()
            return
        with self._lock:
            self._pairs[client], self._pairs[server] = server, client
            for one in (client, server):
                self._selector.register(one, selectors.EVENT_READ)

    def _pass_on(self, one: socket.socket) -> None:
        with self._lock:
            other = self._pairs.get(one)
            if other is None:
                return
            try:
                data = one.recv(65536)
            except OSError:
                data = b""
            if self._silent:
                if not data:
                    self._selector.unregister(one)
                return
            if not data:
                self._close(one)
                return
            with contextlib.suppress(OSError):
                other.sendall(data)

    def _close(self, one: socket.socket) -> None:
        other = self._pairs.pop(one, None)
        for end in (one, other):
            if end is not None:
                self._pairs.pop(end, None)
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(end)
                end.close()


@contextmanager
def proxy(server: Path) -> Generator[Proxy]:
    """A proxy for the length of a block."""
    made = Proxy(server)
    try:
        yield made
    finally:
        made.close()
