"""A store in use is copied as of one moment, in bounded steps; rows that aren't what was written are found."""

import random
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import deltastore
from deltastore import (
    ConflictError,
    CopyDamagedError,
    Retention,
    Store,
    UnfinishedCopyError,
    check,
    compact,
    copy_store,
    repair,
)
from deltastore.log import keys
from deltastore.storage.memory import MemoryStorage
from deltastore.upkeep import copying, copying_rows
from tests.raw import put_raw, rows_of
from tests.storage.watching import Killed, Watched
from tests.upkeep.both_fronts import small_packs
from tests.upkeep.copied import Rows, in_memory, moved
from tests.upkeep.many_threads import set_clock

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
    original_rows: Rows, small_steps: None, seed: int, passes: int, stops: list[int], often: float
) -> None:
    busy = Busy(original_rows, seed, often)
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


def test_what_was_written_since_is_told(original_rows: Rows) -> None:
    storage = in_memory(original_rows)
    store, writer = Store(storage), Store(storage)
    moments = [moved(original_rows)]

    def progress(_: int, __: int | None) -> None:
        writer.thread("n").append({"messages": ["meanwhile"]})
        moments.append(moved(rows_of(storage)))

    destination = MemoryStorage()
    report = copy_store(store, destination, progress=progress)
    assert report.changed_since == 1
    assert rows_of(destination) in moments
    assert rows_of(destination) != moments[-1]


def test_two_copies_to_one_place_don_t_mix(original_rows: Rows, small_steps: None) -> None:
    destination = MemoryStorage()
    first, second = Store(in_memory(original_rows)), Store(in_memory(original_rows))
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
    assert rows_of(destination) == moved(original_rows)


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


def test_much_that_went_meanwhile_goes_in_several_transactions(small_steps: None) -> None:
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


def test_what_is_read_back_otherwise_is_an_error_and_gone_on_with(original_rows: Rows, small_steps: None) -> None:
    expected = moved(original_rows)
    doomed = [key for key in expected if key != keys.FORMAT and key[keys.THREAD_BYTES :] != b"h"]
    for key in random.Random(5).sample(doomed, 12):
        destination = MemoryStorage()

        def changed(found: bytes, value: bytes, key: bytes = key) -> bytes:
            return value[:-1] + bytes((value[-1] ^ 1,)) if found == key else value

        source = Store(in_memory(original_rows))
        with pytest.raises(CopyDamagedError, match="another digest"):
            copy_store(source, Watched(destination, lambda _: None, changed))
        with pytest.raises(UnfinishedCopyError):
            Store(destination)
        copy_store(source, destination)
        assert rows_of(destination) == expected


def test_a_damaged_store_is_copied_as_it_is(original_rows: Rows) -> None:
    storage = in_memory(original_rows)
    header = next(key for key in original_rows if key[keys.THREAD_BYTES :] == b"h" and key[5] == 2)
    chunk = next(key for key in original_rows if key[keys.THREAD_BYTES : 7] == b"c" and key[5] == 3)
    put_raw(storage, header, None)
    put_raw(storage, chunk, b"damaged")
    number = next(key for key in original_rows if key.startswith(keys.numbers_of(keys.THREAD)) and key[-1] == 4)
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


def test_rows_that_another_writer_put_there_are_found_and_removed(original_rows: Rows) -> None:
    destination = MemoryStorage()
    stray = keys.header(1 << 40)

    def before(call: str) -> None:
        if call == "committed":
            put_raw(destination, stray, b"row")

    source = Store(in_memory(original_rows))
    with pytest.raises(CopyDamagedError, match="rows of"):
        copy_store(source, Watched(destination, before))
    assert stray in rows_of(destination)
    with pytest.raises(UnfinishedCopyError):
        Store(destination)
    copy_store(source, destination)
    assert rows_of(destination) == moved(original_rows)
