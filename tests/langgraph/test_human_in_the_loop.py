"""Approvals that outlive their process: some are given, the thread is pruned, the process killed, the rest follow."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deltastore import check
from deltastore.langgraph import DeltaSaver

CHILD = """
import sys
from typing import Annotated, TypedDict
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import _messages_delta_reducer, add_messages
from langgraph.types import Command, Send, interrupt
from deltastore.langgraph import DeltaSaver

path, ran, part, kind, durability = sys.argv[1:]
config = {"configurable": {"thread_id": "t"}}
messages = {
    "ordinary": Annotated[list[AnyMessage], add_messages],
    "delta": Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer, snapshot_frequency=1000)],
}
State = TypedDict("State", {"messages": messages[kind]})


def note(what):
    with open(ran, "a") as file:
        file.write(what + "\\n")


def model(state):
    if len(state["messages"]) > 1:
        note("model again")
        return {"messages": [AIMessage("done", id="last")]}
    note("model")
    calls = [{"name": "pay", "args": {"to": to}, "id": to, "type": "tool_call"} for to in ("ann", "bob", "cy")]
    return {"messages": [AIMessage("", id="calls", tool_calls=calls)]}


def tool(call):
    if not interrupt(call["id"]):
        return {"messages": [ToolMessage("refused", tool_call_id=call["id"], id=call["id"])]}
    note("paid " + call["id"])
    return {"messages": [ToolMessage("paid " + call["id"], tool_call_id=call["id"], id=call["id"])]}


def route(state):
    last = state["messages"][-1]
    return [Send("tool", call) for call in last.tool_calls] if getattr(last, "tool_calls", None) else END


def open_interrupts():
    return {one.value: one.id for one in graph.get_state(config).interrupts}


saver = DeltaSaver.from_path(path, snapshot_frequency=3)
builder = StateGraph(State)
builder.add_node("model", model)
builder.add_node("tool", tool)
builder.add_edge(START, "model")
builder.add_conditional_edges("model", route, ["tool", END])
builder.add_edge("tool", "model")
graph = builder.compile(checkpointer=saver)
if part == "first":
    graph.invoke({"messages": [HumanMessage("pay all", id="in")]}, config, durability=durability)
    asked = open_interrupts()
    assert sorted(asked) == ["ann", "bob", "cy"], asked
    graph.invoke(Command(resume={asked["bob"]: True}), config, durability=durability)
    left = open_interrupts()
    saver.prune(["t"])
    assert open_interrupts() == left == {name: asked[name] for name in ("ann", "cy")}, (left, open_interrupts())
    print("pruned", flush=True)
    sys.stdin.read()  # until killed
else:
    asked = open_interrupts()
    assert sorted(asked) == ["ann", "cy"], asked
    graph.invoke(Command(resume={asked["cy"]: False}), config, durability=durability)
    saver.prune(["t"])
    result = graph.invoke(Command(resume={open_interrupts()["ann"]: True}), config, durability=durability)
    assert graph.get_state(config).values == result
    assert graph.get_state(config).next == ()
    saver.prune(["t"])
    assert graph.get_state(config).values == result
    print("|".join(f"{one.type} {one.content}" for one in result["messages"]))
    saver.close()
"""


@pytest.mark.parametrize(
    ("kind", "durability"), [("ordinary", "async"), ("delta", "sync"), ("delta", "async"), ("delta", "exit")]
)
def test_approvals_survive_pruning_and_a_killed_process(tmp_path: Path, kind: str, durability: str) -> None:
    """Of three tool calls that wait, one is answered, then the process dies; no tool runs twice, none is forgotten."""
    path, ran = tmp_path / "store.ds", tmp_path / "ran"

    def command(part: str) -> list[str]:
        return [sys.executable, "-c", CHILD, os.fspath(path), os.fspath(ran), part, kind, durability]

    with subprocess.Popen(
        command("first"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        assert first.stderr is not None
        told = first.stdout.readline()
        assert told == "pruned\n", first.stderr.read()
        first.send_signal(signal.SIGKILL)
        assert first.wait(30) == -signal.SIGKILL
    assert ran.read_text().split("\n") == ["model", "paid bob", ""]
    with DeltaSaver.from_path(path) as saver:
        report = check(saver.store)
        assert report.ok, report.problems
        assert report.checkpoints == 1
    second = subprocess.run(command("second"), capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 0, second.stderr
    assert ran.read_text().split("\n") == ["model", "paid bob", "paid ann", "model again", ""]
    assert second.stdout.strip() == "human pay all|ai |tool paid ann|tool paid bob|tool refused|ai done"
    with DeltaSaver.from_path(path) as saver:
        report = check(saver.store)
        assert report.ok, report.problems
