"""Rows damaged, lost, swapped, or forged with right checksums: each read of both APIs ends, and makes nothing up."""

import random
from collections import Counter
from typing import Any

import pytest

from deltastore import Store
from deltastore.codec import recordrow
from deltastore.codec import records as rec
from deltastore.codec.primitives import seal, unseal
from deltastore.log import keys
from deltastore.storage.memory import MemoryStorage
from deltastore.upkeep.check import check
from tests.damage.files import WRONG, earlier, ids_of, in_child, outcome, reads
from tests.raw import put_raw, rows_of
from tests.upkeep import both_fronts
from tests.upkeep.damaging import copy_of, damage

TRIALS = {"quick": 15, "ci": 2_000, "deep": 50_000}


@pytest.fixture(scope="module")
def made() -> tuple[dict[bytes, bytes], dict[str, list[str]], dict[str, Any]]:
    storage = MemoryStorage()
    store = Store(storage, snapshot_frequency=4)
    both_fronts.fill(store)
    ids = ids_of(store)
    return rows_of(storage), ids, {name: read() for name, read in reads(store, ids).items()}


def told(storage: MemoryStorage, ids: dict[str, list[str]], expected: dict[str, Any]) -> dict[str, str]:
    store = Store(storage)
    out = {name: outcome(read, expected[name], earlier(expected, name)) for name, read in reads(store, ids).items()}
    check(store)
    return out


def test_damaged_rows_never_make_anything_up(made: Any, request: pytest.FixtureRequest) -> None:
    found, ids, expected = made
    seed = request.config.getoption("--hypothesis-seed")
    counts: Counter[str] = Counter()
    for number in range(TRIALS[request.config.getoption("--profile")]):
        chance = random.Random(f"{seed} {number}")
        storage = copy_of(found)
        # Counters and the format row apart: a store is made of them, not read.
        done = damage(storage, chance, chance.randrange(1, 4), b"hnriwtcHNDQkK")
        answers = told(storage, ids, expected)
        wrong = {name: what for name, what in answers.items() if what.startswith(WRONG)}
        assert not wrong, (number, done, wrong)
        counts.update(answers.values())
    print(dict(counts))


def test_forged_parents_end(made: Any, request: pytest.FixtureRequest) -> None:
    """A record whose parent is itself, or a later one, with a right checksum: no read goes round for ever."""
    found, ids, expected = made
    records = []
    for key, row in found.items():
        if not key.startswith(keys.STORE) and key[6:7] == b"r":
            opened = recordrow.decode_row(unseal(key, row), key[-16:], None)
            if not opened.packed:
                records.append((key, opened.records[0]))
    quick = request.config.getoption("--profile") == "quick"
    assert len(records) > 5
    for key, record in records[:: 8 if quick else 1]:
        for other, _ in [(key, record), *(pair for pair in records if pair[0] > key and pair[0][:6] == key[:6])][:3]:
            storage = copy_of(found)
            forged = record._replace(parent=other[-16:])
            put_raw(storage, key, seal(key, recordrow.encode_row(rec.encode_record(forged), (0, 0))))
            ended = in_child(lambda storage=storage: told(storage, ids, expected))
            assert not ended.signal, (key, other, ended)
            assert not [what for what in ended.told.values() if "RecursionError" in what]
