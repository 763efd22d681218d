"""``DurableRunner``: ADK's ``Runner`` over durable sessions.

A client like any other: it sends messages and answers, and turns the live stream back into ADK's events.  So it does
not matter which process runs the turn.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Self, Unpack, cast

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.run_config import RunConfig
from google.adk.apps.app import App
from google.adk.artifacts.base_artifact_service import BaseArtifactService
from google.adk.auth.credential_service.base_credential_service import BaseCredentialService
from google.adk.events.event import Event
from google.adk.memory.base_memory_service import BaseMemoryService
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import Runner
from google.adk.workflow import BaseNode
from google.genai import types

from perdure.adk.flow import adk_agent_session_flow
from perdure.adk.flow_options import FlowOptions
from perdure.adk.native.arguments import (
    check_engine,
    check_message,
    check_names,
    check_optional,
    check_options,
    check_plugins,
    check_switches,
    check_words,
)
from perdure.adk.native.artifacts import copy_artifacts
from perdure.adk.native.errors import SessionIdTaken, WrongCall, no_such_session
from perdure.adk.native.following import follow
from perdure.adk.native.home import EngineHome
from perdure.adk.native.run_requests import Ran, Running, begin
from perdure.adk.native.session_service import DurableSessionService
from perdure.arguments import shown
from perdure.client import AgentSessionClient
from perdure.engine.base import Engine
from perdure.session.model import AgentSnapshot, JsonValue
from perdure.store.base import NewFork


@dataclass(frozen=True, slots=True)
class SessionForkResponse:
    """What ``rewind_async`` made.

    Attributes:
        session_id: of the new session.
        turn_id: the last turn that it has; ``None`` when it has none.
    """

    session_id: str
    turn_id: str | None


class DurableRunner(Runner):
    """Runs an ADK agent as ADK's ``Runner`` does, in durable sessions.

    ::

        async with DurableRunner(agent=agent, app_name="support", engine="sqlite:///support.db") as runner:
            await runner.session_service.create_session(app_name="support", user_id="ann", session_id="s1")
            async for event in runner.run_async(user_id="ann", session_id="s1", new_message=message):
                ...

    The events are those of a plain runner, in the same order.  A reader that leaves does not stop the turn.  While a
    turn runs or waits, a further message on its session is queued.

    Args:
        engine: an address (see ``open_engine``), then the runner opens an engine of its own when it first needs one and
            closes it in ``close``; or an open engine, which stays the caller's.
        app, app_name, agent, node, plugins, artifact_service, memory_service, credential_service,
        plugin_close_timeout, auto_create_session: as ADK's ``Runner`` takes them.  The app name is the ``App``'s, else
            ``app_name``, else ``flow_type``.
        session_service: absent, or a ``DurableSessionService``; the runner makes its own.
        flow_type: names the agent in the store; ``None`` is the app name.
        worker: run a worker for this agent in this process; ``False`` when other processes do.
        options: those of ``adk_agent_session_flow``, with two other defaults: ``approvals="declared"``, and ADK's own
            ``run_config``, in which nothing streams.

    Raises:
        ValueError: not exactly one of ``app``, ``agent`` and ``node`` is given, or there is no name.
        TypeError: an option is none of ``adk_agent_session_flow``.
        UsageError: something in the set-up is wrong or not supported; the message names the argument that fixes it.
        FrameworkDrift: the installed google-adk does not have what perdure needs.
    """

    def __init__(
        self,
        *,
        engine: Engine | str,
        app: App | None = None,
        app_name: str | None = None,
        agent: BaseAgent | None = None,
        node: BaseNode | None = None,
        plugins: list[BasePlugin] | None = None,
        artifact_service: BaseArtifactService | None = None,
        session_service: DurableSessionService | None = None,
        memory_service: BaseMemoryService | None = None,
        credential_service: BaseCredentialService | None = None,
        plugin_close_timeout: float = 5.0,
        auto_create_session: bool = False,
        flow_type: str | None = None,
        worker: bool = True,
        **options: Unpack[FlowOptions],
    ) -> None:
        check_engine(engine)
        check_optional(
            app=app,
            app_name=app_name,
            agent=agent,
            node=node,
            artifact_service=artifact_service,
            memory_service=memory_service,
            credential_service=credential_service,
            flow_type=flow_type,
        )
        check_plugins(plugins, plugin_close_timeout)
        check_switches(auto_create_session=auto_create_session, worker=worker)
        check_options(options)
        super().__init__(
            app=app,
            app_name=app.name if app is not None else app_name or flow_type,
            agent=agent,
            node=node,
            plugins=plugins,
            artifact_service=artifact_service,
            session_service=DurableSessionService(engine) if session_service is None else session_service,
            memory_service=memory_service,
            credential_service=credential_service,
            plugin_close_timeout=plugin_close_timeout,
            auto_create_session=auto_create_session,
        )
        chosen: FlowOptions = {"approvals": "declared", **options}
        if chosen.get("run_config") is None:
            chosen["run_config"] = RunConfig()
        self.flow = adk_agent_session_flow(
            self.app,
            flow_type=flow_type or self.app_name,
            artifact_service=artifact_service,
            memory_service=memory_service,
            credential_service=credential_service,
            **chosen,
        )
        self._home = EngineHome(engine, self.flow, worker=worker)
        self._runs_once = False
        self.session_service = self._session_service(session_service)

    def _session_service(self, given: object) -> DurableSessionService:
        if given is None:
            return DurableSessionService.of_runner(self._home, self.flow)
        if not isinstance(given, DurableSessionService):
            raise WrongCall(
                f"session_service is {shown(given)}; a DurableRunner keeps its sessions in its engine: leave the "
                "argument out, or give a DurableSessionService"
            )
        theirs, ours = given.flow_type_of(self.app_name), self.flow.flow_type
        if theirs != ours:
            raise WrongCall(
                f"the session_service has flow type {theirs!r} for app {self.app_name!r}, the runner has {ours!r}; "
                f"give it flow_types={{{self.app_name!r}: {ours!r}}}"
            )
        return given

    async def sessions(self) -> AgentSessionClient:
        """A client of the runner's sessions: to cancel, answer and watch them in perdure's own terms.

        Raises:
            StoreError: the engine cannot be opened.
        """
        return AgentSessionClient(await self._home.engine(), self.flow)

    # ------------------------------------------------------------ running

    async def run_async(
        self,
        *,
        user_id: str,
        session_id: str,
        invocation_id: str | None = None,
        new_message: types.Content | None = None,
        state_delta: dict[str, JsonValue] | None = None,
        run_config: RunConfig | None = None,
        yield_user_message: bool = False,
        abort_signal: asyncio.Event | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Sends a message, or answers what a turn waits for, and yields the events that follow.

        The generator ends when the turn ends, or when it waits for someone; then its last events are the requests, each
        a function call to be answered with a function response in the next ``run_async``, from any process.

        Args:
            new_message: words, which start a turn; or function responses, which answer the calls that a turn waits for
                (one, several, or all).  After a part of the answers it ends; the other requests are not repeated.
                Where answers let the open turn go on and start another, the open one's events are yielded.
            invocation_id: without a message: attaches to that turn and yields what still comes of it.
            state_delta: session state to set with the message.
            run_config: changes the runner's for the turn that the message starts.  An answer changes it no more: the
                turn goes on as it began.
            yield_user_message: yield the user's own event, too.
            abort_signal: when it is set, the turn is cancelled.

        Raises:
            NoSuchSession: user and app have no such session; it is ADK's ``SessionNotFoundError``, too.
            SessionIdTaken: the session was to be created, but another user or app has one of this id.
            WrongCall: the arguments do not fit together; it is a ``ValueError``, too.
            SessionClosed, SessionBlocked
            TurnNotFound: ``invocation_id`` is no turn of the session.
            InterruptNotFound, InterruptAlreadyResolved, InterruptExpired, InterruptWithdrawn: of an answer; nothing was
                answered then.
            Exception: what the turn failed with, as a plain runner raises it.
        """
        check_names(user_id=user_id, session_id=session_id)
        check_message(new_message)
        check_optional(
            invocation_id=invocation_id, state_delta=state_delta, run_config=run_config, abort_signal=abort_signal
        )
        check_switches(yield_user_message=yield_user_message)
        try:
            snapshot = await self._session(user_id, session_id)
            engine = await self._home.working_engine()
            sessions = AgentSessionClient(engine, self.flow)
            run = await begin(
                engine,
                sessions,
                snapshot,
                new_message=new_message,
                invocation_id=invocation_id,
                state_delta=state_delta,
                run_config=run_config,
                user_message=yield_user_message,
                root_agent=self.agent.name,
            )
            match run:
                case Ran(events):
                    for event in events:
                        yield event
                case Running(turn_id, reader):
                    following = follow(
                        sessions,
                        snapshot.session_id,
                        turn_id,
                        reader,
                        after=snapshot.cursor,
                        abort_signal=abort_signal,
                    )
                    async with aclosing(following) as live:
                        async for event in live:
                            yield event
        finally:
            if self._runs_once:
                await self._home.close()

    async def _session(self, user_id: str, session_id: str) -> AgentSnapshot:
        service = cast(DurableSessionService, self.session_service)
        app = self.app_name
        snapshot = await service.snapshot(app_name=app, user_id=user_id, session_id=session_id)
        if snapshot is None and self.auto_create_session:
            try:
                await service.create_session(app_name=app, user_id=user_id, session_id=session_id)
            except SessionIdTaken:
                snapshot = await service.snapshot(app_name=app, user_id=user_id, session_id=session_id)
                if snapshot is None:
                    raise
                return snapshot  # another call created it at the same time
            snapshot = await service.snapshot(app_name=app, user_id=user_id, session_id=session_id)
        if snapshot is None:
            raise no_such_session(session_id, app, user_id, self._app_name_alignment_hint or "")
        return snapshot

    def run(
        self,
        *,
        user_id: str,
        session_id: str,
        new_message: types.Content,
        state_delta: dict[str, JsonValue] | None = None,
        run_config: RunConfig | None = None,
    ) -> Generator[Event, None, None]:
        """As ``run_async``, for programs without an event loop.  Each call opens an engine and a worker of its own."""
        check_names(user_id=user_id, session_id=session_id)
        check_message(new_message)
        check_optional(state_delta=state_delta, run_config=run_config)
        yield from Runner.run(
            self._once(),
            user_id=user_id,
            session_id=session_id,
            new_message=new_message,
            state_delta=state_delta,
            run_config=run_config,
        )

    def _once(self) -> Self:
        """This runner over an engine of its own that is closed after one run."""
        once = copy.copy(self)
        once._home = self._home.elsewhere()
        once._runs_once = True
        once.session_service = DurableSessionService.of_runner(once._home, self.flow)
        return once

    async def run_debug(
        self,
        user_messages: str | list[str],
        *,
        user_id: str = "debug_user_id",
        session_id: str = "debug_session_id",
        run_config: RunConfig | None = None,
        quiet: bool = False,
        verbose: bool = False,
    ) -> list[Event]:
        """As ADK's: sends words, creates the session if there is none, prints what comes and returns it.

        Raises: as ``run_async``, and ``SessionIdTaken``.
        """
        check_words(user_messages)
        check_names(user_id=user_id, session_id=session_id)
        check_optional(run_config=run_config)
        check_switches(quiet=quiet, verbose=verbose)
        return await super().run_debug(
            user_messages,
            user_id=user_id,
            session_id=session_id,
            run_config=run_config,
            quiet=quiet,
            verbose=verbose,
        )

    def run_live(self, **_: Any) -> AsyncGenerator[Event, None]:
        """Not there: a live, bidirectional stream has no turns that could be replayed.

        Raises:
            WrongCall: always.
        """
        raise WrongCall("run_live is not durable; use ADK's own Runner for live sessions, or run_async")

    async def rewind_async(  # type: ignore[override]  # ADK's changes the session and returns nothing
        self,
        *,
        user_id: str,
        session_id: str,
        rewind_before_invocation_id: str,
        run_config: RunConfig | None = None,
    ) -> SessionForkResponse:
        """Makes a new session of the turns before one, with state and artifacts of that moment.

        The session itself stays as it is.  What waits in it is not carried over; ``app:`` and ``user:`` state and
        ``user:`` artifacts are shared, and so not taken back.

        Args:
            rewind_before_invocation_id: the first turn that the new session does not have.
            run_config: of no meaning here.

        Raises:
            NoSuchSession
            TurnNotFound: the session has no such turn.
        """
        check_names(user_id=user_id, session_id=session_id, rewind_before_invocation_id=rewind_before_invocation_id)
        check_optional(run_config=run_config)
        snapshot = await self._session(user_id, session_id)
        engine = await self._home.engine()
        new = NewFork(engine.ids.new_id(), engine.ids.new_id(), rewind_before_invocation_id)
        fork = await engine.store.fork_session(snapshot.session_id, new, engine.clock.now_ms())
        if self.artifact_service is not None:
            branch = await self.session_service.get_session(
                app_name=self.app_name, user_id=user_id, session_id=fork.session_id
            )
            if branch is not None:
                await copy_artifacts(self.artifact_service, branch, from_session=snapshot.session_id)
        return SessionForkResponse(fork.session_id, fork.turn_id)

    # ------------------------------------------------------------ life

    async def close(self) -> None:
        """Drains the worker and closes the engine, if that is the runner's own; then the agent's toolsets and plugins.

        As with ADK's runner, a later call of ``run_async``, ``sessions`` or the session service still works: it opens
        the engine and the worker anew, and they are to be closed once more.

        Raises:
            RuntimeError: a plugin failed to close.
        """
        try:
            await self._home.close()
        finally:
            await super().close()

    async def __aenter__(self) -> Self:
        """Opens the engine and starts the worker."""
        await self._home.working_engine()
        return self
