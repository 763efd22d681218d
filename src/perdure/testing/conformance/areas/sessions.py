"""Sessions: created once, listed, read in pages, closed, deleted; state at its three levels."""

from __future__ import annotations

from google.adk.tools.tool_context import ToolContext

from perdure.client import AgentSessionClient
from perdure.errors import RequestConflict, SessionAlreadyExists, SessionClosed, SessionNotFound, UsageError
from perdure.session.model import JsonObject, Page, SessionStatus, SessionSummary, TurnStatus
from perdure.session.runner import AgentSessionFlow
from perdure.testing.conformance.case import case
from perdure.testing.conformance.checks import holds, refused, same
from perdure.testing.conformance.stage import Stage, turn_of
from perdure.testing.conformance.world import ASKED, READ, World
from perdure.testing.replies import call, text
from perdure.testing.script import by_message


def talker(world: World) -> AgentSessionFlow:
    """Reads once and answers."""

    def look(order: str, tool_context: ToolContext) -> JsonObject:
        """Looks an order up."""
        world.note("look", order)
        tool_context.state["looks"] = tool_context.state.get("looks", 0) + 1
        return {"order": order, "status": "delivered"}

    agent = world.agent([call("look", order="7"), text("It was delivered.")], [look], instruction="Help {name?}.")
    return world.flow(agent, {"look": READ})


def keeper(world: World) -> AgentSessionFlow:
    """Writes state of every level."""

    def remember(tool_context: ToolContext) -> str:
        """Remembers."""
        tool_context.state["mine"] = {"nested": [1, 2.5, None, True, "ä€😀"]}
        tool_context.state["app:all"] = tool_context.state.get("app:all", 0) + 1
        tool_context.state["user:me"] = tool_context.state.get("user:me", 0) + 1
        tool_context.state["temp:now"] = "for this turn"
        return "remembered"

    def recall(tool_context: ToolContext) -> JsonObject:
        """Recalls."""
        return {"temp": tool_context.state.get("temp:now"), "all": tool_context.state["app:all"]}

    script = [call("remember"), call("recall"), text("Kept.")]
    return world.flow(world.agent(script, [remember, recall]), {"remember": READ, "recall": READ})


def asker(world: World) -> AgentSessionFlow:
    """A write that waits for approval."""

    def pay(amount: int) -> str:
        """Pays."""
        world.note("pay", amount)
        return "paid"

    return world.flow(world.agent([call("pay", amount=5), text("Done.")], [pay]), {"pay": ASKED})


def silent(world: World) -> AgentSessionFlow:
    """Only answers."""
    return world.flow(world.agent([text("Yes?")]))


@case("sessions/one-turn", "A turn that reads once has the documented steps, messages and events.", talker)
async def one_turn(stage: Stage) -> None:
    turn_id = await stage.start("Where is order 7?", state={"name": "Ann"})
    snapshot = await stage.idle()
    turn = turn_of(snapshot)
    same("the turn", (turn.turn_id, turn.number, turn.status), (turn_id, 1, TurnStatus.COMPLETED))
    same(
        "step names",
        [step.name.value for step in await stage.steps()],
        ["AwaitUserMessage", "RunModel", "CallTool", "ResumeTurn", "RunModel", "AwaitUserMessage"],
    )
    same("the ledger", stage.world.ledger, ["look 7"])
    same("indexes", [message.index for message in await stage.messages()], [0, 1, 2, 3])


@case("sessions/turn-after-turn", "Later turns continue the conversation; the model sees all of it.", talker)
async def turn_after_turn(stage: Stage) -> None:
    await stage.start("one")
    await stage.idle()
    for words in ("two", "three"):
        await stage.send(words)
        await stage.idle()
    snapshot = await stage.idle()
    same("turns", turn_of(snapshot).number, 3)
    same("state", snapshot.state["looks"], 3)
    same("model calls", snapshot.usage.model_calls, 6)


@case("sessions/created-once", "An equal second start is the same session; another one is refused.", silent)
async def created_once(stage: Stage) -> None:
    first = await stage.start("hello", state={"a": 1})
    same("an equal start", await stage.start("hello", state={"a": 1}), first)
    await stage.idle()
    same("an equal start later", await stage.start("hello", state={"a": 1}), first)
    for words, state in (("hello", {"a": 2}), ("hi", {"a": 1}), (None, {"a": 1})):
        with refused(SessionAlreadyExists):
            await stage.start(words, state=state)
    same("one turn", (await stage.idle()).usage.model_calls, 1)


@case("sessions/created-idle", "A session without a message is idle; its first message starts its first turn.", silent)
async def created_idle(stage: Stage) -> None:
    same("no turn", await stage.start(None, state={"a": 1}, user_id="ann"), None)
    snapshot = await stage.idle()
    same("before", (snapshot.turn, snapshot.user_id, snapshot.state), (None, "ann", {"a": 1}))
    turn_id = await stage.send("hello", state_delta={"b": 2})
    snapshot = await stage.idle()
    same("after", (turn_of(snapshot).turn_id, snapshot.state), (turn_id, {"a": 1, "b": 2}))


@case(
    "sessions/request-ids", "A repeat under one request id is done once; another request under it is refused.", silent
)
async def request_ids(stage: Stage) -> None:
    await stage.start(None)
    first = await stage.send("hello", request_id="r1")
    same("a repeat", await stage.send("hello", request_id="r1"), first)
    await stage.idle()
    same("a late repeat", await stage.send("hello", request_id="r1"), first)
    with refused(RequestConflict):
        await stage.send("bye", request_id="r1")
    same("one turn", turn_of(await stage.idle()).number, 1)


@case("sessions/lists", "Sessions are listed by flow, user and status, in pages without gaps or repeats.", asker)
async def lists(stage: Stage) -> None:
    for name, user in (("a", "ann"), ("b", "ben"), ("c", "ann"), ("d", "ann"), ("e", "ben")):
        await stage.start("pay" if name < "c" else None, name, user_id=user)
    await stage.asked(name="a")
    await stage.asked(name="b")
    everything = [each for page in await _pages(stage.client, limit=2) for each in page.items]
    same("all, once", sorted(each.session_id for each in everything), sorted(stage.sessions.values()))
    ann = await stage.client.list_sessions(user_id="ann")
    same("Ann's", len(ann.items), 3)
    waiting = await stage.client.list_sessions(status=SessionStatus.WAITING, user_id="ben")
    same("Ben's that wait", [each.session_id for each in waiting.items], [stage.session("b")])
    same("what it waits for", waiting.items[0].pending_interrupts, 1)
    with refused(UsageError):
        await stage.client.list_sessions(limit=0)


async def _pages(client: AgentSessionClient, limit: int) -> list[Page[SessionSummary]]:
    pages = [await client.list_sessions(limit=limit)]
    while pages[-1].next_cursor is not None:
        pages.append(await client.list_sessions(limit=limit, after=pages[-1].next_cursor))
    return pages


@case(
    "sessions/pages", "Messages and steps are read in pages of any size, with the same items in the same order.", talker
)
async def pages(stage: Stage) -> None:
    await stage.start()
    await stage.idle()
    messages, steps = await stage.messages(), await stage.steps()
    for limit in (1, 3):
        found, page = list[object](), await stage.client.list_messages(stage.session(), limit=limit)
        found += page.items
        while page.next_cursor is not None:
            page = await stage.client.list_messages(stage.session(), limit=limit, after=page.next_cursor)
            holds("a page is not too long", len(page.items) <= limit)
            found += page.items
        same(f"messages by {limit}", found, messages)
    first = await stage.client.read_step_history(stage.session(), limit=4)
    rest = await stage.client.read_step_history(stage.session(), after=first.next_cursor)
    same("steps", [*first.items, *rest.items], steps)


@case("sessions/state", "App, user and session state have their reach; temp state lives for one turn.", keeper)
async def state(stage: Stage) -> None:
    await stage.start(name="s", user_id="ann", state={"user:start": 1, "given": [1]})
    await stage.idle()
    await stage.start(name="same-user", user_id="ann")
    await stage.idle("same-user")
    await stage.start(name="other-user", user_id="ben")
    snapshot = await stage.idle("other-user")
    same("of the app", snapshot.state["app:all"], 3)
    same("of the user", (snapshot.state["user:me"], "user:start" in snapshot.state), (1, False))
    holds("temp state is gone", "temp:now" not in snapshot.state)
    same("of the first user", (await stage.idle("same-user")).state["user:me"], 2)


@case("sessions/closed", "A closed session withdraws what it asks, takes no more, and can be read.", asker)
async def closed(stage: Stage) -> None:
    await stage.start()
    await stage.asked()
    await stage.client.close_session(stage.session())
    snapshot = await stage.rest(SessionStatus.CLOSED)
    same("nothing is asked", snapshot.pending_interrupts, ())
    same("its turn", turn_of(snapshot).status, TurnStatus.CANCELLED)
    await stage.client.close_session(stage.session())
    with refused(SessionClosed):
        await stage.send("more")
    holds("its messages are there", await stage.messages())
    same("nothing was paid", stage.world.ledger, [])


@case("sessions/deleted", "A deleted session is gone, and its id is free.", talker)
async def deleted(stage: Stage) -> None:
    await stage.start("first")
    await stage.idle()
    session_id = stage.session()
    await stage.client.delete_session(session_id)
    for gone in (
        stage.client.get_agent_snapshot,
        stage.client.list_messages,
        stage.client.read_step_history,
        stage.client.delete_session,
        stage.client.close_session,
    ):
        with refused(SessionNotFound):
            await gone(session_id)
    with refused(SessionNotFound):
        await stage.send("more")
    await stage.start("second")
    snapshot = await stage.idle()
    same("it begins anew", (turn_of(snapshot).number, snapshot.state["looks"]), (1, 1))


def sleeper(world: World) -> AgentSessionFlow:
    """Reads for as long as it is let; answers at once what is no question."""

    async def look() -> str:
        """Looks."""
        world.note("look")
        await world.stop_at("looking")
        return "seen"

    script = by_message({"where": [call("look"), text("Here.")]}, otherwise=text("Yes?"))
    return world.flow(world.agent(script, [look]), {"look": READ})


@case(
    "sessions/deleted-while-running",
    "Nothing of a session that is deleted in the middle gets into its successor.",
    sleeper,
)
async def deleted_while_running(stage: Stage) -> None:
    await stage.start("where?")
    await stage.reached("looking")
    await stage.send("queued")
    await stage.client.delete_session(stage.session())
    with refused(SessionNotFound):
        await stage.client.get_agent_snapshot(stage.session())
    await stage.start("hello")
    stage.world.open("looking")
    same("its turns", (await stage.completed()).number, 1)
    await stage.send("hello")
    same("its turns", (await stage.completed()).number, 2)
    same("what was said", await stage.texts(), ["hello", "Yes?"] * 2)


@case("sessions/unknown", "What does not exist is not found, whatever is asked of it.", silent)
async def unknown(stage: Stage) -> None:
    nowhere = stage.session("nowhere")
    for ask in (
        stage.client.get_agent_snapshot,
        stage.client.wait,
        stage.client.list_messages,
        stage.client.read_step_history,
        stage.client.cancel_turn,
        stage.client.close_session,
        stage.client.delete_session,
    ):
        with refused(SessionNotFound):
            await ask(nowhere)
    with refused(SessionNotFound):
        await stage.send("hello", "nowhere")
    with refused(SessionNotFound):
        await stage.client.resolve_interrupt(nowhere, "i", approved=True)
    stage.forget("nowhere")


@case("sessions/many", "Many sessions at once do not mix.", talker)
async def many(stage: Stage) -> None:
    names = [f"s{number}" for number in range(6)]
    for name in names:
        await stage.start(f"I am {name}", name)
    for name in names:
        snapshot = await stage.idle(name)
        same("looks", snapshot.state["looks"], 1)
        same("the conversation", (await stage.texts(name)), [f"I am {name}", "It was delivered."])
    same("all looked", stage.world.ledger, ["look 7"] * len(names))
