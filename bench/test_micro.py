"""Single calls of DeltaSaver, by pytest-benchmark: `tools/bench --micro`. Not part of the tests.

A thread's first and its thousandth message, so that a change that makes either dearer is seen in seconds.
"""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from bench.text import prose
from deltastore.langgraph import DeltaSaver

MESSAGE_BYTES = 500
LONG = 1_000
"""Messages of the long conversation."""


class Conversation:
    """A thread that can be put to again and again, each time after the checkpoint put last."""

    def __init__(self, saver: DeltaSaver, messages: int) -> None:
        chance = random.Random("micro")
        self.saver = saver
        self.messages = [HumanMessage(prose(chance, MESSAGE_BYTES), id=f"{place}") for place in range(messages)]
        self.numbers = itertools.count()
        self.config: Any = {"configurable": {"thread_id": f"of {messages}", "checkpoint_ns": ""}}
        self.put()

    def put(self) -> None:
        """Put a checkpoint whose last message is another."""
        number = next(self.numbers)
        id_ = f"{number:06}"
        self.messages[-1] = HumanMessage(f"the answer is {number}", id=f"answer {number}")
        made: Any = {
            "v": 4,
            "id": id_,
            "ts": "2026-01-01T00:00:00+00:00",
            "channel_values": {"messages": list(self.messages), "count": number},
            "channel_versions": {"messages": id_, "count": id_},
            "versions_seen": {"model": {"messages": id_}},
        }
        metadata: Any = {"source": "loop", "step": number, "parents": {}}
        self.config = self.saver.put(self.config, made, metadata, {"messages": id_, "count": id_})

    def latest(self) -> Any:
        thread = {"thread_id": self.config["configurable"]["thread_id"], "checkpoint_ns": ""}
        return {"configurable": thread}


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[DeltaSaver]:
    with DeltaSaver.from_path(tmp_path / "store.ds") as saver:
        yield saver


@pytest.mark.parametrize("messages", [1, LONG])
def test_put(benchmark: Any, saver: DeltaSaver, messages: int) -> None:
    benchmark(Conversation(saver, messages).put)


def test_get_latest(benchmark: Any, saver: DeltaSaver) -> None:
    conversation = Conversation(saver, LONG)
    found = benchmark(saver.get_tuple, conversation.latest())
    assert len(found.checkpoint["channel_values"]["messages"]) == LONG


def test_list_10(benchmark: Any, saver: DeltaSaver) -> None:
    conversation = Conversation(saver, LONG)
    for _ in range(20):
        conversation.put()
    found = benchmark(lambda: list(saver.list(conversation.latest(), limit=10)))
    assert len(found) == 10
