"""OS locks of workers: each live worker holds one, and the kernel lets go of it the moment its process dies.

All processes that share a SQLite file in WAL mode share memory, so they share a kernel, and with it these locks.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Set as AbstractSet
from pathlib import Path
from urllib.parse import quote


class WorkerLocks:
    """The lock files of one database, in ``<database>-locks/``."""

    def __init__(self, database: Path) -> None:
        self._directory = database.with_name(database.name + "-locks")
        self._held: dict[str, int] = {}
        self._watched: dict[str, int] = {}

    def _path(self, worker_id: str) -> Path:
        return self._directory / f"{quote(worker_id, safe='')}.lock"

    def take(self, worker_id: str) -> None:
        """Takes the lock of a worker of this process; anew if it has it.

        Raises:
            OSError: the file cannot be made, or another process holds it.
        """
        self.release(worker_id)
        self._directory.mkdir(mode=0o700, exist_ok=True)
        file = os.open(self._path(worker_id), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            raise
        self._held[worker_id] = file

    def release(self, worker_id: str) -> None:
        """Lets go of a worker's lock; nothing when this process does not hold it."""
        file = self._held.pop(worker_id, None)
        if file is not None:
            self._path(worker_id).unlink(missing_ok=True)
            os.close(file)

    def holds(self, worker_id: str) -> bool:
        """Whether the worker is one of this store."""
        return worker_id in self._held

    def is_free(self, worker_id: str) -> bool:
        """Whether another worker's process is gone.  ``False`` when that cannot be told: then its lease decides."""
        file = self._watch(worker_id)
        if file is None:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return self._is_current(worker_id, file)

    def _watch(self, worker_id: str) -> int | None:
        """The worker's lock file; kept open, so that watching costs one system call."""
        file = self._watched.get(worker_id)
        if file is None:
            try:
                file = os.open(self._path(worker_id), os.O_RDWR | os.O_CLOEXEC)
            except OSError:
                return None
            self._watched[worker_id] = file
        return file

    def _is_current(self, worker_id: str, file: int) -> bool:
        """Whether the file is still the worker's: one that registered anew has another."""
        try:
            current = os.path.samestat(os.fstat(file), os.stat(self._path(worker_id)))
        except OSError:
            current = False
        if not current:
            self.forget(worker_id)
        return current

    def forget(self, worker_id: str) -> None:
        """Stops watching a worker."""
        file = self._watched.pop(worker_id, None)
        if file is not None:
            os.close(file)

    def keep_watching(self, worker_ids: AbstractSet[str]) -> None:
        """Stops watching all others."""
        for worker_id in self._watched.keys() - worker_ids:
            self.forget(worker_id)

    def remove(self, worker_id: str) -> None:
        """Removes what a worker that is gone left behind."""
        if worker_id not in self._held:
            self._path(worker_id).unlink(missing_ok=True)
        self.forget(worker_id)

    def close(self) -> None:
        """Lets go of everything.  The files stay, so that others notice at once whose workers are gone."""
        while self._held:
            os.close(self._held.popitem()[1])
        self.keep_watching(set())
