"""What TARGET may be, and what is said when it is something else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perdure import AgentSessionFlow, UsageError
from perdure.cli.target import load_flow

AGENT = """
from google.adk.agents import LlmAgent
root_agent = LlmAgent(name="helper", model="gemini-2.5-flash")
"""
APP = """
from google.adk.agents import LlmAgent
from google.adk.apps import App
root_agent = LlmAgent(name="helper", model="gemini-2.5-flash")
app = App(name="support_app", root_agent=root_agent)
"""


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, text: str) -> None:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def refusal(target: str) -> str:
    with pytest.raises(UsageError) as caught:
        load_flow(target)
    return str(caught.value)


# ---------------------------------------------------------------- what it may be


def test_a_folder_with_agent_py() -> None:
    write("agents/with_agent/agent.py", AGENT)
    write("agents/with_agent/__init__.py", "from . import agent")
    assert load_flow("agents/with_agent").flow_type == "helper"


def test_a_folder_without_init() -> None:
    write("agents/without_init/agent.py", AGENT)
    assert load_flow("agents/without_init/").flow_type == "helper"


def test_a_folder_with_the_agent_in_its_init() -> None:
    write("agents/in_init/__init__.py", AGENT)
    assert load_flow("agents/in_init").flow_type == "helper"


def test_the_working_directory_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("inside/agent.py", AGENT)
    monkeypatch.chdir(tmp_path / "inside")
    assert load_flow(".").flow_type == "helper"


def test_a_file() -> None:
    write("elsewhere/alone.py", "import beside\n" + AGENT)
    write("elsewhere/beside.py", "")
    assert load_flow("elsewhere/alone.py").flow_type == "helper"


def test_a_file_of_a_package_may_import_from_it() -> None:
    write("elsewhere/pack/__init__.py", "")
    write("elsewhere/pack/inner/__init__.py", "")
    write("elsewhere/pack/inner/agent.py", "from ..names import NAME\n" + AGENT.replace('"helper"', "NAME"))
    write("elsewhere/pack/names.py", "NAME = 'named'")
    assert load_flow("elsewhere/pack/inner/agent.py").flow_type == "named"


def test_the_init_file_of_a_folder_is_the_folder() -> None:
    write("agents/by_init/__init__.py", AGENT)
    assert load_flow("agents/by_init/__init__.py").flow_type == "helper"


def test_a_module_below_the_working_directory() -> None:
    write("product/agents/support.py", AGENT)
    assert load_flow("product.agents.support").flow_type == "helper"


def test_a_package_by_name() -> None:
    write("product2/support/agent.py", AGENT)
    assert load_flow("product2.support").flow_type == "helper"


def test_an_app_comes_before_its_agent() -> None:
    write("with_app.py", APP)
    flow = load_flow("with_app.py")
    assert (flow.flow_type, flow.app_name) == ("support_app", "support_app")


def test_an_app_of_another_kind_is_passed_over() -> None:
    write("with_web_app.py", "class App:\n    name = 'web'\napp = App()\n" + AGENT)
    assert load_flow("with_web_app.py").flow_type == "helper"


@pytest.mark.parametrize("target", ["many.py", "many"])
def test_an_object_by_name(target: str) -> None:
    write("many.py", AGENT + "class Agents:\n    billing = LlmAgent(name='billing', model='gemini-2.5-flash')\n")
    assert load_flow(f"{target}:Agents.billing").flow_type == "billing"


def test_an_object_of_a_folders_agent_module() -> None:
    write("agents/many/agent.py", AGENT + "billing = LlmAgent(name='billing', model='gemini-2.5-flash')\n")
    assert load_flow("agents/many:billing").flow_type == "billing"


READY = AGENT + (
    "from perdure.adk import adk_agent_session_flow\n"
    "flow = adk_agent_session_flow(root_agent, flow_type='Ready', user_id='ann')\n"
)


def test_a_ready_flow() -> None:
    write("ready.py", READY)
    flow = load_flow("ready.py")
    assert isinstance(flow, AgentSessionFlow)
    assert (flow.flow_type, flow.user_id) == ("Ready", "ann")
    assert load_flow("ready:flow").flow_type == "Ready"
    assert load_flow("ready.py", "Other").flow_type == "Other"


def test_options_beside_the_agent() -> None:
    write("agents/options/agent.py", AGENT + "perdure_options = {'user_id': 'ann', 'flow_type': 'Support'}\n")
    flow = load_flow("agents/options")
    assert (flow.flow_type, flow.user_id) == ("Support", "ann")
    assert load_flow("agents/options", "Given").flow_type == "Given"


# ---------------------------------------------------------------- .env


@pytest.mark.parametrize("target", ["agents/env", "agents/env/agent.py", "agents.env", "agents.env.agent"])
def test_the_env_file_is_read_before_the_agent(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIVEN", "by hand")
    write("agents/env/agent.py", "import os\n" + AGENT.replace('"helper"', "os.environ['A'] + os.environ['GIVEN'][:2]"))
    write("agents/env/.env", "A=from_file_\nGIVEN=from_file\n")
    assert load_flow(target).flow_type == "from_file_by"


def test_the_next_env_file_upwards_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WHERE", raising=False)
    write("above/.env", "WHERE=above")
    write("above/deep/agent.py", AGENT)
    load_flow("above/deep")
    assert os.environ["WHERE"] == "above"


def test_adk_has_a_switch_against_env_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADK_DISABLE_LOAD_DOTENV", "true")
    monkeypatch.delenv("WHERE", raising=False)
    write("off/.env", "WHERE=off")
    write("off/agent.py", AGENT)
    load_flow("off")
    assert "WHERE" not in os.environ


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("target", ["missing.py", "missing/folder", "./missing", ""])
def test_a_path_that_is_not_there(target: str) -> None:
    assert "there is no such file or folder" in refusal(target)


@pytest.mark.parametrize("target", ["missing", "missing.agent", "missing:agent"])
def test_a_module_that_is_not_there(target: str) -> None:
    assert "there is no module 'missing', and no file or folder" in refusal(target)


def test_a_file_that_is_no_python() -> None:
    write("notes.txt", "hello")
    assert "notes.txt is no Python file" in refusal("notes.txt")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("x = 1\nraise ValueError('no key')", "ValueError: no key"),
        ("def f(:\n", "SyntaxError: invalid syntax"),
        ("import sys\nsys.exit('bye')", "SystemExit: bye"),
    ],
)
def test_an_agent_that_cannot_be_imported(text: str, words: str) -> None:
    write("agents/broken/agent.py", text)
    told = refusal("agents/broken")
    assert f"cannot be imported: {words}" in told
    assert words.startswith("SyntaxError") or "broken/agent.py, line" in told


def test_a_module_without_an_agent() -> None:
    write("agents/nothing/agent.py", "app = 3")
    told = refusal("agents/nothing")
    assert "found no 'root_agent' and no ADK App named 'app' in nothing and nothing.agent (app is a int)" in told


def test_an_object_that_is_not_there() -> None:
    write("single.py", AGENT)
    assert "single has no 'other_agent'" in refusal("single.py:other_agent")
    assert "single has no 'root_agent.nothing'" in refusal("single.py:root_agent.nothing")


@pytest.mark.parametrize("value", ["'an agent'", "len", "Named()"])
def test_an_object_of_another_kind(value: str) -> None:
    write("wrong.py", f"class Named:\n    name = 'x'\nroot_agent = {value}\n")
    assert "agent" in refusal("wrong.py")


def test_options_of_another_kind() -> None:
    write("listed.py", AGENT + "perdure_options = ['user_id']\n")
    assert "perdure_options is a list" in refusal("listed.py")
    write("unknown.py", AGENT + "perdure_options = {'usr_id': 'ann', 3: 4}\n")
    assert "perdure_options has 3, usr_id, which adk_agent_session_flow does not take" in refusal("unknown.py")


def test_a_name_that_another_module_has() -> None:
    write("agents/json/agent.py", AGENT)
    assert "the name 'json' is taken by another module" in refusal("agents/json")
