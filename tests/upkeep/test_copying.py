"""A copied store is the store at one moment, or it is nothing that opens; a copy that was cut short goes on."""

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import deltastore
from deltastore import (
    ConflictError,
    CopyDamagedError,
    InvalidInputError,
    Retention,
    Store,
    StorePathError,
    UnfinishedCopyError,
    check,
    compact,
    copy_store,
    plan_copy,
    repair,
)
from deltastore.langgraph import DeltaSaver
from deltastore.log import keys
from deltastore.storage import Storage
from deltastore.storage.memory import MemoryStorage
from deltastore.upkeep import copying, copying_rows, copying_threads
from tests.raw import everything, put_raw, rows_of
from tests.storage.watching import Killed, Watched
from tests.upkeep import test_dictionaries
from tests.upkeep.both_fronts import small_packs
from tests.upkeep.many_threads import make, set_clock, told

Rows = dict[bytes, bytes]


class Original(Rows):
    """Rows that a failing example doesn't show one by one."""

    def __repr__(self) -> str:
        return f"<{len(self)} rows>"


def moved(rows: Rows) -> Rows:
    """Return what of a store's rows a copy has: all but the queue and the threads in it."""
    queued = {key[-keys.THREAD_BYTES :] for key in rows if key.startswith(keys.QUEUE)}
    return {
        key: row
        for key, row in rows.items()
        if not key.startswith(keys.QUEUE) and key[: keys.THREAD_BYTES] not in queued
    }


def rows_and_bytes(rows: Rows) -> tuple[int, int]:
    """Return what a report tells of rows: counters are the storage's own, and don't count."""
    counted = {key: row for key, row in rows.items() if not key.startswith(keys.COUNTERS)}
    return len(counted), sum(len(key) + len(row) for key, row in counted.items())


def in_memory(rows: Rows) -> MemoryStorage:
    storage = MemoryStorage()
    with storage.write() as tx:
        for key, row in rows.items():
            tx.put(key, row)
    return storage


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """The rows of a store of both APIs, with packs, forks, tags, rules, remnants, and a thread in the queue."""
    path = tmp_path_factory.mktemp("copying") / "store.ds"
    make(path)
    with deltastore.open(path) as store:
        store.retention = Retention(keep_last=5)
        store.thread("n").retention = Retention()
        return Original(rows_of(store.log.storage))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let transactions, pages and moments end after a few rows."""
    monkeypatch.setattr(copying_rows, "MAX_BATCH_ROWS", 7)
    monkeypatch.setattr(copying_threads, "PAGE", 2)
    monkeypatch.setattr(copying, "MOMENT_BYTES", 500)
    monkeypatch.setattr(copying, "FEW_THREADS", 0)


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
def test_a_copy_is_the_store_there_and_back(here: str, there: str, original: Rows, small: None, place: Any) -> None:
    source, destination, back = place(here, "here.ds"), place(there, "there.ds"), place(here, "back.ds")
    with source.write() as tx:
        for key, row in original.items():
            tx.put(key, row)
    expected = moved(original)
    assert len(expected) < len(original)
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
    assert rows_of(source) == original


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
    def test_a_place_that_holds_something(self, original: Rows, tmp_path: Path) -> None:
        source = Store(in_memory(original))
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

    def test_another_stores_unfinished_copy(self, original: Rows) -> None:
        destination = MemoryStorage()
        copy_store(Store(in_memory(original)), destination, finish=False)
        before = rows_of(destination)
        with pytest.raises(StorePathError, match="unfinished copy of another store"):
            copy_store(Store(MemoryStorage()), destination)
        assert rows_of(destination) == before

    def test_no_passes(self, original: Rows) -> None:
        with pytest.raises(InvalidInputError, match="passes"):
            copy_store(Store(in_memory(original)), MemoryStorage(), passes=0)

    def test_an_unfinished_copy_is_no_source(self, original: Rows, tmp_path: Path) -> None:
        copy_store(Store(in_memory(original)), tmp_path / "half.ds", finish=False)
        with pytest.raises(UnfinishedCopyError):
            copy_store(tmp_path / "half.ds", tmp_path / "other.ds")


# --- unfinished


def test_an_unfinished_copy_opens_as_nothing_and_is_gone_on_with(original: Rows, tmp_path: Path) -> None:
    path = tmp_path / "copy.ds"
    source = Store(in_memory(original))
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


def test_a_plan_is_what_is_copied(original: Rows) -> None:
    source, destination = Store(in_memory(original)), MemoryStorage()
    plan = plan_copy(source, destination)
    assert rows_of(destination) == {}
    report = copy_store(source, destination)
    assert not plan.resumes
    assert (plan.threads, plan.rows, plan.bytes) == (report.copied_threads, report.copied_rows, report.copied_bytes)


@pytest.mark.parametrize("side", ["source", "destination"])
def test_killed_at_any_call_of_a_storage_it_goes_on(side: str, original: Rows, small: None) -> None:
    expected = moved(original)
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

        inner = in_memory(original), MemoryStorage()
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
        assert rows_of(inner[0]) == original
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
        report = copy_store(Store(in_memory(original)), destination)
        assert report.copied_threads == report.threads - len(complete)
        assert rows_of(destination) == expected
    print(f"{calls} calls, {states} states")
    assert states > 20


def test_a_source_that_was_restored_from_a_backup_is_gone_on_with(original: Rows, small: None) -> None:
    """What was copied of a thread in part, as it was later, mustn't pass for the thread as it was before."""
    later = Store(in_memory(original))
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
        copy_store(Store(in_memory(original)), destination, finish=False)
        with suppress(Killed):
            copy_store(later, Watched(destination, before), finish=False)
            break
        if calls % 3 == 0:
            copy_store(Store(in_memory(original)), destination)
            assert rows_of(destination) == moved(original)
    assert calls > 50


# --- in use


class Busy:
    """A storage in which others write between the calls of a copy; all its moments are noted."""

    def __init__(self, rows: Rows, seed: int, often: float) -> None:
        self.inner = in_memory(rows)
        self.chance = random.Random(seed)
        self.often = often
        self.store = Store(self.inner, snapshot_frequency=3)
        set_clock(self.store)
        self.writes = 0
        self.moments = [moved(rows)]
        self._writing = False

    def before(self, _: str) -> None:
        if self._writing or self.chance.random() >= self.often:
            return
        self._writing = True
        with small_packs():
            self._write()
        self._writing = False
        self.writes += 1
        self.moments.append(moved(rows_of(self.inner)))

    def _write(self) -> None:
        store, chance = self.store, self.chance
        name = f"w{chance.randrange(6)}"
        thread = store.thread(name)
        match chance.randrange(9):
            case 0:
                store.delete(name)
            case 1 if thread.latest():
                thread.tag(f"tag {self.writes}")
            case 2 if thread.latest():
                store.copy(name, f"{name} {self.writes}")
            case 3:
                compact(store, level=1, dictionary=chance.choice(["content", "none"]))
            case 4 if thread.latest():
                thread.retention = Retention(keep_last=chance.randrange(1, 9))
            case 5 if (latest := thread.latest()) is not None:
                thread.put_writes(latest, {f"channel {self.writes}": 1}, task=f"{self.writes}")
            case 6 if (latest := thread.latest()) is not None:
                thread.delete(latest)
            case _:
                thread.append({f"channel {chance.randrange(9)}": [chance.randbytes(40).hex()] * chance.randrange(9)})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(
    seed=st.integers(0, 2**32),
    passes=st.integers(1, 4),
    stops=st.lists(st.integers(1, 400), max_size=3),
    often=st.sampled_from([0.002, 0.02]),
)
def test_a_store_in_use_is_copied_as_of_one_moment(
    original: Rows, small: None, seed: int, passes: int, stops: list[int], often: float
) -> None:
    busy = Busy(original, seed, often)
    destination = MemoryStorage()
    compared = busy.moments[0]
    report = None
    for stop in [*stops, None]:
        left = stop

        def before(call: str) -> None:
            nonlocal left
            busy.before(call)
            if left is not None:
                left -= 1
                if not left:
                    raise Killed

        def before_source(call: str) -> None:
            nonlocal compared
            before(call)
            if call == "read":
                compared = busy.moments[-1]

        handle = Store(busy.inner)
        handle.log.storage = Watched(busy.inner, before_source)
        with suppress(Killed):
            report = copy_store(handle, Watched(destination, before), passes=passes)
        if keys.FORMAT in rows_of(destination):
            break  # perhaps killed just after it was finished
    found = rows_of(destination)
    assert found in busy.moments
    report_of = check(Store(destination))
    assert report_of.ok, report_of.problems
    # the last that was read of the source was read to see what changed
    assert report is None or (report.changed_since == 0) == (threads_in(found) == threads_in(compared))


def threads_in(rows: Rows) -> Rows:
    return {key: row for key, row in rows.items() if not key.startswith(keys.STORE)}


def test_what_was_written_since_is_told(original: Rows) -> None:
    storage = in_memory(original)
    store, writer = Store(storage), Store(storage)
    moments = [moved(original)]

    def progress(_: int, __: int | None) -> None:
        writer.thread("n").append({"messages": ["meanwhile"]})
        moments.append(moved(rows_of(storage)))

    destination = MemoryStorage()
    report = copy_store(store, destination, progress=progress)
    assert report.changed_since == 1
    assert rows_of(destination) in moments
    assert rows_of(destination) != moments[-1]


def test_two_copies_to_one_place_don_t_mix(original: Rows, small: None) -> None:
    destination = MemoryStorage()
    first, second = Store(in_memory(original)), Store(in_memory(original))
    begun = False

    def progress(_: int, __: int | None) -> None:
        nonlocal begun
        if not begun:
            begun = True
            copy_store(second, destination, finish=False)

    with pytest.raises(ConflictError, match="took over"):
        copy_store(first, destination, progress=progress)
    assert begun
    with pytest.raises(UnfinishedCopyError):
        Store(destination)
    copy_store(second, destination)
    assert rows_of(destination) == moved(original)


# --- bounds


def test_transactions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying_rows, "MAX_BATCH_ROWS", 40)
    monkeypatch.setattr(copying_rows, "MAX_BATCH_BYTES", 20_000)
    monkeypatch.setattr(copying, "MOMENT_BYTES", 30_000)
    monkeypatch.setattr(copying, "FEW_THREADS", 0)
    with deltastore.open(":memory:") as store, small_packs():
        for number in range(150):
            store.thread(f"t{number % 30}").append({"m": [random.Random(number).randbytes(600)]})
        # rows and bytes of each transaction
        written: list[list[int]] = []

        def put(_: bytes, value: bytes) -> bytes:
            written[-1][0] += 1
            written[-1][1] += len(value)
            return value

        target = Watched(MemoryStorage(), lambda call: written.append([0, 0]) if call == "write" else None, put)
        read: list[int] = []

        def before(call: str) -> None:
            if call == "read":
                read.append(0)
            read[-1] += call == "row"

        handle = Store(store.log.storage)
        handle.log.storage = Watched(store.log.storage, before)
        copy_store(handle, target)
        assert len(written) > 10
        assert max(rows for rows, _ in written) <= 80  # those of a batch, and the headers of the one before
        assert max(size for _, size in written) < 25_000
        assert len(read) > 4
        assert max(read) < len(rows_of(target.inner)) * 0.8
        assert rows_of(target.inner) == rows_of(store.log.storage)


def test_much_that_went_meanwhile_goes_in_several_transactions(small: None) -> None:
    with deltastore.open(":memory:") as store:
        for number in range(60):
            store.thread("gone" if number % 2 else "packed").append({"m": [number]})
        destination = MemoryStorage()
        copy_store(store, destination, finish=False)
        store.delete("gone")
        compact(store)
        held: list[int] = []

        def before(call: str) -> None:
            if call in ("write", "committed"):
                held.append(len(rows_of(destination)))

        copy_store(store, Watched(destination, before))
        assert rows_of(destination) == rows_of(store.log.storage)
        removed = [before - after for before, after in pairwise(held)]
        assert sum(count for count in removed if count > 0) > 60
        assert max(removed) <= copying_rows.MAX_BATCH_ROWS + 2  # and the headers of both threads


# --- damage


def test_what_is_read_back_otherwise_is_an_error_and_gone_on_with(original: Rows, small: None) -> None:
    expected = moved(original)
    doomed = [key for key in expected if key != keys.FORMAT and key[keys.THREAD_BYTES :] != b"h"]
    for key in random.Random(5).sample(doomed, 12):
        destination = MemoryStorage()

        def changed(found: bytes, value: bytes, key: bytes = key) -> bytes:
            return value[:-1] + bytes((value[-1] ^ 1,)) if found == key else value

        source = Store(in_memory(original))
        with pytest.raises(CopyDamagedError, match="another digest"):
            copy_store(source, Watched(destination, lambda _: None, changed))
        with pytest.raises(UnfinishedCopyError):
            Store(destination)
        copy_store(source, destination)
        assert rows_of(destination) == expected


def test_a_damaged_store_is_copied_as_it_is(original: Rows) -> None:
    storage = in_memory(original)
    header = next(key for key in original if key[keys.THREAD_BYTES :] == b"h" and key[5] == 2)
    chunk = next(key for key in original if key[keys.THREAD_BYTES : 7] == b"c" and key[5] == 3)
    put_raw(storage, header, None)
    put_raw(storage, chunk, b"damaged")
    number = next(key for key in original if key.startswith(keys.numbers_of(keys.THREAD)) and key[-1] == 4)
    put_raw(storage, number, None)
    expected = moved(rows_of(storage))
    destination = MemoryStorage()
    copy_store(Store(storage), destination)
    assert rows_of(destination) == expected
    copied = Store(destination)
    assert not check(copied).ok
    repair(copied)
    again = MemoryStorage()
    copy_store(copied, again)
    assert rows_of(again) == moved(rows_of(destination))
    assert check(Store(again)).quarantined == check(copied).quarantined > 0


def test_rows_that_another_writer_put_there_are_found_and_removed(original: Rows) -> None:
    destination = MemoryStorage()
    stray = keys.header(1 << 40)

    def before(call: str) -> None:
        if call == "committed":
            put_raw(destination, stray, b"row")

    source = Store(in_memory(original))
    with pytest.raises(CopyDamagedError, match="rows of"):
        copy_store(source, Watched(destination, before))
    assert stray in rows_of(destination)
    with pytest.raises(UnfinishedCopyError):
        Store(destination)
    copy_store(source, destination)
    assert rows_of(destination) == moved(original)
