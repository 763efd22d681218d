"""``adk_agent_session_flow``: an ADK agent, unchanged, as a durable flow."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from google.adk.agents.run_config import RunConfig
from google.adk.apps.app import App
from google.adk.artifacts.base_artifact_service import BaseArtifactService
from google.adk.auth.credential_service.base_credential_service import BaseCredentialService
from google.adk.memory.base_memory_service import BaseMemoryService
from google.adk.workflow import BaseNode

from perdure.adk.runner import AdkAgentRunner
from perdure.session.policy import ApprovalMode, RetryPolicy, ToolEffect, ToolPolicy
from perdure.session.runner import DEFAULT_EVENT_STREAM_CAPACITY_BYTES, AgentSessionFlow


def adk_agent_session_flow(
    agent: BaseNode | App,
    *,
    flow_type: str,
    tool_policies: Mapping[str, ToolPolicy] | None = None,
    node_policies: Mapping[str, ToolPolicy] | None = None,
    default_tool_effect: ToolEffect = ToolEffect.UNCLASSIFIED,
    approvals: ApprovalMode = "by_effect",
    interrupt_deadline: timedelta | None = None,
    event_stream_capacity_bytes: int = DEFAULT_EVENT_STREAM_CAPACITY_BYTES,
    run_config: RunConfig | None = None,
    user_id: str = "user",
    artifact_service: BaseArtifactService | None = None,
    memory_service: BaseMemoryService | None = None,
    credential_service: BaseCredentialService | None = None,
    model_retry: RetryPolicy | None = None,
    model_timeout: timedelta | None = None,
    sync_tools_in_threads: bool = True,
    code_execution_effect: ToolEffect = ToolEffect.NON_IDEMPOTENT_WRITE,
) -> AgentSessionFlow:
    """Makes an ADK agent durable under a stable ``flow_type``.  The agent's objects are not changed.

    Args:
        agent: an agent or a ``Workflow``, or an ``App`` around one.
        flow_type: names the flow in the store; keep it when the code changes.  A bare agent's ADK app name too.
        tool_policies: tool name -> what the tool does to the world, and how it is called.
        node_policies: name of a function node -> likewise; one without a policy is an idempotent write.  Its retries
            are its ``RetryConfig``'s; those of a policy come on top.
        default_tool_effect: of tools without a policy.
        approvals: ``"by_effect"``: calls that must not be repeated wait for a person first; ``"declared"``: only what a
            tool or a policy asks for does.
        interrupt_deadline: how long an interrupt may stay pending; ``None`` for ever.
        event_stream_capacity_bytes: byte budget of each session's live stream.
        run_config: ADK's run configuration of every turn; ``None``: answers stream (SSE).
        user_id: of sessions that are started without one.
        artifact_service, memory_service, credential_service: as ADK's ``Runner`` takes them; they stay the caller's.
        model_retry: tries and pauses of a model call that fails for a passing reason (no connection, a timeout, 429,
            5xx); ``None``: three attempts.
        model_timeout: the longest one request to a model may take; ``None`` is no limit.
        sync_tools_in_threads: run synchronous tools in threads, so that a blocking one does not stall other sessions;
            ``False``: in the event loop, as plain ADK does.
        code_execution_effect: what the code does to the world that an agent's code executor runs.  It asks for no
            approval.

    Raises:
        UsageError: something in the set-up is wrong or not supported; the message names the argument that fixes it.
        FrameworkDrift: the installed google-adk does not have what perdure needs.
    """
    runner = AdkAgentRunner(
        agent,
        flow_type=flow_type,
        tool_policies=tool_policies,
        node_policies=node_policies,
        default_tool_effect=default_tool_effect,
        approvals=approvals,
        run_config=run_config,
        user_id=user_id,
        artifact_service=artifact_service,
        memory_service=memory_service,
        credential_service=credential_service,
        model_retry=model_retry,
        model_timeout=model_timeout,
        sync_tools_in_threads=sync_tools_in_threads,
        code_execution_effect=code_execution_effect,
    )
    return AgentSessionFlow(
        flow_type=flow_type,
        runner=runner,
        app_name=runner.app_name,
        user_id=user_id,
        interrupt_deadline=interrupt_deadline,
        event_stream_capacity_bytes=event_stream_capacity_bytes,
    )
