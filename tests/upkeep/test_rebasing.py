"""Re-basing: versions of edited chunks stand on few others and few are whole, and everything reads as before."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltastore import Store, check
from deltastore.codec import chunkrow
from deltastore.codec.primitives import unseal
from deltastore.log import keys
from deltastore.storage.memory import MemoryStorage
from deltastore.upkeep.compaction import compact
from tests.raw import Interrupted, everything, rows_of


def document(seed: str, lines: int = 400) -> list[str]:
    chance = random.Random(seed)
    return [f"{number} {chance.randbytes(12).hex()}" for number in range(lines)]


def edited(lines: list[str], seed: str, edits: int = 3) -> list[str]:
    chance = random.Random(seed)
    out = list(lines)
    for _ in range(edits):
        out[chance.randrange(len(out))] = f"edit {chance.randbytes(9).hex()}"
    return out


def heads(store: Store, thread: int = 1) -> dict[int, tuple[int, ...]]:
    """Return the bases of all large chunks of a thread, by number; () for a whole one."""
    prefix = keys.chunks(thread, 0)
    out: dict[int, tuple[int, ...]] = {}
    for key, sealed in rows_of(store.log.storage).items():
        if key.startswith(prefix):
            row = chunkrow.decode_row(unseal(key, sealed), int.from_bytes(key[-keys.NUMBER_BYTES :], "big"), None)
            out |= {number: () for number, blob in row.whole.items() if len(blob) > chunkrow.MIN_BASED_BYTES}
            out |= {number: based.bases for number, based in row.based.items()}
    return out


def put_versions(store: Store, count: int, name: str = "doc") -> list[list[str]]:
    lines = document(name)
    versions = []
    for number in range(count):
        lines = edited(lines, f"{name} {number}")
        store.thread("t").put_state({name: "\n".join(lines)})
        versions.append(lines)
    return versions


def test_few_of_many_versions_are_whole_and_none_stands_on_more_than_eight() -> None:
    store = Store(MemoryStorage())
    put_versions(store, 300)
    live = heads(store)
    before = everything(store)
    size = compact(store, level=1, dictionary="none").bytes_after
    bases = heads(store)
    assert sum(not behind for behind in bases.values()) <= 3  # where a version differs too much from older ones
    assert max(map(len, bases.values())) == 8
    assert sum(not behind for behind in live.values()) > 30
    assert len(bases) == 300
    assert everything(store) == before
    rows = rows_of(store.log.storage)
    assert compact(store, level=1).bytes_after == size
    assert rows_of(store.log.storage) == rows


def test_versions_of_several_values_are_kept_apart() -> None:
    store = Store(MemoryStorage())
    values = {name: document(name) for name in ("a", "b", "c")}
    for number in range(40):
        name = "abc"[number % 3]
        values[name] = edited(values[name], f"{name}{number}")
        store.thread("t").put_state({key: "\n".join(lines) for key, lines in values.items()})
    before = everything(store)
    compact(store, level=1)
    assert sum(not behind for behind in heads(store).values()) == 3
    assert everything(store) == before


def test_what_has_nothing_in_common_stays_whole() -> None:
    store = Store(MemoryStorage())
    for number in range(10):
        store.thread("t").append({"docs": [{"text": "\n".join(document(str(number)))}]})
    compact(store, level=1)
    assert set(heads(store).values()) == {()}


def test_puts_go_on_from_versions_that_were_stored_anew(store: Store) -> None:
    versions = put_versions(store, 20)
    compact(store, level=1)
    more = [edited(versions[-1], f"more {number}") for number in range(20)]
    for lines in more:
        store.thread("t").put_state({"doc": "\n".join(lines)})
    compact(store, level=1)
    found = [state["doc"] for state in (store.thread("t").state(at=at) for at in store.thread("t").history())]
    assert found[::-1] == ["\n".join(lines) for lines in [*versions, *more]]
    assert max(map(len, heads(store).values())) <= 8


def test_a_deletion_meanwhile_leaves_the_rest_readable() -> None:
    """Between the plan and its row's rewriting, versions go that others should stand on."""
    storage = Interrupted(MemoryStorage())
    store, other = Store(storage), Store(storage.inner)
    put_versions(store, 30)
    ids = [checkpoint.id for checkpoint in store.thread("t").history()][::-1]
    waiting = iter(ids[:-1:2])

    def delete() -> None:
        gone = next(waiting, None)
        if gone is not None:
            other.thread("t").delete(gone)
            compact(other, level=1, erase=True)
            storage.after_snapshot.append(delete)

    expected = {id_: store.thread("t").state(at=id_) for id_ in ids[1::2] + ids[-1:]}
    storage.after_snapshot.append(delete)
    compact(store, level=1)
    storage.after_snapshot.clear()
    for gone in waiting:
        other.thread("t").delete(gone)
    assert {
        checkpoint.id: store.thread("t").state(at=checkpoint) for checkpoint in store.thread("t").history()
    } == expected
    assert check(store).ok


EDITS = st.lists(
    st.one_of(
        st.tuples(st.just("edit"), st.sampled_from("ab"), st.integers(0, 99)),
        st.tuples(st.just("fork"), st.integers(0, 99), st.integers(0, 99)),
        st.tuples(st.just("delete"), st.integers(0, 99), st.just(0)),
        st.tuples(st.just("compact"), st.booleans(), st.just(0)),
        st.tuples(st.just("rewrite"), st.sampled_from("ab"), st.integers(0, 99)),
    ),
    max_size=30,
)


@given(EDITS)
def test_any_history_of_edits_reads_as_before(steps: list[tuple[Any, ...]]) -> None:
    store = Store(MemoryStorage(), snapshot_frequency=5)
    thread = store.thread("t")
    model: dict[str, dict[str, str]] = {}
    values = {"a": document("a", 200), "b": document("b", 200)}
    for what, pick, seed in steps:
        at = sorted(model)[pick % len(model)] if what in ("fork", "delete") and model else None
        match what:
            case "edit":
                values[pick] = edited(values[pick], f"{seed}", seed % 7)
            case "rewrite":
                values[pick] = document(f"{seed}", 200)
            case "fork" if at is not None:
                state = {name: "\n".join(edited(text.split("\n"), f"{seed}")) for name, text in model[at].items()}
                model[thread.put_state(state, at=at).id] = state
            case "delete" if at is not None:
                thread.delete(at)
                del model[at]
            case "compact":
                compact(store, level=1, erase=pick)
        if what in ("edit", "rewrite"):
            state = {name: "\n".join(lines) for name, lines in values.items()}
            model[thread.put_state(state).id] = state
    compact(store, level=1, erase=True)
    assert {checkpoint.id: thread.state(at=checkpoint) for checkpoint in thread.history()} == model
    report = check(store)
    assert (report.ok, report.garbage_chunks) == (True, 0), report.problems
    assert max(map(len, heads(store).values()), default=0) <= chunkrow.MAX_DEPTH


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_versions_too(count: int) -> None:
    store = Store(MemoryStorage())
    put_versions(store, count)
    compact(store, level=1)
    assert sum(not behind for behind in heads(store).values()) == 1
