"""What each tool of an agent does to the world, under which policy it runs, and its idempotency key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final

from google.adk.tools.base_tool import BaseTool
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.get_user_choice_tool import get_user_choice
from google.adk.tools.load_artifacts_tool import LoadArtifactsTool
from google.adk.tools.load_mcp_resource_tool import LoadMcpResourceTool
from google.adk.tools.load_memory_tool import LoadMemoryTool
from google.adk.tools.preload_memory_tool import PreloadMemoryTool
from google.adk.tools.tool_context import ToolContext

from perdure.adk import seams
from perdure.adk.tools.listings import hinted_effect
from perdure.arguments import wrong
from perdure.session.policy import (
    DEFAULT_RETRY,
    EFFECT_RULES,
    ApprovalMode,
    RetryPolicy,
    ToolEffect,
    ToolPolicy,
    needs_approval,
)

IDEMPOTENCY_KEY_CUSTOM_METADATA_KEY: Final = "perdure_idempotency_key"
"""Where a running tool finds its idempotency key: ``tool_context.custom_metadata[...]``."""

_NODE = ToolPolicy(ToolEffect.IDEMPOTENT_WRITE)
_READS_OF_ADK: tuple[type[BaseTool], ...] = (LoadArtifactsTool, LoadMcpResourceTool, LoadMemoryTool, PreloadMemoryTool)
_ONCE = RetryPolicy(max_attempts=1)
_TURN_ID = "_perdure_turn_id"


def idempotency_key_for_tool_call(tool_context: ToolContext) -> str:
    """The idempotency key of a tool call: ``<session id>/<turn id>/<tool call id>``, the same for every attempt.

    Raises:
        UsageError: it is no context of a tool or node.
    """
    try:
        # ADK gives a turn that goes on with a paused task the invocation id of that task.
        turn_id = getattr(tool_context, _TURN_ID, tool_context.invocation_id)
        return f"{tool_context.session.id}/{turn_id}/{tool_context.function_call_id}"
    except AttributeError as error:
        raise wrong("tool_context", tool_context, "the context that a tool or node was called with") from error


@dataclass(frozen=True, slots=True)
class ToolRules:
    """The policies of a flow."""

    policies: Mapping[str, ToolPolicy]
    default_effect: ToolEffect
    approvals: ApprovalMode
    node_policies: Mapping[str, ToolPolicy] = field(default_factory=dict[str, ToolPolicy])

    def policy_of(self, tool: BaseTool) -> ToolPolicy:
        """The tool's policy; else what ADK says about the tool; else the default."""
        policy = self.policies.get(tool.name)
        if policy is not None:
            return policy
        if isinstance(tool, _READS_OF_ADK) or _only_asks(tool):
            return ToolPolicy(ToolEffect.READ)
        return ToolPolicy(hinted_effect(tool) or self.default_effect)

    def policy_of_node(self, name: str) -> ToolPolicy:
        """The policy of a function node."""
        return self.node_policies.get(name, _NODE)

    def asks_for_approval(self, policy: ToolPolicy) -> bool:
        """Whether a call under the policy waits for a person before it runs."""
        return needs_approval(policy, self.approvals)

    def asks_for_scope(self, tool: BaseTool) -> bool:
        """Whether a tool that runs an agent waits for a person first: if a policy says so.  It has no effect itself."""
        policy = self.policies.get(tool.name)
        return policy is not None and self.asks_for_approval(policy)


def _only_asks(tool: BaseTool) -> bool:
    """Whether the tool is one of ADK's that ask the user something, and do nothing else."""
    is_choice = isinstance(tool, FunctionTool) and tool.func is get_user_choice
    return is_choice or (tool.is_long_running and tool.name == seams.REQUEST_INPUT)


def retry_of(policy: ToolPolicy) -> RetryPolicy:
    """How often a call under the policy is tried."""
    if EFFECT_RULES[policy.effect].single_attempt:
        return _ONCE
    return policy.retry or DEFAULT_RETRY


class _CallMetadata(MutableMapping[str, Any]):
    """The invocation's metadata as one call sees it: with the call's idempotency key, which no other call sees."""

    def __init__(self, shared: dict[str, Any], key: str) -> None:
        self._shared = shared
        self._key = key

    def __getitem__(self, name: str) -> Any:
        return self._key if name == IDEMPOTENCY_KEY_CUSTOM_METADATA_KEY else self._shared[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._shared[name] = value

    def __delitem__(self, name: str) -> None:
        del self._shared[name]

    def __iter__(self) -> Iterator[str]:
        yield IDEMPOTENCY_KEY_CUSTOM_METADATA_KEY
        yield from self._shared

    def __len__(self) -> int:
        return len(self._shared) + 1


class KeyedContext(ToolContext):
    """A context of a tool or node whose metadata carries the call's idempotency key.

    ADK shares one metadata dict in the whole invocation, so a key put there would be the key of the last parallel call.
    """

    @property
    def custom_metadata(self) -> dict[str, Any]:
        shared = super().custom_metadata
        return _CallMetadata(shared, idempotency_key_for_tool_call(self))  # type: ignore[return-value]  # reads as a dict


def give_idempotency_key(tool_context: ToolContext, turn_id: str) -> None:
    """Puts the call's idempotency key into its context's metadata."""
    setattr(tool_context, _TURN_ID, turn_id)
    if type(tool_context) is ToolContext:
        tool_context.__class__ = KeyedContext
