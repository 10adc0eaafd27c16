"""Partial recovery: of a super-step that died half-way, only what wasn't done runs again."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deltastore import check
from deltastore.langgraph import DeltaSaver

CHILD = """
import operator, os, signal, sys, time
from typing import Annotated, TypedDict
from langgraph.graph import END, START, StateGraph
from deltastore.langgraph import DeltaSaver

path, ran, resuming = sys.argv[1], sys.argv[2], sys.argv[3] == "resume"
config = {"configurable": {"thread_id": "t"}}


class State(TypedDict):
    done: Annotated[list, operator.add]


def note(name):
    with open(ran, "a") as file:
        file.write(name + "\\n")


def node(name):
    def run(state):
        while name == "e" and not resuming:
            time.sleep(1)  # its turn doesn't come in this process: LangGraph starts all five at once
        note(name)
        if name == "d" and not resuming:
            while (found := saver.get_tuple(config)) is None or len({task for task, *_ in found.pending_writes}) < 3:
                pass  # they are on their way in other OS threads
            os.kill(os.getpid(), signal.SIGKILL)
        return {"done": [name]}

    return run


with DeltaSaver.from_path(path) as saver:
    builder = StateGraph(State)
    for name in "abcde":
        builder.add_node(name, node(name))
        builder.add_edge(START, name)
        builder.add_edge(name, END)
    graph = builder.compile(checkpointer=saver)
    result = graph.invoke(None if resuming else {"done": []}, config, durability=sys.argv[4])
    print("".join(result["done"]))
"""


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_of_five_parallel_nodes_only_the_two_that_were_not_done_run_again(tmp_path: Path, durability: str) -> None:
    """Three were done, one died by SIGKILL, one had not begun: counted in a real file."""
    path, ran = tmp_path / "store.ds", tmp_path / "ran"
    command = [sys.executable, "-c", CHILD, str(path), str(ran)]
    killed = subprocess.run([*command, "first", durability], capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert sorted(ran.read_text().split()) == ["a", "b", "c", "d"]
    ran.unlink()
    resumed = subprocess.run([*command, "resume", durability], capture_output=True, text=True, check=False)
    assert resumed.returncode == 0, resumed.stderr
    assert sorted(ran.read_text().split()) == ["d", "e"]
    assert resumed.stdout.strip() == "abcde"
    with DeltaSaver.from_path(path) as saver:
        assert check(saver.store).ok
