"""Services of the application: what is written outside of steps is written once, whoever crashes."""

from __future__ import annotations

import socket
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.apps.app import App
from google.adk.artifacts import BaseArtifactService, FileArtifactService, GcsArtifactService, InMemoryArtifactService
from google.adk.events.event import Event
from google.adk.memory import InMemoryMemoryService
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.plugins.save_files_as_artifacts_plugin import SaveFilesAsArtifactsPlugin
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from tests.adk.comparing import assert_as_plain, assert_survives_crashes
from tests.adk.disk import Crash, Disk
from tests.adk.model import ScriptedModel, calls, says
from tests.adk.worlds import World

from perdure.session.model import ImageInput, TurnStatus, UserMessage


class Bucket(BaseArtifactService):
    """A service like one of an object store."""

    def __init__(self) -> None:
        self.saved: dict[str, list[types.Part]] = {}

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
        assert isinstance(artifact, types.Part)
        versions = self.saved.setdefault(filename, [])
        versions.append(artifact)
        return len(versions) - 1

    async def load_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> types.Part | None:
        versions = self.saved.get(filename, [])
        return versions[-1 if version is None else version] if versions else None

    async def list_artifact_keys(self, *, app_name: str, user_id: str, session_id: str | None = None) -> list[str]:
        return sorted(self.saved)

    async def delete_artifact(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> None:
        self.saved.pop(filename, None)

    async def list_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[int]:
        return list(range(len(self.saved.get(filename, []))))

    async def list_artifact_versions(self, **given: Any) -> list[Any]:
        raise NotImplementedError

    async def get_artifact_version(self, **given: Any) -> Any:
        return None


class Notes(InMemoryMemoryService):
    """Counts what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[str] = []

    async def add_session_to_memory(self, session: Any) -> None:
        self.written.append(f"session of {len(session.events)}")
        await super().add_session_to_memory(session)

    async def add_events_to_memory(self, *, events: Sequence[Event], **given: Any) -> None:
        self.written.append(f"{len(events)} events")
        await super().add_events_to_memory(events=events, **given)

    async def add_memory(self, *, memories: Sequence[MemoryEntry], **given: Any) -> None:
        self.written.append(f"{len(memories)} memories")


def keeping(artifact_service: BaseArtifactService, memory_service: Notes | None = None) -> World:
    """Callbacks and a tool all save the same artifact; callbacks write to memory, too."""
    log: list[str] = []

    async def save(name: str, tool_context: ToolContext) -> dict[str, Any]:
        """Saves."""
        version = await tool_context.save_artifact(name, types.Part(text="by a tool"))
        return {"version": version, "all": await tool_context.list_artifacts()}

    async def before_agent(callback_context: CallbackContext) -> None:
        version = await callback_context.save_artifact("a.txt", types.Part(text="before"))
        log.append(f"before {version}")

    async def after_agent(callback_context: CallbackContext) -> None:
        first = await callback_context.save_artifact("a.txt", types.Part(text="after"))
        second = await callback_context.save_artifact("a.txt", types.Part(text="after all"))
        loaded = await callback_context.load_artifact("a.txt")
        log.append(f"after {first} {second} {loaded.text if loaded else None}")
        if memory_service is not None:
            await callback_context.add_session_to_memory()
            await callback_context.add_events_to_memory(events=callback_context.session.events[:1])
            await callback_context.add_memory(memories=[MemoryEntry(content=types.Content(parts=[]))])

    model = ScriptedModel(replies=[calls(("save", {"name": "a.txt"})), says("saved")])
    agent = LlmAgent(
        name="keeper",
        model=model,
        instruction="Keep. {artifact.a.txt}",
        tools=[save],
        before_agent_callback=before_agent,
        after_agent_callback=after_agent,
    )
    services: dict[str, Any] = {"artifact_service": artifact_service}
    if memory_service is not None:
        services["memory_service"] = memory_service
    return World(model, agent, log, services=services)


@pytest.fixture
def object_store(monkeypatch: pytest.MonkeyPatch) -> Generator[Callable[[str], BaseArtifactService]]:
    """A local server that speaks the protocol of Google's object store; makes ADK's own service for a bucket of it."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    # None of these three has types.
    create_server: Any = import_module("gcp_storage_emulator.server").create_server
    storage: Any = import_module("google.cloud.storage")
    nobody: Any = import_module("google.auth.credentials").AnonymousCredentials
    server = create_server("127.0.0.1", port, in_memory=True)
    server.start()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")

    def service_of(bucket: str) -> BaseArtifactService:
        options: dict[str, Any] = {"credentials": nobody(), "project": "perdure"}
        storage.Client(**options).create_bucket(bucket)
        return GcsArtifactService(bucket, **options)

    try:
        yield service_of
    finally:
        server.stop()


@pytest.mark.parametrize("kind", ["memory", "file", "bucket", "object store"])
async def test_artifacts_are_saved_as_on_plain_adk(
    kind: str, tmp_path: Path, object_store: Callable[[str], BaseArtifactService]
) -> None:
    folders = iter(range(9))

    def service() -> BaseArtifactService:
        if kind == "object store":
            return object_store(f"bucket-{next(folders)}")
        if kind == "file":
            return FileArtifactService(root_dir=str(tmp_path / str(next(folders))))
        return InMemoryArtifactService() if kind == "memory" else Bucket()

    await assert_as_plain(lambda: keeping(service(), Notes()))


async def test_a_replay_writes_nothing_again_that_is_recorded() -> None:
    undisturbed = keeping(Bucket(), Notes())
    engine = undisturbed.engine()
    await engine.turn("go")
    for point in range(2, engine.disk.writes + 1):
        bucket, notes = Bucket(), Notes()
        disk = Disk(crash_at=point)
        first = keeping(bucket, notes).engine(disk)
        first.begin("go")
        with pytest.raises(Crash):
            await first.go_on()
        disk.reboot()
        kept = sum(map(len, bucket.saved.values())) + len(notes.written)
        recorded = len([call for call in disk.model_calls if " a.txt" in call.key or "memory" in call.key])
        recorded += len(disk.records)
        assert kept - recorded in (0, 1)  # the one whose record was lost is made again
        again = keeping(bucket, notes)
        await again.engine(disk).go_on()
        assert disk.status is TurnStatus.COMPLETED
        assert len(bucket.saved["a.txt"]) == 4 + kept - recorded - (len(notes.written) - 3)
        assert len(notes.written) in (3, 4)
        if kept == recorded:
            assert disk.messages == engine.disk.messages
            assert again.log == undisturbed.log


def uploading() -> World:
    """ADK's plugin makes an artifact of each file that a user sends."""
    model = ScriptedModel(replies=[says("got it")])
    agent = LlmAgent(name="keeper", model=model, instruction="Keep.")
    app = App(name="Flow", root_agent=agent, plugins=[SaveFilesAsArtifactsPlugin()])
    image = ImageInput(data=b"\x89PNG", mime_type="image/png")
    messages = [UserMessage(text="look", images=(image,))]
    return World(model, app, messages=messages, services={"artifact_service": InMemoryArtifactService()})


async def test_files_that_become_artifacts() -> None:
    engine = uploading().engine()
    await engine.turn(uploading().messages[0])
    assert len([call for call in engine.disk.model_calls if "artifact" in call.key]) == 1
    deltas = [message["actions"]["artifact_delta"] for message in engine.disk.messages]
    assert sorted(version for delta in deltas for version in delta.values()) == [0]
    await assert_survives_crashes(uploading, between=1)


async def test_a_service_that_fails_does_so_in_a_replay_too() -> None:
    class Full(Bucket):
        async def save_artifact(self, **given: Any) -> int:
            raise OSError(28, "no space")

    def build() -> World:
        log: list[str] = []

        async def before_agent(callback_context: CallbackContext) -> None:
            try:
                await callback_context.save_artifact("a.txt", types.Part(text="x"))
            except OSError as error:
                log.append(f"full {error.errno}")

        def look() -> str:
            """Looks."""
            return "here"

        model = ScriptedModel(replies=[calls(("look", {})), says("ok")])
        agent = LlmAgent(name="keeper", model=model, tools=[look], before_agent_callback=before_agent)
        return World(model, agent, log, services={"artifact_service": Full()})

    await assert_as_plain(build)
    disk = Disk(crash_at=4)
    first = build().engine(disk)
    first.begin("go")
    with pytest.raises(Crash):
        await first.go_on()
    disk.reboot()
    again = build()
    again.services = {"artifact_service": Bucket()}  # there is room now, but then there was none
    await again.engine(disk).go_on()
    assert again.log == ["full 28"]
    assert again.services["artifact_service"].saved == {}
