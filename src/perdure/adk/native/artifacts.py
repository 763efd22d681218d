"""The artifacts of a session that was forked from another."""

from __future__ import annotations

from google.adk.artifacts.base_artifact_service import BaseArtifactService
from google.adk.sessions.session import Session

_SHARED = "user:"
"""Artifacts of this prefix are of the user, not of a session."""


async def copy_artifacts(service: BaseArtifactService, session: Session, *, from_session: str) -> None:
    """Gives a session the artifacts that its events tell of, in all versions up to those, from another session."""
    newest: dict[str, int] = {}
    for event in session.events:
        newest |= {
            name: number for name, number in event.actions.artifact_delta.items() if not name.startswith(_SHARED)
        }
    for name, version in newest.items():
        for number in range(version + 1):
            artifact = await service.load_artifact(
                app_name=session.app_name,
                user_id=session.user_id,
                session_id=from_session,
                filename=name,
                version=number,
            )
            if artifact is not None:
                await service.save_artifact(
                    app_name=session.app_name,
                    user_id=session.user_id,
                    session_id=session.id,
                    filename=name,
                    artifact=artifact,
                )
