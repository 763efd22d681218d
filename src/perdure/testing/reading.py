"""What a rule wants to know of a model request: who asks, what the user said, how far the turn has come.

Everything is read from the request itself, never from memory, so a repeated request reads the same in a new process.
ADK (and perdure, after a failed turn) puts texts of its own into the user's role: what other agents said, instructions,
results of code.  They are told from the user's words by the way they begin.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from google.genai import types

if TYPE_CHECKING:
    from google.adk.models.llm_request import LlmRequest

AGENT_NAME_LABEL = "adk_agent_name"
"""The request label in which ADK names the agent."""

_AGENT_NAME_INSTRUCTION = re.compile(r'Your internal name is "([^"]+)"')

_FRAMEWORK_TEXT_STARTS = (
    "For context:",  # what another agent said or did
    "Continue processing previous requests as instructed.",  # added when a request would end with the model's own words
    "```tool_output",  # the result of executed code
    "Note: the work on the request above ",  # perdure's note on a turn that failed or was cancelled
)
_INSTRUCTION_MARK = "<<<BEGIN_SYSTEM_INSTRUCTION>>>"


def is_user_message(content: types.Content) -> bool:
    """Whether ``content`` is something the user said: no tool's result, and no text that ADK or perdure put there."""
    if content.role != "user" or not content.parts or any(part.function_response for part in content.parts):
        return False
    first = content.parts[0].text or ""
    return not first.startswith(_FRAMEWORK_TEXT_STARTS) and _INSTRUCTION_MARK not in first


def user_text(request: LlmRequest) -> str:
    """The text of the last thing that the user said; empty when there is none."""
    for content in reversed(request.contents):
        if is_user_message(content):
            return "".join(part.text or "" for part in content.parts or ())
    return ""


def user_messages(request: LlmRequest) -> int:
    """How many user messages the request holds."""
    return sum(1 for content in request.contents if is_user_message(content))


def this_turn(request: LlmRequest) -> list[types.Content]:
    """What the request holds after the last user message; all of it when there is none."""
    contents = request.contents
    for index in range(len(contents) - 1, -1, -1):
        if is_user_message(contents[index]):
            return contents[index + 1 :]
    return list(contents)


def replies_this_turn(request: LlmRequest) -> int:
    """How many responses the agent's model has given since the last user message; 0 for the first request of a turn.

    A message that the user sends into a running turn begins the count anew.
    """
    return sum(1 for content in this_turn(request) if content.role == "model")


def tool_results(request: LlmRequest) -> list[types.FunctionResponse]:
    """The tool results since the last user message, oldest first."""
    return [
        part.function_response
        for content in this_turn(request)
        for part in content.parts or ()
        if part.function_response is not None
    ]


def agent_name(request: LlmRequest) -> str | None:
    """The name of the agent that asks; ``None`` when the request does not say."""
    labels = request.config.labels or {}
    if AGENT_NAME_LABEL in labels:
        return labels[AGENT_NAME_LABEL]
    found = _AGENT_NAME_INSTRUCTION.search(system_text(request))
    return found[1] if found else None


def system_text(request: LlmRequest) -> str:
    """The system instruction as plain text; empty when there is none."""
    # genai's union names a type of a package (PIL) that need not be installed.
    instruction = cast(object, request.config.system_instruction)  # pyright: ignore[reportUnknownMemberType]
    if isinstance(instruction, str):
        return instruction
    if isinstance(instruction, types.Content):
        return "".join(part.text or "" for part in instruction.parts or ())
    return ""


def tool_names(request: LlmRequest) -> list[str]:
    """The names of the functions that the request offers to the model, in order."""
    tools = cast(Sequence[object], request.config.tools or ())  # the union names mcp's types, too
    return [
        declaration.name
        for tool in tools
        if isinstance(tool, types.Tool)
        for declaration in tool.function_declarations or ()
        if declaration.name is not None
    ]
