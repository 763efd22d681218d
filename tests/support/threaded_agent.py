"""An ADK agent, as the text of a TARGET, whose one tool blocks its thread while there is a file named ``hold``."""

THREADED_AGENT = """
import sys, time
from pathlib import Path
from google.adk.agents import LlmAgent
from perdure import ToolEffect, ToolPolicy
from perdure.testing import ScriptedModel, call, text

def work() -> str:
    "Works."
    print("working", file=sys.stderr, flush=True)
    while Path("hold").exists():
        time.sleep(0.01)
    return "worked"

root_agent = LlmAgent(name="threaded", model=ScriptedModel([call("work"), text("It is done.")]), tools=[work])
perdure_options = {"tool_policies": {"work": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE)}}
"""
