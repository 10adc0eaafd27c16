"""The workloads: deterministic LangGraph graphs, and the inputs that drive them.

A node's output depends on its input state alone (random generators are seeded
with message ids), so every saver is driven with the same states.
"""

import copy
import json
import random
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Annotated, Any, NamedTuple, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import _messages_delta_reducer, add_messages
from langgraph.types import Send

from bench.text import prose, seeded_uuid
from bench.transcripts import build_transcripts, transcript_invocations

Invocation = tuple[dict[str, Any], dict[str, Any]]


class Workload(NamedTuple):
    """A graph to compile, and the (config, input) pairs to invoke it with."""

    build: Callable[[], StateGraph]
    invocations: Callable[[int], Iterator[Invocation]]
    turns: int
    summary: str


def delta_channels(workload: Workload) -> dict[str, DeltaChannel]:
    channels = workload.build().channels
    return {name: channel for name, channel in channels.items() if isinstance(channel, DeltaChannel)}


# --- messages -----------------------------------------------------------------

FULL_MESSAGES = Annotated[list[AnyMessage], add_messages]
DELTA_MESSAGES = Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer, snapshot_frequency=50)]


def human_message(seed: str, size: int) -> HumanMessage:
    rng = random.Random(f"human {seed}")
    return HumanMessage(content=prose(rng, size), id=seeded_uuid(rng))


def ai_message(seed: str, size: int, tool_calls: tuple[dict, ...] = ()) -> AIMessage:
    """Return a message with the ids and the metadata that a chat model's answer has."""
    rng = random.Random(f"ai {seed}")
    tokens_in, tokens_out = rng.randint(500, 90_000), size // 4 + rng.randint(1, 40)
    usage = {
        "input_tokens": tokens_in,
        "output_tokens": tokens_out,
        "total_tokens": tokens_in + tokens_out,
        "input_token_details": {"audio": 0, "cache_read": rng.randint(0, tokens_in)},
        "output_token_details": {"audio": 0, "reasoning": 0},
    }
    return AIMessage(
        content=prose(rng, size),
        id=f"lc_run--{seeded_uuid(rng)}",
        tool_calls=list(tool_calls),
        response_metadata={
            "token_usage": {"prompt_tokens": tokens_in, "completion_tokens": tokens_out},
            "model_provider": "fake",
            "model_name": "fake-model-2026-01-01",
            "system_fingerprint": "fp_44709d6fcb",
            "id": f"chatcmpl-{rng.getrandbits(160):040x}",
            "finish_reason": "tool_calls" if tool_calls else "stop",
            "logprobs": None,
        },
        usage_metadata=usage,
    )


def thread(thread_id: str, **metadata: str) -> dict[str, Any]:
    config: dict[str, Any] = {"configurable": {"thread_id": thread_id}}
    return config | ({"metadata": metadata} if metadata else {})


# --- chat: a long conversation that only grows ---------------------------------

HUMAN_SIZE, AI_SIZE = 4_000, 12_000
SHORT_SIZE, SHORT_TURNS = 300, 10
TENANTS = 20


def build_chat(messages: Any, answer_size: int = AI_SIZE) -> StateGraph:
    def model(state: dict) -> dict:
        return {"messages": [ai_message(state["messages"][-1].id, answer_size)]}

    graph = StateGraph(TypedDict("ChatState", {"messages": messages}))
    graph.add_node(model)
    graph.add_edge(START, "model")
    graph.add_edge("model", END)
    return graph


def short_invocations(turns: int) -> Iterator[Invocation]:
    for number in range(turns):
        for turn in range(SHORT_TURNS):
            yield (
                thread(f"short-{number}", tenant=f"tenant-{number % TENANTS}"),
                {"messages": [human_message(f"short {number} {turn}", SHORT_SIZE)]},
            )


def chat_invocations(turns: int) -> Iterator[Invocation]:
    for turn in range(turns):
        yield thread("chat"), {"messages": [human_message(f"chat {turn}", HUMAN_SIZE)]}


# --- agent: tools in parallel, a plan, a scratchpad, retrieved documents --------

DOCUMENTS, DOCUMENT_SIZE, ROUNDS_PER_RETRIEVAL, FRESH_DOCUMENTS = 20, 3_000, 5, 5


@lru_cache(maxsize=256)
def _document(number: int) -> tuple[str, str]:
    rng = random.Random(f"document {number}")
    return prose(rng, 60), prose(rng, DOCUMENT_SIZE)


def retrieve(round_: int) -> list[dict[str, Any]]:
    """Return ranked documents, of which a quarter is new at each retrieval."""
    rng = random.Random(f"retrieval {round_}")
    first = round_ // ROUNDS_PER_RETRIEVAL * FRESH_DOCUMENTS
    found = []
    for number in rng.sample(range(first, first + DOCUMENTS), DOCUMENTS):
        title, content = _document(number)
        found.append({"id": f"doc-{number:05}", "title": title, "content": content, "score": rng.random()})
    return sorted(found, key=lambda document: -document["score"])


def tool_result(rng: random.Random, least: int = 2_000, most: int = 10_000) -> str:
    """Return a JSON text of so many characters, about."""
    size = rng.randint(least, most)
    rows: list[dict[str, Any]] = []
    while len(rows) * 420 < size:
        rows.append(
            {
                "id": rng.getrandbits(48),
                "title": prose(rng, 50),
                "score": round(rng.random(), 6),
                "snippet": prose(rng, 260),
                "tags": [prose(rng, 8).strip().lower() for _ in range(3)],
            }
        )
    return json.dumps({"ok": True, "count": len(rows), "rows": rows})


def revise_plan(plan: list[dict], rng: random.Random) -> list[dict]:
    """Rewrite steps in the middle; append one now and then."""
    plan = [dict(step) for step in plan] or [
        {"step": number, "goal": prose(rng, 120), "status": "open"} for number in range(12)
    ]
    middle = rng.randrange(2, len(plan) - 2)
    plan[middle : middle + 2] = [
        {"step": step["step"], "goal": prose(rng, 120), "status": rng.choice(("open", "active", "done"))}
        for step in plan[middle : middle + 2]
    ]
    if rng.random() < 0.2:
        plan.append({"step": len(plan), "goal": prose(rng, 120), "status": "open"})
    return plan


def build_agent(messages: Any) -> StateGraph:
    def plan(state: dict) -> dict:
        round_ = state["round"]
        rng = random.Random(f"plan {round_}")
        update: dict[str, Any] = {
            "plan": revise_plan(state.get("plan", []), rng),
            "scratchpad": state.get("scratchpad", {}) | {"round": round_, f"note_{round_ % 8}": prose(rng, 200)},
        }
        if round_ % ROUNDS_PER_RETRIEVAL == 0:
            update["documents"] = retrieve(round_)
        return update

    def model(state: dict) -> dict:
        seed = state["messages"][-1].id
        rng = random.Random(f"tool calls {seed}")
        calls = tuple(
            {"name": name, "args": {"query": prose(rng, 80), "limit": 10}, "id": f"call_{rng.getrandbits(96):024x}"}
            for name in ("search", "lookup")
        )
        return {"messages": [ai_message(seed, 200, calls)]}

    def call_tools(state: dict) -> list[Send]:
        return [Send("tool", call) for call in state["messages"][-1].tool_calls]

    def tool(call: dict) -> dict:
        rng = random.Random(f"tool {call['id']}")
        return {
            "messages": [
                ToolMessage(
                    content=tool_result(rng),
                    name=call["name"],
                    tool_call_id=call["id"],
                    id=seeded_uuid(rng),
                )
            ]
        }

    def answer(state: dict) -> dict:
        seed = state["messages"][-1].id
        used = [message.tool_call_id for message in state["messages"][-2:]]
        return {
            "messages": [ai_message(f"answer {seed}", 2_000)],
            "scratchpad": state["scratchpad"] | {"last_calls": used},
        }

    graph = StateGraph(
        TypedDict(
            "AgentState",
            {
                "messages": messages,
                "round": int,
                "plan": list,
                "scratchpad": dict,
                "documents": list,
            },
        )
    )
    for node in (plan, model, tool, answer):
        graph.add_node(node)
    graph.add_edge(START, "plan")
    graph.add_edge("plan", "model")
    graph.add_conditional_edges("model", call_tools, ["tool"])
    graph.add_edge("tool", "answer")
    graph.add_edge("answer", END)
    return graph


def agent_invocations(turns: int) -> Iterator[Invocation]:
    for round_ in range(turns):
        yield thread("agent"), {"messages": [human_message(f"agent {round_}", 600)], "round": round_}


# --- edit: a large nested value, changed in a few random places ----------------

SECTIONS, ITEMS, STEPS_PER_SUMMARY = 40, 16, 40


def _item(rng: random.Random) -> dict[str, Any]:
    return {"id": rng.getrandbits(32), "text": prose(rng, 220), "tags": ["draft", prose(rng, 10)], "revision": 0}


def first_document() -> dict[str, Any]:
    rng = random.Random("first document")
    return {
        "title": prose(rng, 60),
        "sections": {
            f"section-{number:02}": {"heading": prose(rng, 40), "items": [_item(rng) for _ in range(ITEMS)]}
            for number in range(SECTIONS)
        },
    }


def edit_document(document: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return the document with three to six small edits in random places."""
    document = copy.deepcopy(document)
    for _ in range(rng.randint(3, 6)):
        items = document["sections"][f"section-{rng.randrange(SECTIONS):02}"]["items"]
        place = rng.randrange(len(items))
        match rng.choice(("word", "word", "word", "tag", "insert", "delete")):
            case "word":
                words = items[place]["text"].split(" ")
                words[rng.randrange(len(words))] = prose(rng, 9)
                items[place]["text"] = " ".join(words)
                items[place]["revision"] += 1
            case "tag":
                items[place]["tags"] = [rng.choice(("draft", "final", "stale")), prose(rng, 10)]
            case "insert":
                items.insert(place, _item(rng))
            case "delete" if len(items) > 4:
                del items[place]
    return document


def build_edit() -> StateGraph:
    def edit(state: dict) -> dict:
        seed = state["messages"][-1].id
        document = state.get("document") or first_document()
        return {
            "document": edit_document(document, random.Random(f"edit {seed}")),
            "messages": [ai_message(seed, 500)],
        }

    def summary_due(state: dict) -> str:
        return "summarise" if state["step"] % STEPS_PER_SUMMARY == STEPS_PER_SUMMARY - 1 else END

    def summarise(state: dict) -> dict:
        """Put a summary in place of the first half of the messages."""
        old = state["messages"][: len(state["messages"]) // 2]
        rng = random.Random(f"summary {old[-1].id}")
        # Taking the first message's id over puts the summary in its place.
        return {
            "messages": [SystemMessage(content=prose(rng, 1_500), id=old[0].id)]
            + [RemoveMessage(id=message.id) for message in old[1:]]
        }

    graph = StateGraph(TypedDict("EditState", {"messages": FULL_MESSAGES, "document": dict, "step": int}))
    graph.add_node(edit)
    graph.add_node(summarise)
    graph.add_edge(START, "edit")
    graph.add_conditional_edges("edit", summary_due, ["summarise", END])
    graph.add_edge("summarise", END)
    return graph


def edit_invocations(turns: int) -> Iterator[Invocation]:
    for step in range(turns):
        yield thread("edit"), {"messages": [human_message(f"edit {step}", 300)], "step": step}


# --- many: short threads of several tenants ------------------------------------


def build_many() -> StateGraph:
    def look_up(state: dict) -> dict:
        rng = random.Random(f"profile {state['messages'][-1].id}")
        return {"profile": {"name": prose(rng, 20), "score": rng.random(), "flags": [rng.getrandbits(8)]}}

    def model(state: dict) -> dict:
        return {"messages": [ai_message(state["messages"][-1].id, 400)]}

    def close(_state: dict) -> dict:
        return {"status": "closed"}

    graph = StateGraph(TypedDict("ManyState", {"messages": FULL_MESSAGES, "profile": dict, "status": str}))
    graph.add_sequence([look_up, model, close])
    graph.add_edge(START, "look_up")
    return graph


def many_invocations(turns: int) -> Iterator[Invocation]:
    for number in range(turns):
        yield (
            thread(f"thread-{number}", tenant=f"tenant-{number % TENANTS}"),
            {"messages": [human_message(f"many {number}", 150)]},
        )


# --- research: LangChain's published "workload A", a light coding and search agent ----------------------

KILOBYTE, LARGE_RESULT, TURNS_PER_LARGE_RESULT = 1024, 82 * 1024, 10


def _merge(left: dict | None, right: dict | None) -> dict:
    return {**(left or {}), **(right or {})}


def _merge_all(left: dict | None, writes: list[dict | None]) -> dict:
    merged = dict(left or {})
    for write in writes:
        merged.update(write or {})
    return merged


FULL_FILES = Annotated[dict, _merge]
DELTA_FILES = Annotated[dict, DeltaChannel(_merge_all, snapshot_frequency=50)]


def _file(text: str) -> dict[str, Any]:
    return {"content": [text], "created_at": "2026-05-12T00:00:00+00:00", "modified_at": "2026-05-12T00:00:00+00:00"}


def _turn(messages: list[AnyMessage]) -> tuple[int, int]:
    """Return which turn this is, and how many tools have answered in it."""
    answered = 0
    for message in reversed(messages):
        if isinstance(message, HumanMessage):
            return int(str(message.id)[1:]), answered
        answered += isinstance(message, ToolMessage)
    raise ValueError("no turn has begun")


def build_research(messages: Any, files: Any) -> StateGraph:
    def words(kind: str, turn: int, size: int) -> str:
        return prose(random.Random(f"{kind} {turn}"), size)

    def model(state: dict) -> dict:
        turn, answered = _turn(state["messages"])
        if answered == 0:
            written = {"file_path": f"/w/t{turn}.txt", "content": words("written", turn, KILOBYTE)}
            call = {"id": f"cw{turn}", "name": "write_file", "args": written}
        elif answered == 1:
            call = {"id": f"cs{turn}", "name": "external_search", "args": {"query": f"topic {turn}"}}
        else:
            return {"messages": [AIMessage(content=f"Turn {turn} complete.", id=f"ai{turn}c")]}
        return {"messages": [AIMessage(content="", id=f"ai{turn}{'ab'[answered]}", tool_calls=[call])]}

    def tools(state: dict) -> dict:
        turn, answered = _turn(state["messages"])
        if answered == 0:
            content, files = f"Updated file /w/t{turn}.txt", {f"/w/t{turn}.txt": words("written", turn, KILOBYTE)}
        elif turn % TURNS_PER_LARGE_RESULT == 0:
            content = "Tool result too large, saved. " + words("stub", turn, 2 * KILOBYTE)
            files = {f"/large_tool_results/cs{turn}": words("large", turn, LARGE_RESULT)}
        else:
            content, files = f"Results for 'topic {turn}':\n\n" + words("found", turn, KILOBYTE), {}
        call = state["messages"][-1].tool_calls[0]
        answer = ToolMessage(content, tool_call_id=call["id"], id=f"tm{turn}{'ab'[answered]}")
        update: dict[str, Any] = {"messages": [answer]}
        return update | ({"files": {name: _file(text) for name, text in files.items()}} if files else {})

    def route(state: dict) -> str:
        return "tools" if state["messages"][-1].tool_calls else "after"

    graph = StateGraph(TypedDict("ResearchState", {"messages": messages, "files": files}))
    graph.add_node("before", lambda _state: {})
    graph.add_node("model", model)
    graph.add_node("tools", tools)
    graph.add_node("after", lambda _state: {})
    graph.add_edge(START, "before")
    graph.add_edge("before", "model")
    graph.add_conditional_edges("model", route, ["tools", "after"])
    graph.add_edge("tools", "model")
    graph.add_edge("after", END)
    return graph


def research_invocations(turns: int) -> Iterator[Invocation]:
    for turn in range(turns):
        ask = HumanMessage(f"Research topic {turn} and write your findings.", id=f"h{turn}")
        yield thread("research"), {"messages": [ask]}


WORKLOADS: dict[str, Workload] = {
    "chat500": Workload(
        partial(build_chat, FULL_MESSAGES),
        chat_invocations,
        500,
        "A conversation with 16 KB of new message text a turn, add_messages",
    ),
    "chat500_delta": Workload(
        partial(build_chat, DELTA_MESSAGES), chat_invocations, 500, "chat500 with DeltaChannel(snapshot_frequency=50)"
    ),
    "agent50": Workload(
        partial(build_agent, FULL_MESSAGES),
        agent_invocations,
        50,
        "An agent with two parallel tools, a plan, a scratchpad and 60 KB of documents",
    ),
    "agent50_delta": Workload(
        partial(build_agent, DELTA_MESSAGES),
        agent_invocations,
        50,
        "agent50 with DeltaChannel(snapshot_frequency=50) for the messages",
    ),
    "edit200": Workload(
        build_edit, edit_invocations, 200, "Small random edits of a 200 KB nested value, a summary every 40 steps"
    ),
    "research": Workload(
        partial(build_research, FULL_MESSAGES, FULL_FILES),
        research_invocations,
        500,
        "LangChain's workload A with words as payload: files and messages, 9 checkpoints a turn",
    ),
    "research_delta": Workload(
        partial(build_research, DELTA_MESSAGES, DELTA_FILES),
        research_invocations,
        500,
        "research with DeltaChannel(snapshot_frequency=50) for messages and files",
    ),
    "short": Workload(
        partial(build_chat, FULL_MESSAGES, SHORT_SIZE),
        short_invocations,
        200,
        "Threads of 10 turns, two messages of 300 characters each",
    ),
    "transcripts": Workload(
        partial(build_transcripts, FULL_MESSAGES), transcript_invocations, 200, "Real runs of τ-bench's airline agent"
    ),
    "many": Workload(build_many, many_invocations, 2_000, "Threads of 5 checkpoints, of 20 tenants"),
}
