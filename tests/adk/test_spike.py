from perdure.adk import adk_agent_session_flow
from perdure.session.policy import ToolEffect
from google.adk.agents import LlmAgent
from support import *

ran=[]
def add(n: int, tool_context) -> dict:
    """adds"""
    ran.append(n)
    tool_context.state["n"] = tool_context.state.get("n", 0) + n
    return {"n": tool_context.state["n"]}

def make(disk):
    model = ScriptedModel(replies=[calls(("add", {"n": 1})), calls(("add", {"n": 2}), ("add", {"n": 3})), [text("do", partial=True), text("ne", partial=True), text("done")]])
    agent = LlmAgent(name="a", model=model, instruction="hi", tools=[add])
    flow = adk_agent_session_flow(agent, flow_type="A", default_tool_effect=ToolEffect.READ)
    e = Engine(flow.runner, disk)
    e.model = model
    return e

async def test_spike():
    e = make(Disk())
    await e.turn("go")
    for m in e.disk.new_messages: print(m)
    print(e.disk.state, ran, e.disk.usage, e.log.deltas)
    assert e.disk.error is None, e.disk.error
    und, crashed = await crash_everywhere(make, "go")
    for d in crashed:
        assert d.messages == und.messages
        assert d.state == und.state
