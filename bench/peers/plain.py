"""What contenders have in common that let ADK's own runner drive the turn."""

from __future__ import annotations

from google.adk.runners import Runner

from bench.orders import USER, user_content


async def last_text(runner: Runner, session_id: str, text: str, *, user_id: str = USER) -> str:
    """Runs one turn; returns the text of the agent's final response."""
    found = ""
    async for event in runner.run_async(user_id=user_id, session_id=session_id, new_message=user_content(text)):
        if event.is_final_response() and event.content and event.content.parts:
            found = event.content.parts[0].text or ""
    return found
