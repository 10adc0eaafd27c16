"""Deletions where something was lost, or is written meanwhile: they refuse; what stays reads as before."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from deltastore import BrokenChainError, CheckpointNotFoundError, ContentionError, Store, check
from deltastore.codec.primitives import unseal
from deltastore.langgraph import DeltaSaver
from deltastore.log import keys, policy
from deltastore.log import rows as stored
from deltastore.storage import Storage
from deltastore.storage.memory import MemoryStorage
from tests.langgraph.comparing import config
from tests.langgraph.deleting import folding, joined, listed, log_at, put, say
from tests.raw import Interrupted, put_raw, rows_of

OpenStore = Callable[..., Store]
STORES = pytest.mark.parametrize(
    ("open_store", "frequency"), [("memory", 1), ("lmdb", 3), ("memory", 50)], indirect=["open_store"]
)
LAST = 5
DELETIONS: dict[str, Callable[[DeltaSaver], None]] = {
    "one": lambda saver: saver.store.thread("t").delete("2"),
    "latest": lambda saver: saver.store.thread("t").delete(f"{LAST}"),
    "runs": lambda saver: saver.delete_for_runs(["r1"]),
    "prune": lambda saver: saver.prune(["t"]),
    "runs, erased": lambda saver: saver.delete_for_runs(["r1"], erase=True, graph=folding()),
    "pruned, erased": lambda saver: saver.prune(["t"], erase=True, graph=folding()),
}
every_deletion = pytest.mark.parametrize("deletion", DELETIONS)


def chain(saver: DeltaSaver, ns: str = "") -> None:
    """Put six checkpoints of two runs by turns, each with writes to the delta channel, which the first has a value of.

    In "inner" their ids say so: what was meant for one namespace isn't found in another.
    """
    for number in range(LAST + 1):
        parent = f"{number - 1}{ns}" if number else None
        more = {} if number else {"log": _DeltaSnapshot(["seed"])}
        put(saver, f"{number}{ns}", parent, run=f"r{number % 2}", ns=ns, plain=number, **more)
        say(saver, f"{number}{ns}", f"w{number}", ns=ns)


def expected_at(number: int) -> tuple[Any, list[Any]]:
    """Return what `log_at` says of a checkpoint of the chain, but of the first."""
    return _DeltaSnapshot(["seed"]), [[f"w{n}"] for n in range(number)]


def record_keys(storage: Storage, namespace: int = 1) -> list[bytes]:
    return sorted(key for key in rows_of(storage) if key.startswith(keys.records(1, namespace)))


@contextmanager
def lost(storage: Storage, key: bytes) -> Iterator[None]:
    """Take a row away, and put it back."""
    row = rows_of(storage)[key]
    put_raw(storage, key, None)
    try:
        yield
    finally:
        put_raw(storage, key, row)


# --- rows lost --------------------------------------------------------------------------------


@STORES
@every_deletion
@pytest.mark.parametrize("place", [0, 2, LAST - 1, LAST])
def test_a_lost_record_stops_every_deletion(open_store: OpenStore, frequency: int, deletion: str, place: int) -> None:
    """Else what is left would be taken for all there is: an older one for the latest, or nothing for the latest."""
    saver = DeltaSaver(open_store(snapshot_frequency=frequency))
    chain(saver)
    storage = saver.store.log.storage
    with lost(storage, record_keys(storage)[place]):
        before = rows_of(storage)
        for one in (saver, DeltaSaver(open_store())):
            with pytest.raises(BrokenChainError, match="run check"):
                DELETIONS[deletion](one)
            assert rows_of(storage) == before
    assert listed(saver) == [f"{number}" for number in range(LAST, -1, -1)]
    assert log_at(saver, f"{LAST}") == expected_at(LAST)
    DELETIONS[deletion](saver)


@STORES
def test_a_lost_record_of_one_namespace_stops_a_prune_of_all(open_store: OpenStore, frequency: int) -> None:
    """A thread is changed in one transaction, or not at all."""
    saver = DeltaSaver(open_store(snapshot_frequency=frequency))
    for ns in ("", "inner"):
        chain(saver, ns)
    storage = saver.store.log.storage
    with lost(storage, record_keys(storage, 2)[-1]):
        before = rows_of(storage)
        for erase in (False, True):
            with pytest.raises(BrokenChainError, match=r"'inner'.*run check"):
                saver.prune(["t"], erase=erase, graph=folding() if erase else None)
            assert rows_of(storage) == before
    saver.prune(["t"])
    for ns in ("", "inner"):
        assert listed(saver, ns=ns) == [f"{LAST}{ns}"]
        assert log_at(saver, None, ns=ns) == expected_at(LAST)


@STORES
@pytest.mark.parametrize(
    ("deletion", "row"),
    [
        ("one", "record"),
        ("one", "by id"),
        ("runs", "record"),
        ("runs", "by id"),
        ("prune", "record"),
        ("prune", "by id"),
    ],
)
def test_a_call_that_lost_its_latest_does_not_outlive_its_root(
    open_store: OpenStore, frequency: int, deletion: str, row: str
) -> None:
    """Which root it started from is written there: with that lost, nothing may go."""
    saver = DeltaSaver(open_store(snapshot_frequency=frequency))
    for id_, parent in (("1", None), ("2", "1"), ("3", "2")):
        put(saver, id_, parent, run=f"r{1 - int(id_) % 2}")
    for id_, parent in (("c1", None), ("c2", "c1")):
        put(saver, id_, parent, ns="call:1", root="2", run="r1")
    delete = DELETIONS[deletion]
    storage = saver.store.log.storage
    with lost(storage, record_keys(storage, 2)[-1] if row == "record" else keys.by_id(1, 2, b"c2")):
        before = rows_of(storage)
        error = None
        try:
            delete(saver)
        except BrokenChainError as raised:
            error = raised
        after = rows_of(storage)
        for key in after.keys() | before.keys():
            put_raw(storage, key, before.get(key))
    assert error is not None
    assert after == before
    assert listed(saver, ns="call:1") == ["c2", "c1"]


@STORES
def test_what_stayed_hidden_is_missed_when_it_is_lost(open_store: OpenStore, frequency: int) -> None:
    """What a deletion left for the histories of others is no less needed than what is in sight."""
    saver = DeltaSaver(open_store(snapshot_frequency=frequency))
    chain(saver)
    saver.prune(["t"])
    storage = saver.store.log.storage
    remnants, latest = record_keys(storage)
    put(saver, f"{LAST + 1}", f"{LAST}")
    with lost(storage, remnants):
        before = rows_of(storage)
        for reader in (saver, DeltaSaver(open_store())):
            with pytest.raises(BrokenChainError, match=r"'t'.*missing"):
                log_at(reader, None)
            for deletion in (lambda: saver.prune(["t"]), lambda: saver.store.thread("t").delete(f"{LAST}")):
                with pytest.raises(BrokenChainError, match=r"'t'.*missing"):
                    deletion()
            assert rows_of(storage) == before
    assert latest in rows_of(storage)
    saver.prune(["t"])
    assert log_at(saver, None) == (_DeltaSnapshot(["seed"]), [[f"w{n}"] for n in range(LAST + 1)])


@STORES
@pytest.mark.parametrize("place", [0, 2, LAST])
def test_the_history_of_a_lost_record_raises(open_store: OpenStore, frequency: int, place: int) -> None:
    """Its own, and without id the latest's: a graph would go on from nothing."""
    saver = DeltaSaver(open_store(snapshot_frequency=frequency))
    chain(saver)
    storage = saver.store.log.storage
    with lost(storage, record_keys(storage)[place]):
        for reader in (saver, DeltaSaver(open_store())):
            for id_ in (f"{place}", f"{LAST}", None):  # those after a lost one lead over it
                with pytest.raises(BrokenChainError, match=r"'t'.*missing.*run check"):
                    log_at(reader, id_)
    assert log_at(saver, None) == expected_at(LAST)


@STORES
def test_the_history_of_the_latest_raises_where_its_row_by_id_is_lost(open_store: OpenStore, frequency: int) -> None:
    saver = DeltaSaver(open_store(snapshot_frequency=frequency))
    chain(saver)
    with lost(saver.store.log.storage, keys.by_id(1, 1, b"%d" % LAST)):
        for reader in (saver, DeltaSaver(open_store())):
            with pytest.raises(BrokenChainError, match=r"'t'.*latest checkpoint '5' is missing"):
                log_at(reader, None)
    assert log_at(saver, None) == expected_at(LAST)


@pytest.mark.parametrize("frequency", [1, 3])
@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("then", ["put", "one", "runs", "prune"])
def test_a_lost_row_by_id_of_a_pack_shortens_no_history(
    frequency: int, place: int, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writes that a pack holds belong to its records, whether or not their ids are found."""
    monkeypatch.setattr(policy, "MIN_LOOSE_ROWS", 4)
    monkeypatch.setattr(policy, "MAX_PACK_RECORDS", 4)
    memory = MemoryStorage()
    saver = DeltaSaver(Store(memory, snapshot_frequency=frequency))
    for number in range(20):
        parent = f"{number - 1:02}" if number else None
        more = {} if number else {"log": _DeltaSnapshot(["seed"])}
        if parent is not None:
            say(saver, parent, f"w{number - 1}")
        put(saver, f"{number:02}", parent, run=f"r{number % 2}", **more)
    before = log_at(saver, "19")
    assert before == expected_at(19)
    put_raw(memory, packs(memory)[place], None)
    saver = DeltaSaver(Store(memory))
    assert log_at(saver, "19") == log_at(saver, None) == before
    match then:
        case "put":
            put(saver, "20", "19")
            assert log_at(saver, "20") == before
        case "one":
            saver.store.thread("t").delete("18")
        case "runs":
            saver.delete_for_runs(["r0"])
        case _:
            saver.prune(["t"])
            report = check(saver.store)
            assert report.ok, report.problems
    assert log_at(DeltaSaver(Store(memory)), "19") == before


def packs(storage: Storage) -> list[bytes]:
    """Return the keys of the rows by id of record packs."""
    rows = {key: row for key, row in rows_of(storage).items() if key.startswith(keys.ids(1, 1))}
    entries = {key: stored.decode_id_entry(key, unseal(key, row)) for key, row in rows.items()}
    return [key for key, entry in entries.items() if entry.smallest is not None]


# --- written meanwhile ------------------------------------------------------------------------


def folded_at(saver: DeltaSaver, id_: str) -> list[str]:
    """Return what a graph makes of a checkpoint's delta channel."""
    found = saver.get_tuple(config("t", id_))
    assert found is not None
    value = found.checkpoint["channel_values"].get("log")
    if value is None:
        value, writes = log_at(saver, id_)
        return joined(value.value if value else None, writes)
    folded: list[str] = value.value
    return folded


@pytest.mark.parametrize("late_at", ["0", f"{LAST - 1}"])
def test_erasing_loses_no_late_write_whenever_it_comes(late_at: str) -> None:
    """A write to one that goes, after any of the reads of an erasing deletion: it is in the value of what stays."""
    moments = 0
    while True:
        storage = Interrupted(MemoryStorage())
        saver, other = DeltaSaver(Store(storage)), DeltaSaver(Store(storage.inner))
        chain(saver)

        def nothing() -> None:
            pass

        def write(other: DeltaSaver = other) -> None:
            say(other, late_at, "late")

        graph = folding()
        storage.after_snapshot = [write, *[nothing] * moments]  # from the end
        saver.prune(["t"], erase=True, graph=graph)
        if storage.after_snapshot:
            break
        assert listed(saver) == [f"{LAST}"]
        expected = ["seed", *(f"w{number}" for number in range(LAST))]
        expected.insert(int(late_at) + 1, "late")  # tasks are folded in the order of their names
        assert folded_at(saver, f"{LAST}") == expected
        report = check(saver.store)
        assert report.ok, report.problems
        assert report.hidden == 0
        moments += 1
    assert moments >= 2  # at least what is lacking, and its history, are read


@STORES
def test_a_late_write_while_a_graph_folds_is_folded_too(open_store: OpenStore, frequency: int) -> None:
    saver = DeltaSaver(open_store(snapshot_frequency=frequency))
    chain(saver)
    saver.tag(config("t", "2"), "kept")
    late = ["late 1", "late 0"]

    def interrupting(value: Any, writes: Any) -> Any:
        if late:
            say(saver, "1", late.pop())
        return joined(value, writes)

    saver.prune(["t"], erase=True, graph=folding(interrupting))
    assert late == []
    expected = ["seed", "w0", "late 0", "late 1", "w1", "w2", "w3", "w4"]
    for reader in (saver, DeltaSaver(open_store())):
        assert listed(reader) == [f"{LAST}", "2"]
        assert folded_at(reader, "2") == expected[:5]
        assert folded_at(reader, f"{LAST}") == expected
    assert check(saver.store).hidden == 0


@STORES
def test_erasing_gives_up_rather_than_lose_a_write(open_store: OpenStore, frequency: int) -> None:
    """Writes without end: nothing was erased, and all of them are there."""
    saver = DeltaSaver(open_store(snapshot_frequency=frequency))
    chain(saver)
    late: list[str] = []

    def interrupting(value: Any, writes: Any) -> Any:
        late.append(f"late {len(late):03}")
        say(saver, "0", late[-1])
        return joined(value, writes)

    with pytest.raises(ContentionError, match=r"'t'.*attempts to erase failed"):
        saver.prune(["t"], erase=True, graph=folding(interrupting))
    assert len(late) > 1
    assert len(listed(saver)) == LAST + 1
    expected = ["seed", *late, *(f"w{number}" for number in range(LAST))]
    assert folded_at(DeltaSaver(open_store()), f"{LAST}") == expected
    saver.prune(["t"], erase=True, graph=folding())
    assert folded_at(saver, f"{LAST}") == expected
    with pytest.raises(CheckpointNotFoundError):
        log_at(saver, "0")
