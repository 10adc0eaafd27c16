"""Redo records: over power cuts and kills, one after the other, a store holds what was acknowledged or under way.

The model is a dict. The disk is that of `tests/power_cuts.py`: a file, of which some sectors may still be what they
were at the last flush.
"""

import os
import random
import resource
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import deltastore
from deltastore import StoreFullError
from deltastore.storage import engine
from deltastore.storage.lmdb import LmdbStorage
from deltastore.storage.redo import ROW_BYTES, Redo
from tests import power_cuts
from tests.power_cuts import META_PAGES, PAGE, SECTOR, changed, page, torn, with_pages, without_its_name
from tests.upkeep.stopping import Environment, in_child

Rows = dict[bytes, bytes]

LARGEST = PAGE
"""More than a record has room for."""

EXAMPLES = {"quick": 25, "ci": 1_000, "deep": 20_000}


def rows_of(storage: LmdbStorage) -> Rows:
    with storage.read() as tx:
        return dict(tx.scan(b"", b"\xff" * 8))


class Disk:
    """A store on a disk that has its own mind about what isn't flushed. `flushed`: what is there for certain."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self._folder = folder
        self._chance = chance
        self._opened = 0
        self.flushed = b""
        self._boot(None)
        self.flushed = self.cached
        self.rows: Rows = {}
        self.under_way: list[Rows] = []

    @property
    def cached(self) -> bytes:
        """What the system has of the file, and every process sees."""
        return (self.root / power_cuts.DATA_FILE).read_bytes()

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
        if file != before:
            self.flushed = without_its_name(before, file) if power_cuts.has_record(before, file) else file
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
            first = without_its_name(before, self.cached) if self.cached != before else before
        self.storage.close()
        pages: dict[int, bytes] = {}
        for number in changed(flushed, first):
            mask = chance.choice([0, 255, chance.randrange(256)])
            pages[number] = torn(page(flushed, number), page(first, number), mask)
        self._reopen(with_pages(flushed, pages), allowed)

    def kill(self, *, beside: bool) -> None:
        """Kill a process between a record and its commit. Another one goes on, or opens what is left."""
        rows, before, flushed = self.rows, self.cached, self.flushed
        with self.storage.write() as self.tx:
            after = self._change(rows)
        file = self.cached
        self.storage.close()
        left = with_pages(before, {n: page(before, n)[:SECTOR] + page(file, n)[SECTOR:] for n in range(META_PAGES)})
        if not beside or self.under_way:
            self._reopen(left, [rows, after, *self.under_way])
            return
        self._boot(before)
        assert rows_of(self.storage) == rows
        self.flushed = flushed
        with (self.root / power_cuts.DATA_FILE).open("r+b") as shared:
            shared.write(left[: META_PAGES * PAGE])
        assert rows_of(self.storage) == rows
        self.under_way = [after]

    def _reopen(self, file: bytes, allowed: list[Rows]) -> None:
        self._boot(file)
        self.rows = rows_of(self.storage)
        assert self.rows in allowed
        # whatever was done again was flushed; else the disk has what it was booted with
        self.flushed = self.cached if power_cuts.changed(file, self.cached) else file
        self.under_way = []
        self.storage.close()
        self.storage = LmdbStorage(self.root)
        assert rows_of(self.storage) == self.rows  # once and for all


def test_what_was_acknowledged_outlives_cuts_and_kills(tmp_path: Path, request: pytest.FixtureRequest) -> None:
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
        disk = Disk(folder, chance)
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


def test_an_interrupted_write_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    inner = engine.open_environment
    with monkeypatch.context() as patch:
        patch.setattr(engine, "open_environment", lambda *a, **o: Environment(inner(*a, **o), interrupt))
        with deltastore.open(root) as store, pytest.raises(KeyboardInterrupt):
            store.thread("t").append({"n": [1]})
        assert interrupted
    with deltastore.open(root) as store:
        assert store.thread("t").state() == {"n": [0]}
