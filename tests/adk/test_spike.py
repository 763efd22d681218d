from perdure.adk import adk_agent_session_flow
from perdure.session.policy import ToolEffect
from google.adk.agents import LlmAgent
from support import *

ran = []


def add(n: int, tool_context) -> dict:
    """adds"""
    ran.append(n)
    tool_context.state["n"] = tool_context.state.get("n", 0) + n
    return {"n": tool_context.state["n"]}


def make(disk):
    model = ScriptedModel(
        replies=[
            calls(("add", {"n": 1})),
            calls(("add", {"n": 2}), ("add", {"n": 3})),
            [text("do", partial=True), text("ne", partial=True), text("done")],
        ]
    )
    agent = LlmAgent(name="a", model=model, instruction="hi", tools=[add])
    flow = adk_agent_session_flow(agent, flow_type="A", default_tool_effect=ToolEffect.READ)
    e = Engine(flow.runner, disk)
    e.model = model
    return e


async def test_spike():
    e = make(Disk())
    await e.turn("go")
    for m in e.disk.new_messages:
        print(m)
    print(e.disk.state, ran, e.disk.usage, e.log.deltas)
    assert e.disk.error is None, e.disk.error
    und, crashed = await crash_everywhere(make, "go")
    for d in crashed:
        assert d.messages == und.messages
        assert d.state == und.state


async def test_diff():
    und, crashed = await crash_everywhere(make, "go")
    for i, d in enumerate(crashed):
        for a, b in zip(und.messages, d.messages):
            if a != b:
                print(i + 1, "\n U", a, "\n C", b)
                break


async def test_seq():
    for p in (None, 8):
        d = Disk(crash_at=p)
        e = make(d)
        e.begin("go")
        try:
            await e.go_on()
        except Crash:
            d.reboot()
            await make(d).go_on()
        print("SEQ", [(r.call_id[:8], r.sequence) for r in d.records.values()], [(r[:8]) for r in d.requests])


async def test_reads():
    import traceback
    from perdure.adk.determinism import TurnClock

    orig = TurnClock.read

    def read(self):
        v = orig(self)
        if v > 1700000100.04:
            print(
                "READ",
                "%.6f" % v,
                [f"{f.name}:{f.lineno}" for f in traceback.extract_stack()[-9:-1] if "pydantic" not in f.filename],
            )
        return v

    TurnClock.read = read
    try:
        for p in (None, 8):
            d = Disk(crash_at=p)
            e = make(d)
            e.begin("go")
            print("START", p)
            try:
                await e.go_on()
            except Crash:
                print("REBOOT")
                d.reboot()
                await make(d).go_on()
    finally:
        TurnClock.read = orig
