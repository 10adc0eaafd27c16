"""Real agent transcripts, message by message: every historic checkpoint of every thread is what InMemorySaver gives.

τ-bench airline, gpt-4o (200 runs, 5,308 messages with tool calls) and two runs of SWE-agent. One checkpoint a message,
as a graph makes them. Skipped where the data isn't beside the project.
"""

import json
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage
from langgraph.checkpoint.memory import InMemorySaver

import deltastore
from bench.transcripts import message, tau_threads
from deltastore.langgraph import DeltaSaver
from tests.langgraph.comparing import assert_same, config, difference

SWE_AGENT = ("swe_agent_ctf_web.traj", "swe_agent_marshmallow_1867.traj")
EVERY = {"quick": 4, "ci": 1, "deep": 1}
"""One in this many runs of τ-bench is compared, by profile, chosen by chance."""
FULL_TUPLES_EVERY = 8
"""One in this many checkpoints is compared as a whole with InMemorySaver's, which decodes all messages for each."""


def swe_agent_threads(data: Path) -> dict[str, list[AnyMessage]]:
    return {
        name: [
            message(found, f"{place}") for place, found in enumerate(json.loads((data / name).read_text())["history"])
        ]
        for name in SWE_AGENT
    }


def puts(thread: str, messages: list[AnyMessage]) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Yield the puts of a run."""
    parent = None
    for step in range(len(messages)):
        version = f"{step + 1:032}.{step * 7919 % 10000:016}"
        id_ = f"{step:06}"
        made = {
            "v": 4,
            "id": id_,
            "ts": "2026-11-29T00:00:00+00:00",
            "channel_values": {"messages": messages[: step + 1]},
            "channel_versions": {"messages": version},
            "versions_seen": {"agent": {"messages": version}},
            "updated_channels": ["messages"],
        }
        yield config(thread, parent), made, {"source": "loop", "step": step, "parents": {}}, {"messages": version}
        parent = id_


def check_threads(threads: dict[str, list[AnyMessage]], path: Path) -> int:
    """Put all threads on both savers, reopen, compare every checkpoint; return the bytes on disk."""
    reference = InMemorySaver()
    with DeltaSaver.from_path(path, sync="none") as saver:
        for thread, messages in threads.items():
            for call in puts(thread, messages):
                assert saver.put(*call) == reference.put(*call)
    size = sum(file.stat().st_blocks * 512 for file in path.rglob("*"))
    with DeltaSaver.from_path(path, sync="none") as saver:
        for thread, messages in threads.items():
            # what the reference gives for the whole run; a prefix of it is what it gives for an earlier checkpoint
            whole = reference.get_tuple(config(thread))
            assert whole is not None
            expected = whole.checkpoint["channel_values"]["messages"]
            assert len(expected) == len(messages)
            places = set(range(0, len(messages), FULL_TUPLES_EVERY)) | {len(messages) - 1}
            for step in range(len(messages)):
                where = config(thread, f"{step:06}")
                actual = saver.get_tuple(where)
                assert actual is not None
                if step in places:
                    assert_same(reference.get_tuple(where), actual)
                found = difference({"messages": expected[: step + 1]}, actual.checkpoint["channel_values"])
                assert found is None, f"{thread}, step {step}: {found}"
            listed = [found.checkpoint["id"] for found in islice(saver.list(config(thread)), 3)]
            assert listed == [f"{step:06}" for step in range(len(messages))][-1:-4:-1]
        report = deltastore.check(saver.store)
        assert report.ok, report.problems
        assert report.checkpoints == sum(map(len, threads.values()))
        assert report.threads == len(threads)
    return size


def test_tau_bench(
    shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    every, seed = EVERY[request.config.getoption("--profile")], random.SystemRandom().randrange(2**32)
    threads = tau_threads(shared_data)
    messages = [one for found in threads.values() for one in found]
    calls = sum(len(one.tool_calls) for one in messages if isinstance(one, AIMessage))
    assert (len(threads), len(messages), calls) == (200, 5308, 1164)
    print(f"seed {seed}")
    chosen = random.Random(seed).sample(sorted(threads), len(threads) // every)
    threads = {name: threads[name] for name in chosen}
    size = check_threads(threads, tmp_path / "store.ds")
    checkpoints = sum(map(len, threads.values()))
    with capsys.disabled():
        print(f"\n  tau airline: {len(threads)} threads, {checkpoints:,} checkpoints: {size:,} bytes on disk")


def test_swe_agent(shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = swe_agent_threads(shared_data)
    assert [len(found) for found in threads.values()] == [43, 28]
    size = check_threads(threads, tmp_path / "store.ds")
    with capsys.disabled():
        print(f"\n  SWE-agent: {len(threads)} threads, 71 checkpoints: {size:,} bytes on disk")
