"""Statistics: sums are right, estimates are near what happens, nothing is written."""

import time
from collections.abc import Callable
from operator import add
from random import randbytes
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph

from deltastore import InvalidInputError, Store, check
from deltastore.langgraph import DeltaSaver
from deltastore.log import copying, deleting, keys
from deltastore.upkeep.compaction import compact
from deltastore.upkeep.statistics import RowBytes, ThreadStatistics, measure
from tests.langgraph.comparing import checkpoint, config
from tests.raw import rows_of


def one(store: Store, **options: Any) -> ThreadStatistics:
    (thread,) = measure(store, **options).threads
    return thread


def test_kinds_sum_up_to_all_rows(store: Store) -> None:
    for name in ("a", "b"):
        thread = store.thread(name)
        first = thread.append({"m": ["x" * 100], "n": 1})
        thread.tag("t", at=first)
        thread.put_writes(first, {"n": 2})
    before = rows_of(store.log.storage)
    found = measure(store, keep_last=1)
    assert rows_of(store.log.storage) == before
    kinds = [kind for thread in found.threads for kind in thread.kinds.values()] + [found.store_rows]
    assert sum(kind.rows for kind in kinds) == len(before)
    assert sum(kind.bytes for kind in kinds) == sum(len(key) + len(row) for key, row in before.items())
    assert all(thread.kinds[kind].rows for thread in found.threads for kind in ("chunks", "records", "writes", "tags"))


def test_channels_share_the_bytes_of_chunks(store: Store) -> None:
    thread = store.thread("t")
    for number in range(20):
        thread.append({"big": [bytes(range(256)) * 20 + bytes([number])], "small": number})
    found = one(store)
    chunk_bytes = sum(len(key) + len(row) for key, row in rows_of(store.log.storage).items() if _is_chunk(key))
    assert sum(found.channels.values()) + found.base_bytes + found.garbage_bytes == pytest.approx(chunk_bytes, rel=0.2)
    assert found.channels["big"] > found.channels["small"]
    assert found.garbage_bytes == 0


def _is_chunk(key: bytes) -> bool:
    return key.startswith(keys.chunks(1, 0))


def test_full_states_are_what_snapshots_would_take(store: Store) -> None:
    thread = store.thread("t")
    for _ in range(10):
        thread.append({"m": ["x" * 1000]})
    assert one(store).full_bytes == pytest.approx(1000 * 55, rel=0.02)


@pytest.mark.parametrize("keep", [1, 3])
def test_what_would_be_freed_is_about_what_is_freed(store: Store, keep: int) -> None:
    thread = store.thread("t")
    for number in range(30):
        thread.put_state({"m": [f"{number}:{place}" * 50 for place in range(4)]})
    ids = [checkpoint.id for checkpoint in thread.history()]
    thread.tag("kept", at=ids[-1])
    before = one(store, keep_last=keep)
    for id_ in ids[keep:-1]:
        thread.delete(id_)
    compact(store, erase=True)
    after = one(store, keep_last=keep)
    assert before.freed_bytes is not None
    assert before.bytes - after.bytes == pytest.approx(before.freed_bytes, rel=0.5)
    assert after.freed_bytes == 0
    assert after.garbage_bytes == 0


def test_garbage_is_seen(store: Store) -> None:
    thread = store.thread("t")
    first = thread.append({"m": ["y"]})
    thread.delete(thread.append({"m": ["x" * 5000]}, at=first))
    assert one(store).garbage_bytes > 0


def test_rows_that_no_name_leads_to_are_orphans(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.thread("t").append({"m": ["x" * 5000]})
    gone = one(store)
    with monkeypatch.context() as patch:
        patch.setattr(deleting, "collect", lambda *_: None)  # as a kill just before would have it
        store.delete("t")
    found = measure(store)
    assert found.threads == ()
    assert found.orphans == RowBytes(sum(kind.rows for kind in gone.kinds.values()), gone.bytes)
    store.collect()
    assert measure(store).orphans == RowBytes(0, 0)


def test_a_copy_that_was_killed_is_an_orphan_for_an_hour(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        store.thread("t").append({"m": ["x" * 500], "n": number})
    write, batches = copying._write, [1, 2]

    def killed(*arguments: Any) -> None:
        if not batches:
            raise KeyboardInterrupt
        batches.pop()
        write(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(copying, "MAX_COPIED_ROWS", 10)
        patch.setattr(copying, "_write", killed)
        with pytest.raises(KeyboardInterrupt):
            store.copy("t", "copy")
    store.collect()
    found = measure(store)
    assert [thread.name for thread in found.threads] == ["t"]
    assert found.orphans.rows == 20
    store.log._clock = lambda: time.time() + 3601
    store.collect()
    assert measure(store).orphans.rows == 0


@pytest.mark.parametrize("native", [True, False])
def test_writes_without_a_checkpoint_are_counted(store: Store, native: bool) -> None:
    saver = DeltaSaver(store)
    if native:
        first = store.thread("t").append({"m": ["y"]})
        store.thread("t").put_writes(first, {"m": ["waits"]})
        assert one(store).stray_writes == 0
    else:
        saver.put_writes(config("t", "1"), [("a", 1), ("b", 2)], "task")
        saver.put_writes(config("t", "2", ns="sub:1"), [("a", 1)], "task")
        assert one(store).stray_writes == 3
        saver.put(config("t"), checkpoint("1", {"a": "1"}, {"a": 1}), {}, {})
        assert one(store).stray_writes == 1
    assert one(store).stray_writes == check(store).writes_without_checkpoint


class State(TypedDict):
    log: Annotated[list[str], DeltaChannel(lambda value, writes: value + [line for write in writes for line in write])]
    count: Annotated[int, add]


def test_histories_of_delta_channels_count_as_kept(open_store: Callable[..., Store]) -> None:
    store = open_store()
    saver = DeltaSaver(store)
    builder = StateGraph(State)
    builder.add_node("work", lambda _: {"log": [randbytes(2000).hex()], "count": 1})
    builder.add_edge(START, "work")
    graph = builder.compile(checkpointer=saver)
    for _ in range(5):
        graph.invoke({"count": 0}, {"configurable": {"thread_id": "t"}})
    before = one(store, keep_last=1)
    saver.prune(["t"])
    compact(store, erase=True)
    after = one(store, keep_last=1)
    assert before.freed_bytes is not None
    assert after.channels["log"] == pytest.approx(before.channels["log"], rel=0.3)
    assert before.bytes - before.freed_bytes == pytest.approx(after.bytes, rel=0.6)


def test_keep_last_is_at_least_one(store: Store) -> None:
    with pytest.raises(InvalidInputError):
        measure(store, keep_last=0)


def test_progress_is_told_of_threads(store: Store) -> None:
    for name in ("a", "b", "c"):
        store.thread(name).append({"n": 1})
    told: list[tuple[int, int | None]] = []
    measure(store, progress=lambda done, total: told.append((done, total)))
    assert told == [(0, 3), (1, 3), (2, 3)]
