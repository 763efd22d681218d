"""The application's artifact and memory services as a durable turn uses them.

Tools write through them inside of their step.  What callbacks, plugins and ADK itself write lies outside of every step,
and a replay comes by it again: there each write is recorded, so that it is made once and an artifact keeps its version.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

from google.adk.artifacts.base_artifact_service import ArtifactVersion, BaseArtifactService
from google.adk.events.event import Event
from google.adk.memory.base_memory_service import BaseMemoryService, SearchMemoryResponse
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions.session import Session
from google.genai import types

from perdure.adk.live import determinism
from perdure.adk.live.core import current_turn
from perdure.adk.models.once import once
from perdure.session.model import JsonValue


async def _write(name: str, make: Callable[[], Awaitable[JsonValue]]) -> JsonValue:
    core = current_turn.get()
    if core is None or determinism.is_suspended():
        return await make()
    return await once(core, name, lambda: _outside(make), on_disk=True)


async def _outside(make: Callable[[], Awaitable[JsonValue]]) -> JsonValue:
    with determinism.outside():
        return await make()


class KeptArtifacts(BaseArtifactService):
    """An artifact service whose writes outside of steps are made once.  Anything else goes straight through."""

    def __init__(self, inner: BaseArtifactService) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def save_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        artifact: types.Part | dict[str, Any],
        session_id: str | None = None,
        custom_metadata: dict[str, Any] | None = None,
    ) -> int:
        """Saves an artifact; in a replay the version is that of then."""
        given: dict[str, Any] = {"app_name": app_name, "user_id": user_id, "filename": filename, "artifact": artifact}
        given["session_id"] = session_id
        if custom_metadata is not None:  # a service of the application may be older than the argument
            given["custom_metadata"] = custom_metadata
        version = await _write(f"artifact {filename}", lambda: self._inner.save_artifact(**given))
        return cast(int, version)

    async def delete_artifact(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> None:
        """Deletes an artifact; a replay does not delete it again."""
        await _write(
            f"delete artifact {filename}",
            lambda: self._inner.delete_artifact(
                app_name=app_name, user_id=user_id, filename=filename, session_id=session_id
            ),
        )

    async def load_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> types.Part | None:
        return await self._inner.load_artifact(
            app_name=app_name, user_id=user_id, filename=filename, session_id=session_id, version=version
        )

    async def list_artifact_keys(self, *, app_name: str, user_id: str, session_id: str | None = None) -> list[str]:
        return await self._inner.list_artifact_keys(app_name=app_name, user_id=user_id, session_id=session_id)

    async def list_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[int]:
        return await self._inner.list_versions(
            app_name=app_name, user_id=user_id, filename=filename, session_id=session_id
        )

    async def list_artifact_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[ArtifactVersion]:
        return await self._inner.list_artifact_versions(
            app_name=app_name, user_id=user_id, filename=filename, session_id=session_id
        )

    async def get_artifact_version(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> ArtifactVersion | None:
        return await self._inner.get_artifact_version(
            app_name=app_name, user_id=user_id, filename=filename, session_id=session_id, version=version
        )


class KeptMemory(BaseMemoryService):
    """A memory service whose writes outside of steps are made once.  Searches go straight through."""

    def __init__(self, inner: BaseMemoryService) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def add_session_to_memory(self, session: Session) -> None:
        """Adds a session to memory; a replay does not add it again."""
        await _write("memory of session", lambda: self._inner.add_session_to_memory(session))

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Event],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Adds events to memory; a replay does not add them again."""
        await _write(
            "memory of events",
            lambda: self._inner.add_events_to_memory(
                app_name=app_name,
                user_id=user_id,
                events=events,
                session_id=session_id,
                custom_metadata=custom_metadata,
            ),
        )

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Adds entries to memory; a replay does not add them again."""
        await _write(
            "memory",
            lambda: self._inner.add_memory(
                app_name=app_name, user_id=user_id, memories=memories, custom_metadata=custom_metadata
            ),
        )

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        return await self._inner.search_memory(app_name=app_name, user_id=user_id, query=query)

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Deletes memory; a replay does not delete it again."""
        await _write(
            "delete memory",
            lambda: self._inner.delete_memory(app_name=app_name, user_id=user_id, memory_id=memory_id),
        )
