"""Redo records: over power cuts and kills, one after the other, a store holds what was acknowledged or under way.

The model is a dict. The disk is that of `tests/power_cuts.py`: a file, of which some sectors may still be what they
were at the last flush.
"""

import os
import random
import resource
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import deltastore
from deltastore import CommitUnknownError, StorageError, StoreFullError
from deltastore.storage import engine
from deltastore.storage.lmdb import LmdbStorage
from deltastore.storage.moving import moving
from deltastore.storage.redo import ROW_BYTES, Redo
from deltastore.storage.turns import Turns
from tests import power_cuts
from tests.power_cuts import META_PAGES, PAGE, SECTOR, changed, page, torn, with_pages, without_its_name
from tests.upkeep.stopping import Environment, ended, in_child, started

Rows = dict[bytes, bytes]
Calls = list[Callable[[str], object]]

LARGEST = PAGE
"""More than a record has room for."""

EXAMPLES = {"quick": 25, "ci": 1_000, "deep": 20_000}


def rows_of(storage: LmdbStorage) -> Rows:
    with storage.read() as tx:
        return dict(tx.scan(b"", b"\xff" * 8))


def is_named(before: bytes, after: bytes) -> bool:
    """Tell whether there was a commit between two states of a file."""
    return any(page(before, number)[:SECTOR] != page(after, number)[:SECTOR] for number in range(META_PAGES))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    """What is told of each call of an environment that is opened from now on, before it is made."""
    told: list[Callable[[str], object]] = []

    def tell(call: str) -> None:
        for each in told:
            each(call)

    inner = engine.open_environment
    with monkeypatch.context() as patch:
        patch.setattr(engine, "open_environment", lambda *a, **o: Environment(inner(*a, **o), tell))
        yield told


class Disk:
    """A store on a disk that has its own mind about what isn't flushed. `flushed`: what is there for certain."""

    def __init__(self, folder: Path, chance: random.Random, calls: Calls) -> None:
        self._folder = folder
        self._chance = chance
        self._opened = 0
        calls[:] = [self._called]
        self._boot(None)
        self.flushed = self.cached
        self.rows: Rows = {}
        self.under_way: list[Rows] = []

    @property
    def cached(self) -> bytes:
        """What the system has of the file, and every process sees."""
        return (self.root / power_cuts.DATA_FILE).read_bytes()

    def _called(self, call: str) -> None:
        if call == "sync":
            self.flushed = self.cached

    def _boot(self, file: bytes | None) -> None:
        self._opened += 1
        self.root = self._folder / f"{self._opened}.ds"
        if file is not None:
            power_cuts.write_store(self.root, file)
        self.storage = LmdbStorage(self.root)

    def _change(self, rows: Rows) -> Rows:
        """Do a few changes in the open transaction; return what the rows are after it."""
        chance, after = self._chance, dict(rows)
        for _ in range(chance.randint(1, 4)):
            key = b"%02d" % chance.randrange(12)
            if chance.random() < 0.3:
                self.tx.delete(key)
                after.pop(key, None)
            elif chance.random() < 0.1:
                self.tx.delete_range(key, key[:1] + b"z")
                after = {k: v for k, v in after.items() if not key <= k < key[:1] + b"z"}
            else:
                after[key] = chance.randbytes(chance.choice([3, 300, LARGEST] if chance.random() < 0.3 else [3, 300]))
                self.tx.put(key, after[key])
        return after

    def commit(self) -> None:
        """Write, and be told that it is durable."""
        before = self.cached
        with self.storage.write() as self.tx:
            after = self._change(self.rows)
        file = self.cached
        if is_named(before, file):  # else nothing was changed, or a record removed that came to nothing
            if power_cuts.has_record(before, file):
                self.flushed = without_its_name(before, file)
            assert self.flushed != before
            self.under_way = []
        self.rows = after

    def cut(self) -> None:
        """Lose the power, perhaps in the middle of a commit's flush, and open what is left."""
        chance, rows, flushed, before = self._chance, self.rows, self.flushed, self.cached
        allowed = [rows, *self.under_way]
        first = before
        if chance.random() < 0.7:
            with self.storage.write() as self.tx:
                allowed.append(self._change(rows))
            first = without_its_name(before, self.cached) if is_named(before, self.cached) else self.cached
        self.storage.close()
        file = self._left(flushed, first)
        while chance.random() < 0.3:  # once more, while what was lost is done again
            self._boot(file)
            again = self.cached
            self.storage.close()
            file = self._left(file, without_its_name(file, again) if is_named(file, again) else again)
        self.flushed = file
        self._reopen(file, allowed)

    def _left(self, flushed: bytes, first: bytes) -> bytes:
        """Return what a cut leaves in the middle of a flush."""
        pages: dict[int, bytes] = {}
        for number in changed(flushed, first):
            mask = self._chance.choice([0, 255, self._chance.randrange(256)])
            pages[number] = torn(page(flushed, number), page(first, number), mask)
        return with_pages(flushed, pages)

    def kill(self, *, beside: bool) -> None:
        """Kill a process between a record and its commit. Another one goes on, or opens what is left."""
        rows, before, flushed = self.rows, self.cached, self.flushed
        with self.storage.write() as self.tx:
            after = self._change(rows)
        file = self.cached
        self.storage.close()
        left = with_pages(before, {n: page(before, n)[:SECTOR] + page(file, n)[SECTOR:] for n in range(META_PAGES)})
        self.flushed = flushed
        if not beside or self.under_way:
            self._reopen(left, [rows, after, *self.under_way])
            return
        self._boot(before)
        assert rows_of(self.storage) == rows
        with (self.root / power_cuts.DATA_FILE).open("r+b") as shared:
            shared.write(left[: META_PAGES * PAGE])
        assert rows_of(self.storage) == rows
        self.under_way = [after]

    def _reopen(self, file: bytes, allowed: list[Rows]) -> None:
        self._boot(file)
        self.rows = rows_of(self.storage)
        assert self.rows in allowed
        self.under_way = []
        self.storage.close()
        self.storage = LmdbStorage(self.root)
        assert rows_of(self.storage) == self.rows  # once and for all


def test_what_was_acknowledged_outlives_cuts_and_kills(
    tmp_path: Path, request: pytest.FixtureRequest, calls: Calls
) -> None:
    seen: Counter[str] = Counter()
    opened = 0

    @settings(
        max_examples=EXAMPLES[request.config.getoption("--profile")],
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=True))
    def live(chance: random.Random) -> None:
        nonlocal opened
        opened += 1
        folder = tmp_path / str(opened)
        folder.mkdir()
        disk = Disk(folder, chance, calls)
        for _ in range(12):
            what = chance.choice(["commit", "commit", "commit", "cut", "kill", "kill beside"])
            seen[what] += 1
            if what == "commit":
                disk.commit()
            elif what == "cut":
                disk.cut()
            else:
                disk.kill(beside=what == "kill beside")
            assert rows_of(disk.storage) == disk.rows
        disk.storage.close()

    live()
    print(dict(seen))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data.mdb"
    path.write_bytes(bytes([1]) * SECTOR + bytes(PAGE - SECTOR) + bytes([2]) * SECTOR + bytes(PAGE - SECTOR))
    return path


CHANGES = [(b"key", b"value"), (b"gone", None), (b"", b"")]


def test_a_record_is_read_as_it_was_written(file: Path) -> None:
    redo = Redo(file, PAGE)
    assert redo.lost(7) == []
    redo.note(7, CHANGES)
    assert redo.is_ahead(6)
    assert not redo.is_ahead(7)
    assert redo.lost(7) == CHANGES
    redo.drop(8)
    assert redo.lost(7) == CHANGES
    redo.drop(7)
    assert not redo.is_ahead(0)
    assert redo.lost(7) == []
    redo.close()


def test_a_record_has_the_room_that_it_says(file: Path) -> None:
    redo = Redo(file, PAGE)
    for changes in ([(b"k", b"v" * (redo.room - 1 - ROW_BYTES))], [(b"", b"")] * (redo.room // ROW_BYTES)):
        redo.note(4, changes)
        assert file.stat().st_size == META_PAGES * PAGE
        assert file.read_bytes()[:SECTOR] == bytes([1]) * SECTOR
        assert redo.lost(4) == changes
    redo.close()


def test_a_record_counts_only_after_the_commit_that_it_was_written_after(file: Path) -> None:
    redo = Redo(file, PAGE)
    redo.note(7, CHANGES)
    redo.note(8, CHANGES)  # as if 7 had been committed
    whole = file.read_bytes()
    assert redo.lost(7) == CHANGES
    assert not redo.is_ahead(7)  # the one after it is gone
    for number in (7, 8):
        file.write_bytes(with_pages(whole, {n: bytes([3]) * SECTOR + page(whole, n)[SECTOR:] for n in (0, 1)}))
        assert redo.lost(number) == []
        assert not redo.is_ahead(number - 1)
    redo.close()


def test_a_damaged_record_is_none(file: Path) -> None:
    redo = Redo(file, PAGE)
    redo.note(6, CHANGES)
    whole = file.read_bytes()
    end = len(whole.rstrip(b"\0"))
    for place in [*range(PAGE, PAGE + 8), *range(PAGE + SECTOR, end)]:
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            file.write_bytes(damaged)
            assert redo.lost(6) == []
    redo.close()


def test_a_write_that_failed_is_not_done_again(tmp_path: Path) -> None:
    """The device has no room for a commit's pages after its record was written."""
    root = tmp_path / "runs.ds"

    def fail() -> None:
        with deltastore.open(root) as store:
            thread = store.thread("t")
            thread.append({"n": [0]})
            size = (root / power_cuts.DATA_FILE).stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
            failed = 0
            for number in range(1, 200):
                try:
                    thread.append({"n": [number]})
                except StoreFullError:
                    failed += 1
                    if failed > 2:
                        break
            assert failed
            expected = repr(thread.state())
            (tmp_path / "expected").write_text(expected)
        os._exit(0)

    assert in_child(fail) == 0
    with deltastore.open(root) as store:
        assert repr(store.thread("t").state()) == (tmp_path / "expected").read_text()


LARGE = b"large" * PAGE


def put(storage: LmdbStorage, **rows: bytes) -> None:
    with storage.write() as tx:
        for key, value in rows.items():
            tx.put(key.encode(), value)


def killed_at(call: str, calls: Calls, work: Callable[[], object], *, time: int = 1) -> None:
    """Do work in a child that dies when it is about to make this call for the first time, or a later one."""
    made = 0

    def die(each: str) -> None:
        nonlocal made
        made += each == call
        if made == time:
            os.kill(os.getpid(), signal.SIGKILL)

    def run() -> None:
        calls[:] = [die]
        work()

    assert in_child(run) == -signal.SIGKILL


def opened_in_child(root: Path) -> list[bytes]:
    """Return the keys that a process sees that opens the store now."""
    reader, writer = os.pipe()

    def look() -> None:
        storage = LmdbStorage(root)
        os.write(writer, b" ".join(rows_of(storage)))
        storage.close()

    assert in_child(look) == 0
    os.close(writer)
    with os.fdopen(reader, "rb") as found:
        return found.read().split()


def test_what_a_killed_process_did_not_commit_stays_away_while_others_have_the_store_open(
    tmp_path: Path, calls: Calls
) -> None:
    """Nor does opening wait for a writer."""
    root = tmp_path / "runs.ds"
    storage = LmdbStorage(root)
    put(storage, a=b"1")
    killed_at("commit", calls, lambda: put(LmdbStorage(root), b=b"2"))
    calls.clear()
    with storage.write() as tx:
        assert opened_in_child(root) == [b"a"]
        tx.put(b"c", b"3")
    assert opened_in_child(root) == [b"a", b"c"]
    killed_at("commit", calls, lambda: put(LmdbStorage(root), b=b"2"))
    calls.clear()
    put(storage, d=LARGE)
    storage.close()
    assert opened_in_child(root) == [b"a", b"c", b"d"]
    killed_at("commit", calls, lambda: put(LmdbStorage(root), b=b"2"))
    calls.clear()
    assert opened_in_child(root) == [b"a", b"b", b"c", b"d"]  # nobody had it open


def test_a_killed_move_leads_nowhere(tmp_path: Path, calls: Calls) -> None:
    root = tmp_path / "runs.ds"
    storage = LmdbStorage(root)
    put(storage, a=b"1")

    def move() -> None:
        other = LmdbStorage(root)
        with moving(other) as moved:
            moved.fill([(b"a", b"1")])
            with other.write() as tx:
                moved.take_over(tx)

    killed_at("commit", calls, move, time=2)  # the first one is the new environment's
    calls.clear()
    with pytest.raises(RuntimeError, match="given up"), moving(storage):  # removes what the killed one made
        raise RuntimeError("given up")
    storage.close()
    assert opened_in_child(root) == [b"a"]


def test_what_another_process_may_not_have_flushed_is_flushed_before_it_is_relied_on(
    tmp_path: Path, calls: Calls
) -> None:
    """A write that finds all as it wants it tells its caller that it is there; so does opening."""
    root = tmp_path / "runs.ds"
    storage = LmdbStorage(root)
    put(storage, a=b"1")
    made: list[str] = []
    calls.append(made.append)
    with storage.write():
        pass
    assert "sync" not in made
    killed_at("sync", calls, lambda: put(LmdbStorage(root), b=LARGE))
    calls[:] = [made.append]
    assert set(rows_of(storage)) == {b"a", b"b"}
    for _ in range(2):
        with storage.write():
            pass
        assert made.count("sync") == 1
    storage.close()
    killed_at("sync", calls, lambda: put(LmdbStorage(root), b=LARGE))
    calls[:] = [made.append]
    LmdbStorage(root).close()
    assert made.count("sync") == 2
    storage = LmdbStorage(root)
    put(storage, b=b"small")
    storage.close()
    LmdbStorage(root).close()
    assert made.count("sync") == 3  # by the opening after the large one; what has a record needs none


@pytest.mark.parametrize("is_removed", [True, False])
def test_a_failed_write_says_so_only_where_it_is_sure(is_removed: bool, tmp_path: Path, calls: Calls) -> None:
    root = tmp_path / "runs.ds"
    storage = LmdbStorage(root)
    put(storage, a=b"1")

    def refuse(call: str) -> None:
        if call == "commit" or (call == "sync" and not is_removed):
            raise engine.EngineError("the disk is broken")

    calls.append(refuse)
    with pytest.raises(StorageError if is_removed else CommitUnknownError, match="the disk is broken"):
        put(storage, b=b"2")
    calls.clear()
    storage.close()
    assert opened_in_child(root) == [b"a"]


def test_a_flush_that_fails_after_the_commit_is_told(tmp_path: Path, calls: Calls) -> None:
    storage = LmdbStorage(tmp_path / "runs.ds")

    def refuse(call: str) -> None:
        if call == "sync":
            raise engine.EngineError("the disk is broken")

    calls.append(refuse)
    with pytest.raises(CommitUnknownError, match="may be gone after a power cut"):
        put(storage, a=LARGE)
    calls.clear()
    assert rows_of(storage) == {b"a": LARGE}
    put(storage, b=b"2")
    storage.close()


@pytest.mark.parametrize(("operation", "arguments"), [("put", (b"a", b"2")), ("delete", (b"a",))])
def test_a_change_that_was_cut_short_is_in_no_record(
    operation: str, arguments: tuple[bytes, ...], tmp_path: Path, calls: Calls
) -> None:
    """The block goes on after an interruption; only the engine knows what was done, so it is flushed twice."""
    storage = LmdbStorage(tmp_path / "runs.ds")
    put(storage, a=b"1", b=b"1")
    made: list[str] = []

    def interrupt(call: str) -> None:
        made.append(call)
        if made.count(operation) == 1 and call == operation:
            raise KeyboardInterrupt

    calls.append(interrupt)
    with storage.write() as tx:
        with pytest.raises(KeyboardInterrupt):
            getattr(tx, operation)(*arguments)
        tx.put(b"b", b"2")
    assert "sync" in made
    assert rows_of(storage) == {b"a": b"1", b"b": b"2"}
    storage.close()


def test_a_change_that_was_not_made_counts_for_no_commit(tmp_path: Path, calls: Calls) -> None:
    """Nothing was changed but what was cut short: the next commit, of another process, has the number of this one."""
    root = tmp_path / "runs.ds"
    storage = LmdbStorage(root)
    put(storage, a=b"1")
    made: list[str] = []

    def interrupt(call: str) -> None:
        made.append(call)
        if made.count("put") == 1 and call == "put":
            raise KeyboardInterrupt

    calls.append(interrupt)
    with storage.write() as tx, pytest.raises(KeyboardInterrupt):
        tx.put(b"a", b"2")
    killed_at("sync", calls, lambda: put(LmdbStorage(root), b=LARGE))
    calls[:] = [made.append]
    made.clear()
    with storage.write():
        pass
    assert made.count("sync") == 1
    storage.close()


def test_an_opening_that_fails_leaves_it_to_the_next(tmp_path: Path) -> None:
    """It waits meanwhile, and must not take the one that failed for somebody who has the environment open."""

    class FullError(Exception):
        pass

    def fail() -> None:
        os.write(ready, b"opening")
        assert os.read(goes_on, 1) == b""  # closed: the other one waits, or is about to
        raise FullError

    def fail_and_stay() -> None:
        os.close(go)
        turns = Turns(tmp_path)
        with pytest.raises(FullError):
            turns.enter(fail)
        os.read(ends, 1)  # its files are still open
        turns.close()

    (begun, ready), (goes_on, go), (ends, end) = os.pipe(), os.pipe(), os.pipe()
    child = started(fail_and_stay, closing=end)
    assert os.read(begun, 7) == b"opening"
    os.close(go)
    turns, called = Turns(tmp_path), []
    turns.enter(lambda: called.append("first"))
    os.close(end)
    assert ended(child) == 0
    assert called == ["first"]
    turns.close()
    for descriptor in (begun, ready, goes_on, ends):
        os.close(descriptor)


def test_a_mode_without_flushes_does_it_again_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "runs.ds"
    storage = LmdbStorage(root)
    put(storage, a=b"1")
    before = (root / power_cuts.DATA_FILE).read_bytes()
    put(storage, b=b"2")
    after = (root / power_cuts.DATA_FILE).read_bytes()
    storage.close()
    power_cuts.write_store(root, without_its_name(before, after))
    modes: list[str] = []
    inner = engine.open_environment
    monkeypatch.setattr(
        engine, "open_environment", lambda path, size, sync, **o: modes.append(sync) or inner(path, size, sync, **o)
    )
    storage = LmdbStorage(root, sync="none")
    assert modes == ["none", "meta", "none"]
    assert rows_of(storage) == {b"a": b"1", b"b": b"2"}
    storage.close()


def test_an_interrupted_write_is_not_done_again(tmp_path: Path, calls: Calls) -> None:
    """The signal comes after the record was written, before the engine's commit."""
    interrupted = False

    def interrupt(call: str) -> None:
        nonlocal interrupted
        if call == "commit" and not interrupted:
            interrupted = True
            raise KeyboardInterrupt

    root = tmp_path / "runs.ds"
    with deltastore.open(root) as store:
        store.thread("t").append({"n": [0]})
        calls.append(interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.thread("t").append({"n": [1]})
        assert interrupted
    with deltastore.open(root) as store:
        assert store.thread("t").state() == {"n": [0]}
