"""Real agent runs as a workload: τ-bench's airline agent with gpt-4o, 200 runs, 5,308 messages with tool calls.

The data isn't part of this project: it is looked for in DELTASTORE_DATA, else in ../shared/data. A turn is a user's
message and all that the agent and its tools say up to the next one, a checkpoint each.
"""

import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph

TAU = "tau_airline_gpt4o.json"


def data_directory() -> Path:
    """Return where the transcripts are; whether they are there is for the caller to find out."""
    return Path(os.environ.get("DELTASTORE_DATA") or Path(__file__).parents[2] / "shared" / "data")


def message(found: dict[str, Any], id_: str) -> AnyMessage:
    """Return the message object of an OpenAI-shaped dict."""
    content = found["content"] or ""
    match found["role"]:
        case "system":
            return SystemMessage(content, id=id_)
        case "user":
            return HumanMessage(content, id=id_)
        case "tool":
            return ToolMessage(content, id=id_, name=found.get("name"), tool_call_id=_tool_call_id(found))
        case "assistant":
            calls = [
                {"name": call["function"]["name"], "args": _arguments(call["function"]["arguments"]), "id": call["id"]}
                for call in found.get("tool_calls") or ()
            ]
            return AIMessage(
                content,
                id=id_,
                tool_calls=calls,
                additional_kwargs={"refusal": None},
                response_metadata={"model": "gpt-4o"},
            )
    raise ValueError(f"a message of role {found['role']!r}")


def _tool_call_id(found: dict[str, Any]) -> str:
    return found["tool_call_id"] if "tool_call_id" in found else found["tool_call_ids"][0]


def _arguments(text: str | dict[str, Any]) -> dict[str, Any]:
    parsed = json.loads(text) if isinstance(text, str) else text
    if not isinstance(parsed, dict):
        raise TypeError(f"arguments of a tool call of type {type(parsed).__name__}")
    return parsed


def missing(workload: str) -> str | None:
    """Return what a workload lacks here; None where it can be run."""
    if workload == "transcripts" and not (data_directory() / TAU).exists():
        return "the real transcripts aren't beside the project"
    return None


@cache
def tau_threads(data: Path) -> dict[str, list[AnyMessage]]:
    """Return the messages of each run."""
    runs = json.loads((data / TAU).read_text())
    return {
        f"tau-{number}-task-{run['task_id']}-trial-{run['trial']}": [
            message(found, f"{number}-{place}") for place, found in enumerate(run["traj"])
        ]
        for number, run in enumerate(runs)
    }


def build_transcripts(messages: Any) -> StateGraph:
    """Return a graph that says again what was said in the thread that it runs."""

    def rest(state: dict[str, Any], config: RunnableConfig) -> list[AnyMessage]:
        said = tau_threads(data_directory())[config["configurable"]["thread_id"]]
        return said[len(state["messages"]) :]

    def speak(state: dict[str, Any], config: RunnableConfig) -> dict[str, Any]:
        return {"messages": rest(state, config)[:1]}

    def route(state: dict[str, Any], config: RunnableConfig) -> str:
        left = rest(state, config)
        if not left or isinstance(left[0], HumanMessage):
            return END
        return "tools" if isinstance(left[0], ToolMessage) else "agent"

    graph = StateGraph(TypedDict("TranscriptState", {"messages": messages}))  # type: ignore[operator]
    graph.add_node("agent", speak)
    graph.add_node("tools", speak)
    for source in (START, "agent", "tools"):
        graph.add_conditional_edges(source, route, ["agent", "tools", END])
    return graph


def transcript_invocations(turns: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield what users said, run after run; `turns` counts runs."""
    for name, messages in list(tau_threads(data_directory()).items())[:turns]:
        waiting: list[AnyMessage] = []
        for said in messages:
            if isinstance(said, SystemMessage | HumanMessage):
                waiting.append(said)
            elif waiting:
                yield {"configurable": {"thread_id": name}}, {"messages": waiting}
                waiting = []
        if waiting:
            yield {"configurable": {"thread_id": name}}, {"messages": waiting}
