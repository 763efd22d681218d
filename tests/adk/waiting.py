"""Agents that wait for somebody, and plain ADK given the same answers.

Plain ADK runs as a resumable application and gets each answer natively: a function response in a new message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.adk.agents import LoopAgent, ParallelAgent, RunConfig, SequentialAgent
from google.adk.agents.run_config import StreamingMode  # type: ignore[attr-defined]  # ADK's documented import
from google.adk.apps.app import App, ResumabilityConfig
from google.adk.events.event import Event
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.get_user_choice_tool import get_user_choice_tool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from tests.adk.model import calls, says
from tests.adk.plain import stored_form
from tests.adk.shapes import Cast
from tests.adk.worlds import World

from perdure.adk.records.history import content_of, events_of, is_stored
from perdure.session.model import JsonObject
from perdure.session.policy import ToolEffect, ToolPolicy

Reply = Callable[[types.FunctionCall], JsonObject]
"""The answer to a native request of ADK, or to a call of a long-running tool."""


def done(call: types.FunctionCall) -> JsonObject:
    """What the tests answer: yes to whatever asks, and a result that says what it is of."""
    if call.name == "adk_request_confirmation":
        return {"confirmed": True, "payload": {"by": "boss"}}
    return {"done": [call.name, call.args]}


async def run_plain_with_answers(
    world: World, reply: Reply = done, *, late: bool = False, resumable: bool = True
) -> tuple[list[JsonObject], JsonObject]:
    """The events that plain ADK stores, without what perdure leaves out, and the final state.

    Args:
        late: answer what gave a first result, too.
    """
    assert not isinstance(world.agent, App)
    config = ResumabilityConfig(is_resumable=True) if resumable else None
    app = App(name="Flow", root_agent=world.agent, resumability_config=config)
    service = InMemorySessionService()
    runner = Runner(app=app, session_service=service, **world.services)
    await service.create_session(app_name=app.name, user_id="u1", session_id="s1")

    async def events() -> list[Event]:
        session = await service.get_session(app_name=app.name, user_id="u1", session_id="s1")
        assert session is not None
        return session.events

    for message in world.messages:
        content: types.Content | None = content_of(message)
        while content is not None:
            async for _ in runner.run_async(
                user_id="u1",
                session_id="s1",
                new_message=content,
                run_config=RunConfig(streaming_mode=StreamingMode.SSE),
            ):
                pass
            content = _answers(await events(), reply, late)
    session = await service.get_session(app_name=app.name, user_id="u1", session_id="s1")
    assert session is not None
    return conversation([stored_form(event) for event in session.events]), dict(session.state)


def _answers(events: list[Event], reply: Reply, late: bool) -> types.Content | None:
    """The answers to the first call that waits, and to those beside it."""
    answered = {
        response.id
        for event in events
        if event.author == "user" or not late
        for response in event.get_function_responses()
        if response.id not in event.actions.requested_tool_confirmations
    }
    for event in sorted(events, key=_is_request_of_adk, reverse=True):
        waiting = [
            call
            for call in event.get_function_calls()
            if call.id in (event.long_running_tool_ids or ()) and call.id not in answered
        ]
        if waiting:
            parts = [types.FunctionResponse(id=call.id, name=call.name, response=reply(call)) for call in waiting]
            return types.Content(role="user", parts=[types.Part(function_response=part) for part in parts])
    return None


def _is_request_of_adk(event: Event) -> bool:
    return any((call.name or "").startswith("adk_request_c") for call in event.get_function_calls())


def conversation(items: list[JsonObject]) -> list[JsonObject]:
    """Stored events without requests for a person, their answers, placeholders, and markers of ADK."""
    kept: list[JsonObject] = []
    for item, event in zip(items, events_of(items), strict=True):
        asks = {*event.actions.requested_tool_confirmations, *event.actions.requested_auth_configs}
        if not is_stored(event) or "content" not in item:
            continue
        left = [part for part in item["content"]["parts"] if not _is_left_out(part, asks)]
        if left:
            kept.append({**item, "content": {**item["content"], "parts": left}})
    return kept


def _is_left_out(part: JsonObject, asks: set[str]) -> bool:
    call, response = part.get("function_call"), part.get("function_response")
    name = str((call or response or {}).get("name", ""))
    return name in ("adk_request_confirmation", "adk_request_credential") or bool(response and response["id"] in asks)


# ---------------------------------------------------------------- worlds with long-running tools


def render_of(cast: Cast) -> LongRunningFunctionTool:
    """The long-running tool of these worlds."""

    def render(what: str) -> None:
        """Renders something; the result comes later."""
        cast.log.append(f"render {what}")

    return LongRunningFunctionTool(render)


def renders(*whats: str) -> Any:
    return calls(*[("render", {"what": what}) for what in whats])


def two_renders() -> World:
    """Two long-running calls beside an ordinary one, and another afterwards."""
    cast = Cast()
    mixed = calls(("render", {"what": "a"}), ("note", {"words": "n"}), ("render", {"what": "b"}))
    streamed = [says("now c", partial=True), renders("c")]
    return cast.world(cast.llm("artist", mixed, streamed, says("all rendered"), tools=(render_of(cast),)), beside=True)


def choice() -> World:
    """ADK's own tool that lets the user choose."""
    cast = Cast()
    wanted = calls(("get_user_choice", {"options": ["red", "blue"]}))
    return cast.world(cast.llm("asker", wanted, says("chosen"), tools=(get_user_choice_tool,)))


def gated_render() -> World:
    """A long-running tool that wants to be confirmed first, beside a gated tool that is not long-running."""
    cast = Cast()

    def pay(amount: int) -> JsonObject:
        """Pays."""
        cast.log.append(f"pay {amount}")
        return {"paid": amount}

    render = render_of(cast)
    render._require_confirmation = True
    wanted = calls(("render", {"what": "a"}), ("pay", {"amount": 5}))
    tools = (render, FunctionTool(pay, require_confirmation=True))
    return cast.world(cast.llm("clerk", wanted, says("done"), tools=tools), beside=True)


def beside_gate() -> World:
    """A long-running call beside one that is let through only when the former has its answer."""
    cast = Cast()

    def release(what: str, tool_context: ToolContext) -> JsonObject:
        """Releases."""
        cast.log.append(f"release {what}")
        tool_context.state["released"] = what
        return {"released": what}

    wanted = calls(("release", {"what": "a"}), ("render", {"what": "a"}), ("note", {"words": "n"}))
    tools = (render_of(cast), FunctionTool(release, require_confirmation=True))
    return cast.world(cast.llm("clerk", wanted, noting("x"), says("done"), tools=tools), beside=True)


def line() -> World:
    """Case 14: what follows in a sequence goes on after the wait."""
    cast = Cast()
    planner = cast.llm("planner", renders("plan"), says("planned"), tools=(render_of(cast),), output_key="plan")
    executor = cast.llm("executor", noting("x"), says("executed"), instruction="Do {plan}.")
    return cast.world(SequentialAgent(name="line", sub_agents=[planner, executor]))


def noting(words: str) -> Any:
    return calls(("note", {"words": words}))


def rounds() -> World:
    """Case 15: a loop that waits in its second and third round, and keeps count."""
    cast = Cast()
    worker = cast.llm(
        "worker", says("it1"), renders("r2"), says("it2"), renders("r3"), says("it3"), tools=(render_of(cast),)
    )
    return cast.world(LoopAgent(name="rounds", sub_agents=[worker], max_iterations=3))


def branches() -> World:
    """One branch waits while the other goes on; the agent after them sees both."""
    cast = Cast()
    fan = ParallelAgent(
        name="fan",
        sub_agents=[
            cast.llm("waiter", renders("w"), says("waited"), tools=(render_of(cast),)),
            cast.llm("walker", noting("1"), noting("2"), says("walked")),
        ],
    )
    return cast.world(SequentialAgent(name="both", sub_agents=[fan, cast.llm("last", says("joined"))]), branched=True)


def transferred() -> World:
    """Case 13: a sub-agent that got the conversation waits twice in a row; the root's model is not asked again."""
    cast = Cast()
    sub = cast.llm(
        "sub", renders("one"), renders("two"), says("sub is done"), tools=(render_of(cast),), description="S."
    )
    root = cast.llm("root", calls(("transfer_to_agent", {"agent_name": "sub"})))
    root.sub_agents = [sub]
    sub.parent_agent = root
    return cast.world(root)


def nested_transfer() -> World:
    """The same below a sequence, where ADK runs the sub-agent inside the root's own loop."""
    cast = Cast()
    sub = cast.llm(
        "sub", renders("one"), renders("two"), says("sub is done"), tools=(render_of(cast),), description="S."
    )
    root = cast.llm("root", calls(("transfer_to_agent", {"agent_name": "sub"})))
    root.sub_agents = [sub]
    sub.parent_agent = root
    return cast.world(SequentialAgent(name="line", sub_agents=[root, cast.llm("after", says("after"))]))


def first_result() -> World:
    """A long-running tool that gives a first result: the turn goes on with it."""
    cast = Cast()

    def ticket(subject: str, tool_context: ToolContext) -> JsonObject:
        """Opens a ticket."""
        cast.log.append(f"ticket {subject}")
        tool_context.state["ticket"] = subject
        return {"status": "pending", "subject": subject}

    wanted = calls(("ticket", {"subject": "leak"}), ("note", {"words": "n"}))
    agent = cast.llm("desk", wanted, says("it is pending"), noting("solved"), says("it is solved"))
    agent.tools.append(LongRunningFunctionTool(ticket))
    return cast.world(agent, beside=True)


WAITING: dict[str, Callable[[], World]] = {
    build.__name__: build
    for build in (
        two_renders,
        choice,
        gated_render,
        beside_gate,
        line,
        rounds,
        branches,
        transferred,
        nested_transfer,
        first_result,
    )
}

ONCE = ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=False)
"""A tool that must not run twice and asks nobody first."""
