"""A copied store is the store, or it is nothing that opens; a copy that was cut short goes on."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import deltastore
from deltastore import (
    InvalidInputError,
    Retention,
    Store,
    StorePathError,
    UnfinishedCopyError,
    check,
    compact,
    copy_store,
    plan_copy,
)
from deltastore.langgraph import DeltaSaver
from deltastore.log import keys
from deltastore.storage import Storage
from deltastore.storage.memory import MemoryStorage
from tests.raw import everything, rows_of
from tests.storage.watching import Killed, Watched
from tests.upkeep import test_dictionaries
from tests.upkeep.copied import Rows, in_memory, moved, rows_and_bytes
from tests.upkeep.many_threads import set_clock, told


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Callable[[str, str], Storage]]:
    """Make a storage of some kind."""
    made: list[Storage] = []

    def make_one(kind: str, name: str) -> Storage:
        made.append(MemoryStorage() if kind == "memory" else deltastore.opening.open_storage(tmp_path / name))
        return made[-1]

    yield make_one
    for storage in made:
        storage.close()


@pytest.mark.parametrize("there", ["memory", "lmdb"])
@pytest.mark.parametrize("here", ["memory", "lmdb"])
def test_a_copy_is_the_store_there_and_back(
    here: str, there: str, original_rows: Rows, small_steps: None, place: Any
) -> None:
    source, destination, back = place(here, "here.ds"), place(there, "there.ds"), place(here, "back.ds")
    with source.write() as tx:
        for key, row in original_rows.items():
            tx.put(key, row)
    expected = moved(original_rows)
    assert len(expected) < len(original_rows)
    steps: list[Any] = []
    store = Store(source)
    report = copy_store(store, destination, progress=lambda done, total: steps.append((done, total)))
    assert rows_of(destination) == expected
    assert (report.finished, report.changed_since) == (True, 0)
    assert (report.rows, report.bytes) == rows_and_bytes(expected)
    assert report.location == destination.location
    headers = sum(key[keys.THREAD_BYTES :] == b"h" for key in expected)
    assert (report.threads, report.copied_threads, report.copied_rows) == (headers, headers, report.rows - 1)
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    assert {total for _, total in steps} == {report.copied_bytes}
    assert steps[-1][0] == report.copied_bytes
    copied = Store(destination)
    set_clock(store)
    set_clock(copied)
    assert copied.log.uuid == store.log.uuid
    assert copied.retention == Retention(keep_last=5)
    assert told(copied) == told(store)
    found = check(copied)
    assert found.ok, found.problems
    assert found.queued_threads == 0
    copied.thread("n").append({"messages": ["goes on"]})
    new = copied.thread("new")
    new.append({"messages": ["first"]})
    assert check(copied).ok
    before = rows_of(destination)
    copy_store(copied, back)
    assert rows_of(back) == before
    assert rows_of(source) == original_rows


def test_an_empty_store_is_copied(tmp_path: Path) -> None:
    with deltastore.open(":memory:", snapshot_frequency=7) as store:
        report = copy_store(store, tmp_path / "copy.ds")
        assert (report.threads, report.rows, report.copied_rows) == (0, 1, 0)
        with deltastore.open(tmp_path / "copy.ds", create=False) as copied:
            assert rows_of(copied.log.storage) == rows_of(store.log.storage)
            assert copied.log.snapshot_frequency == 7


def test_paths_will_do(tmp_path: Path) -> None:
    with deltastore.open(tmp_path / "here.ds") as store:
        store.thread("t").append({"m": [1]})
    assert plan_copy(tmp_path / "here.ds", tmp_path / "there.ds").threads == 1
    assert not (tmp_path / "there.ds").exists()
    (tmp_path / "there.ds").mkdir()
    assert plan_copy(str(tmp_path / "here.ds"), str(tmp_path / "there.ds")).threads == 1
    assert list((tmp_path / "there.ds").iterdir()) == []
    copy_store(str(tmp_path / "here.ds"), tmp_path / "there.ds")
    with deltastore.open(tmp_path / "there.ds", create=False) as store:
        assert store.thread("t").state() == {"m": [1]}
    with pytest.raises(StorePathError, match="doesn't exist"):
        copy_store(tmp_path / "nowhere.ds", tmp_path / "other.ds")
    assert not (tmp_path / "other.ds").exists()


def test_dictionaries_come_along(tmp_path: Path) -> None:
    with deltastore.open(tmp_path / "here.ds", sync="none") as store:
        test_dictionaries.fill(store, threads=9, steps=2)
        compact(store)
        assert test_dictionaries.needed(store)
        copy_store(store, tmp_path / "there.ds")
        with deltastore.open(tmp_path / "there.ds", sync="none") as copied:
            assert everything(copied) == everything(store)
            assert test_dictionaries.needed(copied) == test_dictionaries.needed(store)
            assert check(copied).ok


# --- what can't be


class TestRefusals:
    def test_a_place_that_holds_something(self, original_rows: Rows, tmp_path: Path) -> None:
        source = Store(in_memory(original_rows))
        empty, foreign = MemoryStorage(), in_memory({b"\0\0\0\0\0\7key": b"row"})
        Store(empty)
        itself = source.log.storage
        for storage, why in ((empty, "a store already; name"), (foreign, "no store's"), (itself, "this very one")):
            before = rows_of(storage)
            for work in (copy_store, plan_copy):
                with pytest.raises(StorePathError, match=why):
                    work(source, storage)
            assert rows_of(storage) == before
        (tmp_path / "notes").mkdir()
        (tmp_path / "notes" / "mine").touch()
        (tmp_path / "file").touch()
        for path in (tmp_path / "notes", tmp_path / "file", ":memory:", tmp_path / "no" / "parent.ds"):
            with pytest.raises(StorePathError):
                copy_store(source, path)
        for path in (tmp_path / "notes", tmp_path / "file", ":memory:"):
            with pytest.raises(StorePathError):
                plan_copy(source, path)
        assert sorted(found.name for found in tmp_path.rglob("*")) == ["file", "mine", "notes"]

    def test_another_stores_unfinished_copy(self, original_rows: Rows) -> None:
        destination = MemoryStorage()
        copy_store(Store(in_memory(original_rows)), destination, finish=False)
        before = rows_of(destination)
        with pytest.raises(StorePathError, match="unfinished copy of another store"):
            copy_store(Store(MemoryStorage()), destination)
        assert rows_of(destination) == before

    def test_no_passes(self, original_rows: Rows) -> None:
        with pytest.raises(InvalidInputError, match="passes"):
            copy_store(Store(in_memory(original_rows)), MemoryStorage(), passes=0)

    def test_an_unfinished_copy_is_no_source(self, original_rows: Rows, tmp_path: Path) -> None:
        copy_store(Store(in_memory(original_rows)), tmp_path / "half.ds", finish=False)
        with pytest.raises(UnfinishedCopyError):
            copy_store(tmp_path / "half.ds", tmp_path / "other.ds")


# --- unfinished


def test_an_unfinished_copy_opens_as_nothing_and_is_gone_on_with(original_rows: Rows, tmp_path: Path) -> None:
    path = tmp_path / "copy.ds"
    source = Store(in_memory(original_rows))
    report = copy_store(source, path, finish=False)
    assert not report.finished
    for work in (deltastore.open, check, lambda path: deltastore.open(path, create=False)):
        with pytest.raises(UnfinishedCopyError, match="unfinished copy of :memory:"):
            work(path)
    with pytest.raises(UnfinishedCopyError):
        DeltaSaver.from_path(path)
    source.thread("n").append({"messages": ["later"]})
    source.delete("idle")
    plan = plan_copy(source, path)
    assert (plan.resumes, plan.threads) == (True, 1)
    report = copy_store(source, path)
    assert (report.finished, report.copied_threads, report.changed_since) == (True, 1, 0)
    assert plan.rows == report.copied_rows
    assert plan.bytes == report.copied_bytes
    with deltastore.open(path) as copied:
        assert rows_of(copied.log.storage) == moved(rows_of(source.log.storage))
        assert check(copied).ok


def test_a_plan_is_what_is_copied(original_rows: Rows) -> None:
    source, destination = Store(in_memory(original_rows)), MemoryStorage()
    plan = plan_copy(source, destination)
    assert rows_of(destination) == {}
    report = copy_store(source, destination)
    assert not plan.resumes
    assert (plan.threads, plan.rows, plan.bytes) == (report.copied_threads, report.copied_rows, report.copied_bytes)


@pytest.mark.parametrize("side", ["source", "destination"])
def test_killed_at_any_call_of_a_storage_it_goes_on(side: str, original_rows: Rows, small_steps: None) -> None:
    expected = moved(original_rows)
    calls = states = 0
    seen: set[int] = set()
    while True:
        calls += 1
        left = calls

        def before(_: str) -> None:
            nonlocal left
            left -= 1
            if not left:
                raise Killed

        inner = in_memory(original_rows), MemoryStorage()
        store, destination = Store(inner[0]), inner[1]
        if side == "source":
            store.log.storage = Watched(inner[0], before)
        ended = False
        with suppress(Killed):
            copy_store(store, Watched(destination, before) if side == "destination" else destination)
            ended = True
        if ended:
            break
        found = rows_of(destination)
        assert rows_of(inner[0]) == original_rows
        if hash(tuple(found.items())) in seen:
            continue
        seen.add(hash(tuple(found.items())))
        states += 1
        if keys.FORMAT in found:
            assert found == expected
            continue
        if found:
            with pytest.raises(UnfinishedCopyError):
                Store(destination)
        assert rows_of(destination) == found
        # what is there complete isn't read again
        complete = {key[: keys.THREAD_BYTES] for key in found if key[keys.THREAD_BYTES :] == b"h"}
        report = copy_store(Store(in_memory(original_rows)), destination)
        assert report.copied_threads == report.threads - len(complete)
        assert rows_of(destination) == expected
    print(f"{calls} calls, {states} states")
    assert states > 20


def test_a_source_that_was_restored_from_a_backup_is_gone_on_with(original_rows: Rows, small_steps: None) -> None:
    """What was copied of a thread in part, as it was later, mustn't pass for the thread as it was before."""
    later = Store(in_memory(original_rows))
    later.thread("n").append({"messages": ["later"]})
    compact(later, level=1)
    calls = 0
    while True:
        calls += 1
        left = calls

        def before(_: str) -> None:
            nonlocal left
            left -= 1
            if not left:
                raise Killed

        destination = MemoryStorage()
        copy_store(Store(in_memory(original_rows)), destination, finish=False)
        with suppress(Killed):
            copy_store(later, Watched(destination, before), finish=False)
            break
        if calls % 3 == 0:
            copy_store(Store(in_memory(original_rows)), destination)
            assert rows_of(destination) == moved(original_rows)
    assert calls > 50
