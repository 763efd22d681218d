"""The framework runner: opens live turns of one application over one private ADK ``Runner``."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import timedelta

# ADK's documentation imports StreamingMode from here, though the module does not say that it exports it.
from google.adk.agents.run_config import RunConfig, StreamingMode  # type: ignore[attr-defined]
from google.adk.apps.app import App
from google.adk.artifacts.base_artifact_service import BaseArtifactService
from google.adk.auth.credential_service.base_credential_service import BaseCredentialService
from google.adk.events.event import Event
from google.adk.memory.base_memory_service import BaseMemoryService
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.session import Session
from google.adk.workflow import BaseNode
from pydantic import ValidationError

from perdure.adk import seams
from perdure.adk.checks import (
    check_application,
    check_content,
    check_options,
    check_run_config,
    check_services,
    fingerprint,
    policies_in,
)
from perdure.adk.live import telemetry, tracking
from perdure.adk.live.conductor import Conductor
from perdure.adk.live.core import DEFAULT_MODEL_RETRY, TurnCore, TurnSettings
from perdure.adk.live.determinism import TurnClock, ids_of_run
from perdure.adk.live.durable import lasting_steps
from perdure.adk.live.outbox import Outbox
from perdure.adk.live.plugins import WatcherPlugin
from perdure.adk.live.services import TurnSessionService
from perdure.adk.live.turn import AdkLiveTurn
from perdure.adk.live.warm import WarmSessions
from perdure.adk.models import steering, wrapped_model
from perdure.adk.models.compaction import durable_compaction
from perdure.adk.nodes import wrapped_nodes
from perdure.adk.records.closing import closing_messages
from perdure.adk.records.history import content_of, events_of, limited
from perdure.adk.release import warn_of_untested_release
from perdure.adk.tools import code, toolsets
from perdure.adk.tools.declared import DeclaredToolsets
from perdure.adk.tools.effects import ToolRules
from perdure.adk.tools.kept import KeptArtifacts, KeptMemory
from perdure.adk.tools.threads import SyncTools, ToolThreads
from perdure.adk.tree import AgentNode
from perdure.adk.waits import credentials, long_running, toolset_signin
from perdure.adk.waits.carry import Carry
from perdure.adk.waits.late import TurnRunner, goes_on, invocation_of_leg, leave, take_up
from perdure.adk.waits.legs import content_of_answers
from perdure.errors import UsageError
from perdure.session.model import ErrorInfo, JoinedMessage, JsonObject, TurnStatus, UserMessage
from perdure.session.policy import ApprovalMode, RetryPolicy, ToolEffect, ToolPolicy
from perdure.session.runner import ClosedCall, NewMessage, TurnLog, TurnStart


class AdkAgentRunner:
    """Implements ``perdure.session.runner.AgentFrameworkRunner`` for google-adk.

    It takes the arguments of ``adk_agent_session_flow`` that concern the agent, with the same meaning.

    Raises:
        UsageError: something in the set-up is wrong or not supported; the message names the argument that fixes it.
        FrameworkDrift: the installed google-adk does not have what perdure needs.
    """

    def __init__(
        self,
        agent: BaseNode | App,
        *,
        flow_type: str,
        tool_policies: Mapping[str, ToolPolicy] | None = None,
        node_policies: Mapping[str, ToolPolicy] | None = None,
        default_tool_effect: ToolEffect = ToolEffect.UNCLASSIFIED,
        approvals: ApprovalMode = "by_effect",
        run_config: RunConfig | None = None,
        user_id: str = "user",
        artifact_service: BaseArtifactService | None = None,
        memory_service: BaseMemoryService | None = None,
        credential_service: BaseCredentialService | None = None,
        model_retry: RetryPolicy | None = None,
        model_timeout: timedelta | None = None,
        sync_tools_in_threads: bool = True,
        code_execution_effect: ToolEffect = ToolEffect.NON_IDEMPOTENT_WRITE,
    ) -> None:
        seams.check_seams()
        warn_of_untested_release()
        seams.load_early()
        policies = policies_in(tool_policies, "tool_policies")
        nodes_policies = policies_in(node_policies, "node_policies")
        app, agents = check_application(agent, flow_type, policies, nodes_policies)
        check_services(artifact_service, memory_service, credential_service)
        check_options(
            default_tool_effect,
            code_execution_effect,
            approvals,
            model_retry,
            model_timeout,
            user_id,
            sync_tools_in_threads,
        )
        self._run_config = RunConfig(streaming_mode=StreamingMode.SSE) if run_config is None else run_config
        check_run_config(self._run_config, "run_config")
        self._definition = fingerprint(agents)
        self._settings = TurnSettings(
            rules=ToolRules(policies, default_tool_effect, approvals, nodes_policies),
            model_retry=model_retry or DEFAULT_MODEL_RETRY,
            model_timeout=model_timeout,
            code_effect=code_execution_effect,
            threads=ToolThreads(),
            toolsets=_toolsets_of(agents, policies),
        )
        self._sync_tools_in_threads = sync_tools_in_threads
        self._warm = WarmSessions()
        wrapped_model.install()
        steering.install()
        credentials.install()
        code.install()
        toolsets.install()
        tracking.install()
        wrapped_nodes.install()
        long_running.install()
        toolset_signin.install()
        telemetry.install()
        self._runner = TurnRunner(
            app=app.model_copy(
                update={
                    "plugins": [WatcherPlugin(), *app.plugins],
                    "events_compaction_config": durable_compaction(app.events_compaction_config),
                }
            ),
            session_service=TurnSessionService(),
            artifact_service=None if artifact_service is None else KeptArtifacts(artifact_service),
            memory_service=None if memory_service is None else KeptMemory(memory_service),
            credential_service=credential_service,
        )

    @property
    def app_name(self) -> str:
        """The ADK app name: under it ``app:`` and ``user:`` state, artifacts and memory are shared."""
        return self._runner.app_name

    def definition(self) -> str:
        """A fingerprint of what a recorded turn relies on (agents, tools, their parameters), not of its texts."""
        return self._definition

    def check_message(self, message: UserMessage) -> None:
        """Refuses a message that ADK could not run.

        Raises:
            UsageError: it is empty, its ``content`` is no user's message, or its ``run_config`` is none.
        """
        if message.content is not None:
            check_content(message.content)
        elif not message.text and not message.images and not message.answers:
            raise UsageError("the message is empty; give it text or images")
        self._config_of(message)

    def _config_of(self, message: UserMessage) -> RunConfig:
        """The flow's run configuration with what the message changes."""
        if not message.run_config:
            return self._run_config
        try:
            override = RunConfig.model_validate_json(json.dumps(message.run_config))
            base = {name: getattr(self._run_config, name) for name in self._run_config.model_fields_set}
            changed = {name: getattr(override, name) for name in override.model_fields_set}
            config = RunConfig(**{**base, **changed})
        except (ValidationError, ValueError, TypeError) as error:
            raise UsageError(f"run_config of the message is not an ADK RunConfig: {error}") from error
        check_run_config(config, "run_config of the message")
        return config

    async def open_turn(self, start: TurnStart, log: TurnLog) -> AdkLiveTurn:
        """Starts the invocation of a turn from the session as it was when the turn began.

        Raises:
            UsageError: ADK could not run its message, or not all of its answers in one turn.
        """
        config = self._config_of(start.message)
        recorded = await log.recorded()
        first = start.leg == 1
        stored = events_of(await log.load_stored()) if recorded.stored_messages > start.leg_length else []
        session = await self._session(start, log, config.get_session_config)
        carry = Carry.read(start.carry)
        takes_up = goes_on(self._runner, session.events, start)
        if takes_up:
            carry = take_up(session.events, start)
        session.state.update(carry.state())
        clock = TurnClock(start.started_at_ms)
        if session.events:
            clock.not_before(session.events[-1].timestamp)
        for answered in start.answers:
            if answered.answer is not None:
                clock.advance(answered.answer.settled_at_ms)
        conductor = Conductor(recorded, clock, log.nudge, ids_of_run(start))
        core = TurnCore(
            start=start,
            log=log,
            settings=self._settings,
            session=session,
            clock=clock,
            conductor=conductor,
            outbox=Outbox(start.turn_id, start.leg_length, stored, _ids_of_earlier_turns(session)),
            carry=carry,
            goes_on=takes_up,
            steps={**carry.steps, **lasting_steps(conductor.journal.asides)},
        )
        content = content_of(start.message) if first else content_of_answers(start.answers)

        async def begin() -> AsyncGenerator[Event, None]:
            events = self._runner.run_async(
                user_id=start.user_id,
                session_id=start.session_id,
                invocation_id=None if first else invocation_of_leg(session.events, start),
                new_message=content,
                state_delta=(dict(start.message.state_delta) or None) if first else None,
                run_config=config,
            )
            async with aclosing(events):
                async for event in events:
                    yield event
            await steering.say_the_rest(core)
            await leave(core, self._runner)

        whole_history = config.get_session_config is None
        return AdkLiveTurn(
            core,
            begin,
            self._sync_tools(config),
            (lambda: self._keep_warm(core)) if whole_history else (lambda: None),
        )

    def _sync_tools(self, config: RunConfig) -> SyncTools | None:
        """An explicit thread pool of the run configuration is ADK's own business: there, calls may overlap."""
        if not self._sync_tools_in_threads or config.tool_thread_pool_config is not None:
            return None
        return SyncTools(self._settings.threads)

    async def _session(self, start: TurnStart, log: TurnLog, limits: GetSessionConfig | None) -> Session:
        state = await log.load_state()
        length = start.history_length + start.leg_length
        warm = self._warm.take(start.session_id, start.incarnation, length) if start.leg == 1 else None
        if warm is not None and warm.user_id == start.user_id and limits is None:
            warm.state = dict(state)
            return warm
        events = events_of(await log.load_history()) if length else []
        return Session(
            id=start.session_id,
            app_name=self.app_name,
            user_id=start.user_id,
            state=dict(state),
            events=limited(events, limits),
            last_update_time=events[-1].timestamp if events else start.started_at_ms / 1000,
        )

    def _keep_warm(self, core: TurnCore) -> None:
        session, outbox = core.session, core.outbox
        dropped = {id(event) for event in outbox.dropped}
        retyped = {id(event): item for event, item in outbox.retyped}
        if dropped or retyped:
            session.events = [
                Event.model_validate_json(retyped[id(event)]) if id(event) in retyped else event
                for event in session.events
                if id(event) not in dropped
            ]
        if outbox.is_whole and len(session.events) == core.start.history_length + outbox.count:
            self._warm.put(session, core.start.incarnation)

    def closing_messages(
        self,
        start: TurnStart,
        stored: Sequence[JsonObject],
        joined: Sequence[JoinedMessage],
        calls: Sequence[ClosedCall],
        status: TurnStatus,
        error: ErrorInfo | None,
        now_ms: int,
    ) -> tuple[NewMessage, ...]:
        """What a failed or cancelled turn stores last (see ``records.closing``)."""
        return closing_messages(start, events_of(stored), joined, calls, status, error, now_ms)

    async def close(self) -> None:
        """Forgets the sessions that it keeps in memory, and closes what its toolsets opened.

        Services, plugins and tools are the application's.
        """
        self._warm.clear()
        await self._settings.toolsets.close()


def _toolsets_of(agents: Sequence[AgentNode], policies: Mapping[str, ToolPolicy]) -> DeclaredToolsets:
    known = {name for node in agents for name in node.tools}
    return DeclaredToolsets([toolset for node in agents for toolset in node.toolsets], policies.keys() - known)


def _ids_of_earlier_turns(session: Session) -> Callable[[str], bool]:
    """Tells the invocation ids of a session's events as they are now."""
    count = len(session.events)
    return lambda invocation_id: any(event.invocation_id == invocation_id for event in session.events[:count])
