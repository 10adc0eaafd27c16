"""An anchor costs bytes by the number of puts it sums up, never by the size of the state.

Measured from the stored rows: an anchor's bytes are those of its record as it stands in a row of its own, or what it
adds to the pack that holds it, against all keys and rows of the store. Random text of a skewed vocabulary compresses
about as conversations do.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import deltastore
from deltastore import Store, check
from deltastore.codec.primitives import unseal
from deltastore.codec.recordrow import RecordRow, decode_row, encode_pack
from deltastore.codec.records import Record, encode_record
from deltastore.log import keys, policy
from tests.raw import rows_of


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with deltastore.open(tmp_path / "store.ds", sync="none", snapshot_frequency=50) as store:
        yield store
        report = check(store)
        assert report.ok, report.problems


class Writer:
    """Messages of about 350 bytes, and small changes of another channel."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.words = [
            "".join(self.chance.choices("etaoinshrdlucmfwypvbg", k=self.chance.randint(2, 9))) for _ in range(3000)
        ]

    def text(self, size: int) -> str:
        words: list[str] = []
        while size > 0:
            words.append(self.words[min(int(self.chance.expovariate(1 / 200)), 2999)])
            size -= len(words[-1]) + 1
        return " ".join(words)

    def message(self) -> dict[str, Any]:
        return {
            "role": self.chance.choice(["user", "assistant", "tool"]),
            "content": self.text(self.chance.randint(200, 420)),
        }


def measure(store: Store) -> tuple[list[int], list[int], int]:
    """Return the sizes of all anchors and of all other records, oldest first, and the bytes of all keys and rows."""
    content = rows_of(store.log.storage)
    anchors: list[int] = []
    deltas: list[int] = []
    for key, row in content.items():
        if key.startswith(keys.records(1, 1)):
            for record in decode_row(unseal(key, row), key[-16:], None).records:
                (anchors if record.is_anchor else deltas).append(_size(record))
    return anchors, deltas, sum(len(key) + len(row) for key, row in content.items())


def _size(record: Record) -> int:
    return len(encode_record(record))


def anchors_as_stored(store: Store) -> int:
    """Return what all anchors take where they stand: their rows, or by how much they make their packs longer."""
    taken = 0
    for key, row in rows_of(store.log.storage).items():
        if not key.startswith(keys.records(1, 1)):
            continue
        found = decode_row(unseal(key, row), key[-16:], None)
        if found.packed:
            deltas = [place for place, record in enumerate(found.records) if not record.is_anchor]
            without = RecordRow(True, *(tuple(of[n] for n in deltas) for of in (found.ulids, found.records)), {})
            taken += len(encode_pack(found)) - len(encode_pack(without))
        elif found.records[0].is_anchor:
            taken += len(key) + len(row)
    return taken


def test_three_thousand_messages_in_4500_checkpoints(store: Store) -> None:
    writer = Writer(1)
    thread = store.thread("t")
    plain = 0
    for number in range(4500):
        if number % 3 == 2:
            thread.append({"plan": {"step": number, "note": writer.text(40)}})
        else:
            message = writer.message()
            plain += len(str(message))
            thread.append({"messages": [message]})
    anchors, deltas, stored = measure(store)
    assert (len(anchors), len(deltas)) == (90, 4410)
    assert 330 < plain / 3000 < 370
    beyond = sum(anchors) - len(anchors) * sum(deltas) / len(deltas)  # what anchors take more than deltas would
    print(f"{stored} bytes stored, anchors {sum(anchors)}, {beyond:.0f} more than deltas, the last {anchors[-1]}")
    assert beyond < 0.01 * stored
    assert anchors_as_stored(store) < 0.01 * stored
    assert len(thread.state()["messages"]) == 3000


def test_messages_and_other_channels_in_no_order(store: Store) -> None:
    """Which channel a put wrote can't be told from the put before: an anchor must say it, in 1/5 byte a put."""
    writer = Writer(2)
    thread = store.thread("t")
    for number in range(1500):
        if writer.chance.random() < 1 / 3:
            thread.append({"plan": {"step": number, "note": writer.text(40)}})
        else:
            thread.append({"messages": [writer.message()]})
    anchors, _, stored = measure(store)
    print(f"{stored} bytes stored, anchors {sum(anchors)}, the last {anchors[-1]}")
    assert anchors[-1] < 100 + 1500 / 4
    assert sum(anchors) < 0.05 * stored


def test_a_million_tiny_elements_in_a_thousand_appends(store: Store) -> None:
    thread = store.thread("t")
    for number in range(1000):
        thread.append({"n": list(range(number * 1000, number * 1000 + 1000)), "step": number})
    anchors, deltas, _ = measure(store)
    assert 20 <= len(anchors) <= 20 + 1000 / 16  # by frequency, and before that by size
    assert max(anchors) < 10_000
    assert sum(anchors) < 2 * sum(deltas)
    print(f"the largest anchor: {max(anchors)} bytes")
    assert thread.state()["n"] == list(range(1_000_000))


def test_a_growing_list_put_whole(store: Store) -> None:
    thread = store.thread("t")
    values: list[int] = []
    for number in range(101):
        values = [*values, *range(number * 1000, number * 1000 + 1000)]
        thread.put_state({"n": values, "step": number})
    anchors, deltas, _ = measure(store)
    assert 3 <= len(anchors) <= 1 + 101 / policy.MIN_SMALL
    assert max(anchors) < 1000
    assert sum(anchors) < 2 * sum(deltas)
    assert thread.state()["n"] == values


def test_the_size_of_the_state_does_not_matter(store: Store) -> None:
    thread = store.thread("t")
    thread.put_state({"files": {f"file {number}": "x" * 1000 for number in range(2000)}, "step": 0})
    for number in range(101):
        thread.append({"step": number})
    anchors, deltas, _ = measure(store)
    assert len(anchors) == 1 + 101 // policy.MIN_SMALL
    assert max(anchors) < 150
    assert sum(anchors) < sum(deltas)
