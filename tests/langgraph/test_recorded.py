"""The recorded calls of the bench's workloads, shortened: every answer is InMemorySaver's, whatever the anchors."""

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from bench.digests import differing_parts, hash_answers
from bench.recording import Record, record, replay
from bench.transcripts import missing
from bench.workloads import WORKLOADS
from deltastore import Store
from deltastore.langgraph import DeltaSaver

TURNS = {
    "chat500": 20,
    "chat500_delta": 20,
    "agent50": 6,
    "agent50_delta": 6,
    "edit200": 30,
    "research": 8,
    "research_delta": 8,
    "many": 20,
    "short": 8,
    "transcripts": 6,
}


@cache
def recorded(name: str) -> tuple[Record, dict[str, dict[str, str]]]:
    """Return the calls of a workload, and the digests of InMemorySaver's answers."""
    if reason := missing(name):
        pytest.skip(reason)
    state = random.getstate()
    try:
        trace = record(WORKLOADS[name], TURNS[name])
    finally:
        random.setstate(state)
    reference = InMemorySaver()
    replay(trace, reference)
    return trace, hash_answers(trace, reference, name)


@pytest.mark.parametrize(
    ("open_store", "frequency"), [("memory", 1), ("lmdb", 3), ("memory", 50)], indirect=["open_store"]
)
@pytest.mark.parametrize("name", TURNS)
def test_every_answer_is_the_reference_savers(open_store: Callable[..., Store], name: str, frequency: int) -> None:
    trace, expected = recorded(name)
    saver = DeltaSaver(open_store(snapshot_frequency=frequency))
    replay(trace, saver)
    for opened in (saver, DeltaSaver(open_store(cache_bytes=0))):
        assert differing_parts(expected, hash_answers(trace, opened, name)) == {}
    listed: Any = {found.config["configurable"]["checkpoint_id"] for found in saver.list(None)}
    assert len(listed) == len(expected) == len(trace.checkpoints())


def test_all_workloads_are_here() -> None:
    assert TURNS.keys() == WORKLOADS.keys()
