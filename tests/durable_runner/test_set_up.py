"""How a durable runner is made: its names, its engine, several of them in one place, and how they end."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.apps.app import App
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.tools.base_toolset import BaseToolset
from tests.durable_runner import agents
from tests.durable_runner.support import APP, SESSION, USER, Talk, durable, text_of, words

from perdure import SessionStatus, UsageError, WorkerOptions, open_engine
from perdure.adk import DurableRunner, DurableSessionService, WrongCall, adk_agent_session_flow
from perdure.adk.flow_options import FlowOptions
from perdure.testing import ScriptedModel, text


@pytest.mark.parametrize(
    ("given", "app_name", "flow_type"),
    [
        ({"app": App(name="support", root_agent=agents.talker())}, "support", "support"),
        ({"app": App(name="support", root_agent=agents.talker()), "app_name": "x"}, "support", "support"),
        ({"app": App(name="support", root_agent=agents.talker()), "flow_type": "F"}, "support", "F"),
        ({"agent": agents.talker(), "app_name": "desk"}, "desk", "desk"),
        ({"agent": agents.talker(), "app_name": "desk", "flow_type": "F"}, "desk", "F"),
        ({"agent": agents.talker(), "flow_type": "F"}, "F", "F"),
    ],
    ids=str,
)
def test_names(given: dict[str, Any], app_name: str, flow_type: str, tmp_path: Path) -> None:
    runner = DurableRunner(engine=f"sqlite:///{tmp_path / 'x.db'}", **given)
    assert isinstance(runner, Runner)
    assert (runner.app_name, runner.flow.app_name, runner.flow.flow_type) == (app_name, app_name, flow_type)
    assert runner.agent.name == "talker"
    assert list(tmp_path.iterdir()) == [], "nothing is opened before it is needed"


def test_what_plain_adk_refuses_is_refused(tmp_path: Path) -> None:
    agent, app = agents.talker(), App(name="a", root_agent=agents.talker())
    wrong: list[dict[str, Any]] = [{}, {"agent": agent}, {"agent": agent, "app": app}]
    for given in wrong:
        with pytest.raises(ValueError, match="app"):
            DurableRunner(engine="sqlite:///x.db", **given)


def test_another_session_service_is_refused() -> None:
    with pytest.raises(WrongCall, match="leave the argument out"):
        DurableRunner(
            agent=agents.talker(),
            app_name=APP,
            engine="sqlite:///x.db",
            session_service=InMemorySessionService(),  # type: ignore[arg-type]  # that is the point
        )
    ours = DurableSessionService("sqlite:///x.db")
    with pytest.raises(WrongCall, match="flow_types"):
        DurableRunner(agent=agents.talker(), app_name=APP, flow_type="F", engine="sqlite:///x.db", session_service=ours)
    runner = DurableRunner(agent=agents.talker(), app_name=APP, engine="sqlite:///x.db", session_service=ours)
    assert runner.session_service is ours


def test_its_options_are_those_of_a_flow() -> None:
    """Every option that a flow gets, a runner has, too."""
    taken = {"agent", "flow_type", "artifact_service", "memory_service", "credential_service"}
    assert FlowOptions.__annotations__.keys() == inspect.signature(adk_agent_session_flow).parameters.keys() - taken


def test_its_methods_take_what_a_plain_runner_takes() -> None:
    for name in ("run_async", "run", "run_debug", "close", "rewind_async"):
        theirs = inspect.signature(getattr(Runner, name)).parameters
        assert theirs.keys() <= inspect.signature(getattr(DurableRunner, name)).parameters.keys(), name
    theirs = inspect.signature(Runner.__init__).parameters
    assert theirs.keys() <= inspect.signature(DurableRunner.__init__).parameters.keys()


async def test_a_wrong_option_is_refused() -> None:
    with pytest.raises(UsageError):
        DurableRunner(agent=agents.talker(), app_name=APP, engine="sqlite:///x.db", approvals="perhaps")  # type: ignore[arg-type]  # that is the point
    with pytest.raises(WrongCall):
        DurableRunner(agent=agents.talker(), app_name=APP, engine="sqlite:///x.db").run_live()


def _saying(name: str, words: str) -> LlmAgent:
    return LlmAgent(name=name, model=ScriptedModel([text(words)]), instruction="Talk.")


@pytest.mark.parametrize("one_engine", [True, False])
async def test_several_runners_share_a_file(one_engine: bool, tmp_path: Path) -> None:
    """With one engine or one each; every runner serves its own agent, and goes on when another is closed."""
    address = f"sqlite:///{tmp_path / 'shared.db'}"
    async with open_engine(address, durability="process") as engine:
        place = engine if one_engine else address
        one = DurableRunner(agent=_saying("one", "I am one."), app_name="one", engine=place)
        two = DurableRunner(agent=_saying("two", "I am two."), app_name="two", engine=place)
        for runner, session_id in ((one, "a"), (two, "b"), (one, "c")):
            await runner.session_service.create_session(
                app_name=runner.app_name, user_id=USER, session_id=session_id, state={"user:name": runner.app_name}
            )
        assert text_of(await _say(one, "a")) == ["I am one."]
        assert text_of(await _say(two, "b")) == ["I am two."]
        await one.close()
        assert text_of(await _say(two, "b")) == ["I am two."]
        listed = await two.session_service.list_sessions(app_name="two")
        assert [session.id for session in listed.sessions] == ["b"]
        await two.close()


async def _say(runner: DurableRunner, session_id: str) -> list[Any]:
    run = runner.run_async(user_id=USER, session_id=session_id, new_message=words("who are you?"))
    return [event async for event in run]


async def test_closing_closes_what_the_agent_opened(tmp_path: Path) -> None:
    closed: list[str] = []

    class Tools(BaseToolset):
        async def get_tools(self, readonly_context: object = None) -> list[Any]:
            return []

        async def close(self) -> None:
            closed.append("tools")

    class Plugin(BasePlugin):
        async def close(self) -> None:
            closed.append("plugin")

    agent = _saying("one", "hm")
    app = App(name=APP, root_agent=agent, plugins=[Plugin(name="p")])
    async with DurableRunner(app=app, engine=f"sqlite:///{tmp_path / 'x.db'}") as runner:
        assert isinstance(runner.agent, LlmAgent)
        runner.agent.tools = [Tools()]
        await Talk(runner).start()
    assert closed == ["tools", "plugin"]
    async with runner:  # it may be opened again
        assert text_of(await Talk(runner).say("go")) == ["hm"]


async def test_closing_drains(tmp_path: Path) -> None:
    """What runs is finished; the next process goes on from there."""
    address = f"sqlite:///{tmp_path / 'x.db'}"
    async with DurableRunner(agent=agents.gated(), app_name=APP, engine=address) as runner:
        talk = Talk(runner)
        await talk.start()
        await talk.say("go")
    async with open_engine(address, options=WorkerOptions()) as engine:
        other = DurableRunner(agent=agents.gated(), app_name=APP, engine=engine, worker=False)
        snapshot = await (await other.sessions()).get_agent_snapshot(SESSION)
        assert snapshot.status is SessionStatus.WAITING
        assert not snapshot.served


async def test_one_engine_serves_whoever_is_named(tmp_path: Path) -> None:
    async with durable(agents.talker(), tmp_path) as runner:
        engine = await runner._home.engine()
        assert engine.flows == {}, "an open engine stays as it was opened"
        with pytest.raises(UsageError, match="flow_type"):
            async with engine.worker(runner.flow, runner.flow):
                pass
