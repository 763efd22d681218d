"""Wake-ups between the processes that have one database open: a datagram per commit, nothing while nothing happens.

Each open store binds a unix datagram socket in a directory that belongs to the database.  After a commit the writer
sends what changed to every other socket there.  A datagram that cannot be delivered is dropped: a slow poll of the
store finds what was missed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import socket
import stat
import tempfile
import time
from pathlib import Path

from perdure.store.base import Change
from perdure.store.sql import changes

MAX_DATAGRAM = 4096
"""Bytes.  A longer list of ids is sent as "any session"."""

MAX_DRAIN = 256
"""Datagrams taken in one go."""

NAME_LENGTH = 8
MAX_NAMESAKES = 100
"""Sockets that may have the same name; the later ones get a number."""

MAX_TRIES = 10
"""How often the directory is made again when others take it away meanwhile."""

PEERS_SETTLE = 1.0
"""Seconds for which a directory that changed is read again each time: its time stamp is too coarse to tell."""


def default_run_dir(database: Path) -> Path:
    """The directory of a database's sockets: short, private to this user, the same for every process of it."""
    digest = hashlib.sha256(os.fsencode(os.path.realpath(database))).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"perdure-{os.getuid()}-{digest}"


def encode(change: Change) -> bytes:
    """A change as a datagram."""
    return changes.encode(change, MAX_DATAGRAM - 1).encode()


def decode(datagram: bytes) -> Change:
    """The change that a datagram tells of; whatever cannot be read means "any session, maybe work"."""
    try:
        return changes.decode(datagram.decode())
    except UnicodeDecodeError:
        return changes.ANYTHING


def _bind(ours: socket.socket, directory: Path, name: str) -> Path:
    """Binds a socket to a path of its own."""
    for suffix in itertools.chain((".sock",), (f"-{again}.sock" for again in range(2, MAX_NAMESAKES))):
        path = directory / f"{name}{suffix}"
        try:
            ours.bind(os.fspath(path))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return path
    raise FileExistsError(f"{directory} has {MAX_NAMESAKES} sockets called {name}")


class Signals:
    """This store's socket, and the others'."""

    def __init__(self, run_dir: Path, name: str) -> None:
        """Binds the socket.

        Args:
            name: tells it from the sockets of other stores.  The first characters are used: a path to a socket may
                have about a hundred bytes in all.

        Raises:
            OSError: sockets do not work here (path too long, no permission, not this user's directory).
        """
        self._directory = run_dir
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        try:
            self._path = self._bind(name[:NAME_LENGTH])
        except OSError:
            self._socket.close()
            raise
        self._peers: tuple[str, ...] = ()
        self._seen = 0
        self._trusted_from = 0.0

    def _bind(self, name: str) -> Path:
        for _ in range(MAX_TRIES):
            try:
                self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                found = os.lstat(self._directory)
                if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
                    raise PermissionError(f"{self._directory} is not a private directory of this user")
                return _bind(self._socket, self._directory, name)
            except FileNotFoundError:
                continue  # The last of the others closed just now, and took the directory away.
        raise FileNotFoundError(f"{self._directory} disappears as often as it is made")

    @property
    def intact(self) -> bool:
        """Whether others can still find the socket (a cleaner of temporary files may have removed it)."""
        return self._path.exists()

    @property
    def socket(self) -> socket.socket:
        """To wait for with the event loop."""
        return self._socket

    def send(self, change: Change) -> None:
        """Tells all other stores.  Never waits."""
        peers = self._current_peers()
        if not peers:
            return
        datagram = encode(change)
        for peer in peers:
            try:
                self._socket.sendto(datagram, peer)
            except (ConnectionRefusedError, FileNotFoundError):
                # Its process is dead.
                with contextlib.suppress(OSError):
                    os.unlink(peer)
            except OSError:
                pass  # Its buffer is full: it has enough to wake up for.

    def _current_peers(self) -> tuple[str, ...]:
        try:
            changed_at = os.stat(self._directory).st_mtime_ns
            now = time.monotonic()
            if changed_at != self._seen or now < self._trusted_from:
                if changed_at != self._seen:
                    self._trusted_from = now + PEERS_SETTLE
                self._seen = changed_at
                mine = self._path.name
                names = (name for name in os.listdir(self._directory) if name.endswith(".sock") and name != mine)
                self._peers = tuple(os.fspath(self._directory / name) for name in names)
        except OSError:
            self._peers = ()
        return self._peers

    def receive(self) -> Change | None:
        """What all waiting datagrams tell of together; ``None`` when there is none."""
        total: Change | None = None
        for _ in range(MAX_DRAIN):
            try:
                change = decode(self._socket.recv(2 * MAX_DATAGRAM))
            except OSError:
                break
            total = change if total is None else changes.merge(total, change)
        return total

    def close(self) -> None:
        """Unbinds the socket.  The last one takes the directory away."""
        self._socket.close()
        self._path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty: others are still here
            self._directory.rmdir()
