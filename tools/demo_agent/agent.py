"""The agent: a graph of three nodes, with a state of messages, plan, findings and files.

Steps, as the demo counts them, are the graph's super-steps: in each, one node runs and one checkpoint is stored.
"""

from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AnyMessage, ToolMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph

from demo_agent.library import TOOLS
from demo_agent.model import TOOL_CALLS_PER_TOPIC, TOPICS, ScriptedModel, instruction, stable_id

STEPS_PER_ROUND = 2
"""think, act."""
LAST_STEPS = 2
"""think, conclude."""
SPARE_STEPS = 10
"""Above what a run takes, for LangGraph's limit."""
CONFIG: dict[str, Any] = {"configurable": {"thread_id": "reader"}}
OTHER_TOPICS = ("heaps", "sorted lists")


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    plan: list[dict[str, str]]
    findings: dict[str, dict[str, Any]]
    files: dict[str, str]
    report: str


def rounds_for(steps: int) -> int:
    """Return how many tool calls make a run of at least so many steps."""
    return -(-(steps - LAST_STEPS) // STEPS_PER_ROUND)


def steps_of(rounds: int) -> int:
    return rounds * STEPS_PER_ROUND + LAST_STEPS


def run_config(steps: int) -> dict[str, Any]:
    return CONFIG | {"recursion_limit": steps + SPARE_STEPS}


def first_input(rounds: int) -> dict[str, Any]:
    topics = list(TOPICS)[: -(-rounds // TOOL_CALLS_PER_TOPIC)]
    question = instruction("How is the standard library made?", topics, rounds, stable_id("human", "first"))
    plan = [{"topic": topic, "status": "open"} for topic in topics]
    return {"messages": [question], "plan": plan, "findings": {}, "files": {}, "report": ""}


def other_instruction() -> dict[str, Any]:
    """Return an update of the state that has the agent do something else from there on."""
    rounds = len(OTHER_TOPICS) * TOOL_CALLS_PER_TOPIC
    return {"messages": [instruction("Leave the rest.", OTHER_TOPICS, rounds, stable_id("human", "other"))]}


def build_agent(saver: BaseCheckpointSaver, call_log: Path) -> CompiledStateGraph:
    """Compile the agent. Each execution of a tool adds a line with the call's id to `call_log`."""
    model = ScriptedModel()

    def think(state: State) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    def act(state: State) -> dict[str, Any]:
        (call,) = state["messages"][-1].tool_calls
        with call_log.open("a") as log:
            log.write(f"{call['id']}\n")
        result = TOOLS[call["name"]].invoke(call["args"])
        message_id = stable_id("tool", call["id"])
        message = ToolMessage(result, name=call["name"], tool_call_id=call["id"], id=message_id)
        return {"messages": [message], **learn(state, call, result)}

    def conclude(state: State) -> dict[str, Any]:
        lines = [f"{topic}: {finding['hits']} hits" for topic, finding in state["findings"].items()]
        plan = [item | {"status": "done"} if item["status"] == "looked at" else item for item in state["plan"]]
        return {"report": "\n".join(lines), "plan": plan}

    def after_thinking(state: State) -> str:
        return "act" if state["messages"][-1].tool_calls else "conclude"

    graph = StateGraph(State)
    graph.add_node("think", think)
    graph.add_node("act", act)
    graph.add_node("conclude", conclude)
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", after_thinking, ["act", "conclude"])
    graph.add_edge("act", "think")
    graph.add_edge("conclude", END)
    return graph.compile(checkpointer=saver)


def learn(state: State, call: dict[str, Any], result: str) -> dict[str, Any]:
    """Return what a tool's result changes in the agent's own notes."""
    if call["name"] == "read":
        return {"files": state["files"] | {f"{call['args']['path']}:{call['args']['line']}": result}}
    hits = result.splitlines()
    topic = next(topic for topic, pattern in TOPICS.items() if pattern == call["args"]["pattern"])
    modules = sorted({hit.partition(":")[0] for hit in hits})
    plan = [item | {"status": "looked at"} if item["topic"] == topic else item for item in state["plan"]]
    return {"findings": state["findings"] | {topic: {"hits": len(hits), "modules": modules}}, "plan": plan}
