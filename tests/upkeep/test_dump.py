"""A dump carries all that can be read, into any storage; what is damaged or cut short is loaded nowhere in part."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

import deltastore
from deltastore import (
    ChecksumError,
    CorruptionError,
    DeltastoreError,
    FormatError,
    InvalidInputError,
    Reducer,
    Store,
    ThreadExistsError,
    ThreadNotFoundError,
    check,
)
from deltastore.langgraph import DeltaSaver
from deltastore.log import copying, keys
from deltastore.upkeep import dumpframes, loading_thread
from deltastore.upkeep.dumping import Dumped, dump
from deltastore.upkeep.loading import Loaded, load
from tests.langgraph.comparing import Pair, checkpoint, config
from tests.raw import everything, put_raw, rows_of

ROOT = Path(__file__).parents[2]
DOCUMENT = "".join(f"line {number} of a document\n" for number in range(500))
NAMES = ("plain", "é\0 \ud800", "x" * 60_000)
TOTAL = Reducer("total", 3, lambda value, write: value + write, int)


def dumped(store: Store, *threads: str) -> bytes:
    stream = io.BytesIO()
    dump(store, stream, threads or None)
    return stream.getvalue()


def loaded(data: bytes, **options: Any) -> Store:
    store = deltastore.open(":memory:", **options)
    load(store, io.BytesIO(data))
    report = check(store)
    assert report.ok, report.problems
    return store


@pytest.fixture
def full(open_store: Callable[..., Store]) -> Store:
    """A store with something of everything."""
    store = open_store(snapshot_frequency=7, reducers=[TOTAL], channels={"sum": "total"})
    for name in NAMES:
        thread = store.thread(name)
        for number in range(45):
            document = DOCUMENT.replace(f"line {number} ", f"LINE {number} ")
            thread.append({"m": [{"id": number, "text": "said " * 20}], "sum": number, "doc": {"text": document}})
            if number % 9 == 0:
                made = thread.append({"m": ["fork"]}, at=list(thread.history(limit=4))[-1])
                thread.put_writes(made, {"m": [number], "w": None}, task=f"task {number}")
        history = list(thread.history())
        thread.tag("é", at=history[5])
        thread.delete(history[0])
        thread.delete(history[30])
        store.thread(name, namespace="other").put_state({"n": [1, 2, 3], "s": "x"}, metadata={"why": "test"})
    return store


class TestEverything:
    def test_it_reads_equal(self, full: Store, tmp_path: Path) -> None:
        data = dumped(full)
        for target in (":memory:", tmp_path / "loaded.ds"):
            with deltastore.open(target, reducers=[TOTAL], channels={"sum": "total"}) as store:
                assert load(store, io.BytesIO(data)) == Loaded(3, 0, sum(found.checkpoints for found in full.threads()))
                assert everything(store) == everything(full)
                for mine, theirs in zip(store.threads(), full.threads(), strict=True):
                    assert (mine.name, mine.created_at, mine.updated_at, mine.checkpoints, mine.metadata) == (
                        theirs.name,
                        theirs.created_at,
                        theirs.updated_at,
                        theirs.checkpoints,
                        theirs.metadata,
                    )
                for name in NAMES:
                    for namespace in ("", "other"):
                        one, other = store.thread(name, namespace=namespace), full.thread(name, namespace=namespace)
                        assert (one.state(), one.tags(), one.forks()) == (other.state(), other.tags(), other.forks())
                report = check(store)
                assert report.ok, report.problems
                assert dumped(store) == data
                made = store.thread(NAMES[0]).append({"sum": 1})
                assert store.thread(NAMES[0]).state()["sum"] == full.thread(NAMES[0]).state()["sum"] + 1
                assert made.id > max(everything(full)[NAMES[0]])

    def test_it_takes_no_more_room(self, full: Store) -> None:
        data = dumped(full)
        stored = sum(len(key) + len(row) for key, row in rows_of(full.log.storage).items())
        store = loaded(data)
        assert store.info().used_bytes <= stored
        assert len(data) < stored

    def test_a_few_threads_by_name(self, full: Store) -> None:
        store = loaded(dumped(full, NAMES[1], NAMES[0]))
        assert [found.name for found in store.threads()] == [NAMES[1], NAMES[0]]  # as listed where they come from
        with pytest.raises(ThreadNotFoundError, match="never"):
            dumped(full, NAMES[0], "never")
        with pytest.raises(InvalidInputError, match="collection of names"):
            dump(full, io.BytesIO(), NAMES[0])

    def test_nothing_is_decoded(self, full: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: Any) -> Any:
            raise AssertionError("a value was decoded")

        monkeypatch.setattr("deltastore.codec.strict.strict_unpack", refuse)
        load(deltastore.open(":memory:"), io.BytesIO(dumped(full)))

    def test_an_empty_store(self, store: Store) -> None:
        data = dumped(store)
        assert dumped(loaded(data)) == data

    def test_what_was_deleted_stays_behind(self, store: Store) -> None:
        thread = store.thread("t")
        thread.append({"m": ["kept"]})
        made = thread.append({"m": ["SECRET" * 30]})
        thread.put_state({"m": ["kept"]})
        thread.delete(made)
        again = loaded(dumped(store))
        assert check(store).garbage_chunks == 1
        report = check(again)
        assert (report.garbage_chunks, report.chunks) == (0, 1)

    def test_thousands_of_rows_in_bounded_transactions(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        for number in range(120):
            store.thread("t").append({"n": number})
            store.thread("t", namespace=f"call:{number}").append({"n": number})
        data = dumped(store)
        monkeypatch.setattr(copying, "MAX_COPIED_ROWS", 10)
        most = 0
        write = loading_thread.ThreadLoad._write

        def counted(self: Any, tx: Any) -> None:
            nonlocal most
            most = max(most, len(self._batch) + len(self._ended))
            write(self, tx)

        monkeypatch.setattr(loading_thread.ThreadLoad, "_write", counted)
        again = loaded(data)
        assert most <= 12
        assert dumped(again) == data
        assert again.thread("t", namespace="call:77").state() == {"n": 77}


class Xor:
    """A cipher that is none."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "xor", bytes(byte ^ 1 for byte in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return bytes(byte ^ 1 for byte in ciphertext)


class TestLangGraph:
    def test_interned_tags_get_the_numbers_of_the_store(self, store: Store) -> None:
        saver = DeltaSaver(store, serde=EncryptedSerializer(Xor()))
        where = config("t")
        for number in range(40):
            made = checkpoint(f"{number:03}", {"c": number, "d": 1}, {"c": [number], "d": {"k": "v"}})
            where = saver.put(where, made, {"step": number}, {"c": number})
            saver.put_writes(where, [("c", number)], "task", "path")
        target = deltastore.open(":memory:")
        for kind in ("a", "b", "c"):  # other kinds of data came here first
            target.log.names.number(keys.TAG, kind)
        target.thread("else").append({"z": 1})
        load(target, io.BytesIO(dumped(store)))
        assert check(target).ok
        reader = DeltaSaver(target, serde=EncryptedSerializer(Xor()))
        assert list(reader.list(None)) == list(saver.list(None))
        assert dumped(target, "t") == dumped(store)

    def test_it_reads_as_the_reference_does(self, pair: Pair) -> None:
        for space in ("", "sub:1"):
            where = config("t", ns=space)
            for number in range(90):
                values = {"messages": list(range(number)), "doc": {"text": DOCUMENT[number:]}}
                made = checkpoint(f"{number * 7 % 90:03}", {"messages": number, "doc": number}, values)
                where = pair.put(where, made, {"source": "loop", "step": number, "parents": {}})
                pair.put_writes(where, [("messages", [number]), ("doc", number)], f"task {number}", "path")
        pair.put_writes(config("t", "never"), [("messages", ["early"])], "early")
        store = loaded(dumped(pair.saver.store))
        saver = DeltaSaver(store)
        assert pair.compare_all(saver) == 180
        pair.put(config("t", "never0"), checkpoint("never", {}, {}))
        saver.put(config("t", "never0"), checkpoint("never", {}, {}), {"source": "loop", "step": 0, "parents": {}}, {})
        pair.compare(config("t", "never"), saver)
        assert check(store).ok


@pytest.fixture
def pair(open_store: Callable[..., Store]) -> Pair:
    return Pair(DeltaSaver(open_store(snapshot_frequency=4)))


class TestNamesInUse:
    def test_one_raises_before_it_is_written(self, full: Store) -> None:
        data = dumped(full)
        store = deltastore.open(":memory:")
        store.thread(NAMES[1]).append({"mine": 1})
        with pytest.raises(ThreadExistsError):
            load(store, io.BytesIO(data))
        assert [found.name for found in store.threads()] == [NAMES[0], NAMES[1]]
        assert store.thread(NAMES[1]).state() == {"mine": 1}
        assert check(store).queued_threads == 0
        assert check(store).ok

    def test_it_may_be_left_out(self, full: Store) -> None:
        data = dumped(full)
        store = deltastore.open(":memory:")
        store.thread(NAMES[1]).append({"mine": 1})
        assert load(store, io.BytesIO(data), skip_existing=True).skipped == 1
        assert store.thread(NAMES[1]).state() == {"mine": 1}
        assert load(store, io.BytesIO(data), skip_existing=True) == Loaded(0, 3, 0)

    def test_it_may_be_renamed(self, full: Store) -> None:
        before = rows_of(full.log.storage)
        told: list[Any] = []
        load(
            full, io.BytesIO(dumped(full)), rename=lambda name: name[:9] + "2", progress=lambda *done: told.append(done)
        )
        assert told == [(1, None), (2, None), (3, None)]
        assert everything(full)["plain2"] == everything(full)["plain"]
        changed = before.items() - rows_of(full.log.storage).items()
        assert {key for key, _ in changed} <= {keys.counter(keys.THREAD)}
        with pytest.raises(InvalidInputError, match="renamed"):
            load(full, io.BytesIO(dumped(full)), rename=lambda _: "")

    def test_some_may_be_renamed_by_name(self, full: Store) -> None:
        before = everything(full)
        store = deltastore.open(":memory:", reducers=[TOTAL])
        swapped = {NAMES[0]: NAMES[1], NAMES[1]: NAMES[0]}
        assert load(store, io.BytesIO(dumped(full)), rename=swapped).threads == 3
        found = everything(store)
        assert found == {swapped.get(name, name): held for name, held in before.items()}
        assert check(store).ok

    def test_a_renamed_one_may_be_in_use_too(self, full: Store) -> None:
        data = dumped(full, NAMES[0])
        with pytest.raises(ThreadExistsError, match=r"named 'é.* already; 0 threads before it were loaded.* rename"):
            load(full, io.BytesIO(data), rename={NAMES[0]: NAMES[1]})
        assert load(full, io.BytesIO(data), rename={NAMES[0]: NAMES[1]}, skip_existing=True) == Loaded(0, 1, 0)
        assert load(full, io.BytesIO(data), rename={NAMES[0]: "new"}).threads == 1

    @pytest.mark.parametrize("pipe", [False, True])
    def test_what_is_to_be_renamed_must_be_there(self, full: Store, pipe: bool) -> None:
        """A file is looked through first; what comes through a pipe is loaded when it turns out."""

        class Pipe:
            def __init__(self, data: bytes) -> None:
                self.read = io.BytesIO(data).read

        data = dumped(full, NAMES[0])
        store = deltastore.open(":memory:", reducers=[TOTAL])
        with pytest.raises(ThreadNotFoundError, match=r"no thread named 'plane', .* it holds 'plain'; ") as caught:
            load(store, Pipe(data) if pipe else io.BytesIO(data), rename={"plane": "other"})
        assert ("1 threads of it were loaded" if pipe else "nothing of it was loaded") in str(caught.value)
        assert everything(store).keys() == ({NAMES[0]} if pipe else set())
        assert load(store, Pipe(data) if pipe else io.BytesIO(data), rename={NAMES[0]: "other"}).threads == 1

    def test_a_file_is_read_from_where_it_stands(self, full: Store) -> None:
        stream = io.BytesIO(b"a header of another's" + dumped(full, NAMES[0]))
        stream.seek(21)
        assert load(full, stream, rename={NAMES[0]: "new"}).threads == 1

    @pytest.mark.parametrize(
        ("rename", "message"),
        [
            ({"a": ""}, "renamed so"),
            ({"": "a"}, "renamed so"),
            ({"a": 1}, "renamed so"),
            ({"a": "c", "b": "c"}, "'a' and 'b' can't both be renamed to 'c'"),
            (7, "expected a mapping"),
        ],
    )
    def test_wishes_that_are_none(self, full: Store, rename: Any, message: str) -> None:
        with pytest.raises(InvalidInputError, match=message):
            load(full, io.BytesIO(dumped(full)), rename=rename)

    def test_of_a_damaged_dump_what_is_whole_is_loaded_all_the_same(self, full: Store) -> None:
        data = dumped(full, NAMES[0], NAMES[1])
        store = deltastore.open(":memory:", reducers=[TOTAL])
        with pytest.raises(ChecksumError, match=r"thread 'é.*and 1 threads before it were"):
            load(store, io.BytesIO(data[:-60]), rename={NAMES[0]: "new", NAMES[2]: "unseen"})
        assert everything(store).keys() == {"new"}

    def test_one_made_meanwhile(self, full: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        store = deltastore.open(":memory:")
        finish = loading_thread.ThreadLoad.finish

        def overtaken(self: Any) -> None:
            store.thread(NAMES[0]).append({"mine": 1})
            finish(self)

        monkeypatch.setattr(loading_thread.ThreadLoad, "finish", overtaken)
        with pytest.raises(ThreadExistsError, match="while it was loaded"):
            load(store, io.BytesIO(dumped(full)))
        assert everything(store).keys() == {NAMES[0]}
        assert check(store).ok
        assert check(store).queued_threads == 0


class TestDamage:
    @pytest.fixture
    def store(self) -> Store:
        return deltastore.open(":memory:")

    def test_every_kind_of_cut(self, store: Store) -> None:
        for name in ("a", "b"):
            for number in range(3):
                store.thread(name).append({"m": [number], "s": "text"})
            store.thread(name).tag("t")
        data = dumped(store)
        expected = everything(store)
        for end in range(len(data)):
            target = deltastore.open(":memory:")
            with pytest.raises((ChecksumError, FormatError)) as caught:
                load(target, io.BytesIO(data[:end]))
            found = everything(target)
            assert found == {name: expected[name] for name in found}
            report = check(target)
            assert report.ok
            assert (report.threads, report.queued_threads) == (len(found), 0)
            if len(found) < 2 and end > len(data) // 10:
                assert (
                    f"thread {'ab'[len(found)]!r}" in str(caught.value)
                    or "'end'" in str(caught.value)
                    or (str(caught.value) == "the dump ends early")
                )

    def test_every_flipped_byte(self, store: Store) -> None:
        for number in range(3):
            store.thread("a").append({"m": [number], "s": "text"})
        store.thread("a").put_writes(store.thread("a").latest(), {"w": 1})
        data = dumped(store)
        expected = everything(store)
        begin = data.index(b"\x96\xc4") if b"\x96\xc4" in data else len(dumpframes.MAGIC)
        for place in range(len(data)):
            for bit in (1, 0x80):
                damaged = data[:place] + bytes((data[place] ^ bit,)) + data[place + 1 :]
                target = deltastore.open(":memory:")
                try:
                    load(target, io.BytesIO(damaged))
                except (CorruptionError, FormatError):
                    assert everything(target) in ({}, expected)
                else:
                    assert everything(target) == expected
                    assert place <= begin + 100  # in the name of the tool
                assert check(target).ok

    def test_a_damaged_thread_isn_t_dumped_as_if_it_were_whole(self, store: Store) -> None:
        for number in range(5):
            store.thread("a").append({"m": [f"text {number}"], "n": number})
        for kind in (b"c", b"r"):
            rows = rows_of(store.log.storage)
            key = next(key for key in rows if key.startswith(keys.thread(1) + kind))
            put_raw(store.log.storage, key, None)
            with pytest.raises(CorruptionError, match="thread 'a' can't be dumped"):
                dumped(store)
            put_raw(store.log.storage, key, rows[key])
        dumped(store)

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (b"", "is no dump"),
            (b"SQLite format 3\0" * 2, "is no dump"),
            (dumpframes.MAGIC, "ends early"),
        ],
    )
    def test_other_files(self, data: bytes, message: str) -> None:
        with pytest.raises(DeltastoreError, match=message):
            load(deltastore.open(":memory:"), io.BytesIO(data))

    def test_another_version(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dumpframes, "DUMP_VERSION", 2)
        data = dumped(store)
        monkeypatch.undo()
        with pytest.raises(FormatError, match="version 2, written by deltastore"):
            load(store, io.BytesIO(data))


class TestFiles:
    @pytest.fixture
    def full(self) -> Store:
        store = deltastore.open(":memory:")
        for name in NAMES:
            store.thread(name).append({"m": [1]})
        return store

    def test_a_path(self, full: Store, tmp_path: Path) -> None:
        made = dump(full, tmp_path / "all.dump")
        data = (tmp_path / "all.dump").read_bytes()
        assert made == Dumped(3, sum(found.checkpoints for found in full.threads()), len(data))
        assert data == dumped(full)
        store = deltastore.open(":memory:")
        assert load(store, tmp_path / "all.dump").threads == 3

    def test_none_is_overwritten(self, store: Store, tmp_path: Path) -> None:
        (tmp_path / "there").write_text("mine")
        with pytest.raises(InvalidInputError, match="file to be made"):
            dump(store, tmp_path / "there")
        assert (tmp_path / "there").read_text() == "mine"
        with pytest.raises(InvalidInputError, match="no dump can be read"):
            load(store, tmp_path / "missing")

    def test_one_that_fails_is_removed(self, full: Store, tmp_path: Path) -> None:
        def fail(done: int, total: int | None) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            dump(full, tmp_path / "all.dump", progress=fail)
        assert list(tmp_path.glob("*.dump")) == []

    def test_what_an_open_file_raises_is_raised(self, full: Store) -> None:
        class Closed:
            def write(self, data: bytes) -> None:
                raise BrokenPipeError

        with pytest.raises(BrokenPipeError):
            dump(full, Closed())

    def test_a_pipe_that_gives_little_at_a_time(self, full: Store) -> None:
        class Slow(io.BytesIO):
            def read(self, count: int | None = -1, /) -> bytes:
                return super().read(min(count or 0, 1000))

        store = deltastore.open(":memory:")
        assert load(store, Slow(dumped(full))).threads == 3


def test_killed_while_loading_it_shows_nothing_of_the_thread(full: Store, tmp_path: Path) -> None:
    dump(full, tmp_path / "all.dump")
    script = """
import os, sys, time, deltastore
from deltastore.log import copying
from deltastore.upkeep import loading_thread
from deltastore.upkeep.loading import load
copying.MAX_COPIED_ROWS = 20
flush, flushed = loading_thread.ThreadLoad._flush, []
def slow(self):
    flush(self)
    flushed.append(self._name)
    if flushed.count("é\\0 \\ud800") == 2:
        os.write(1, b"half\\n")
        time.sleep(600)
loading_thread.ThreadLoad._flush = slow
load(deltastore.open(sys.argv[1]), sys.argv[2])
"""
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "loaded.ds"), str(tmp_path / "all.dump")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.fspath(ROOT)},
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "half\n"
        child.send_signal(signal.SIGKILL)
    with deltastore.open(tmp_path / "loaded.ds") as store:
        report = check(store)
        assert report.ok, report.problems
        assert (report.threads, report.queued_threads) == (1, 1)
        assert [found.name for found in store.threads()] == [NAMES[0]]
        assert store.collect().threads == 0  # it may still be under way
        assert load(store, tmp_path / "all.dump", skip_existing=True) == Loaded(
            2, 1, sum(found.checkpoints for found in full.threads() if found.name != NAMES[0])
        )
        store.log._clock = lambda: 2**40
        assert store.collect().rows > 20
        assert check(store).queued_threads == 0
        assert dumped(store, *NAMES[1:]) == dumped(full, *NAMES[1:])
