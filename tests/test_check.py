"""Check finds every kind of damage, tells garbage from damage, and never falls over what it finds."""

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import ormsgpack
import pytest

import deltastore
from deltastore import Reducer, Store, check
from deltastore.codec import recordrow
from deltastore.codec import records as rec
from deltastore.codec.primitives import seal, unseal
from deltastore.log import deleting, keys, rows
from deltastore.log.keeping import Keeping
from deltastore.storage import Storage
from deltastore.storage.memory import MemoryStorage
from deltastore.upkeep.check import MAX_PROBLEMS, CheckReport
from tests.conftest import OpenStore
from tests.raw import everything, put_raw, rows_of

FIRST = keys.thread(1)


def say(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.fixture
def storage() -> Storage:
    return MemoryStorage()


@pytest.fixture
def damaged(storage: Storage) -> Store:
    """A store to be damaged: a thread of 12 checkpoints with two anchors, writes and a fork; a second thread."""
    store = Store(storage, snapshot_frequency=5)
    thread = store.thread("t")
    for number in range(11):
        made = thread.append({"m": [say(str(number))], "d": {str(number % 3): number}})
    thread.put_writes(made, {"w": "pending"})
    thread.append({"m": [say("fork")]}, at=list(thread.history())[6])
    store.thread("other").append({"m": [say("other")]})
    assert check(store).ok
    return store


def rows_of_kind(storage: Storage, kind: bytes, thread: int = 1) -> dict[bytes, bytes]:
    prefix = keys.thread(thread) + kind
    return {key: row for key, row in rows_of(storage).items() if key.startswith(prefix)}


def problems(report: CheckReport) -> str:
    assert not report.ok
    return "\n".join(f"{problem.where}: {problem.what}" for problem in report.problems)


def change_record(storage: Storage, place: int, **changes: Any) -> str:
    """Replace fields of the nth record of thread 1, with a right checksum; return its id."""
    key = sorted(rows_of_kind(storage, b"r"))[place]
    row = recordrow.decode_row(unseal(key, rows_of(storage)[key]), key[-16:], None)
    body = rec.encode_record(row.records[0]._replace(**changes))
    put_raw(storage, key, seal(key, recordrow.encode_row(body, (0, 0))))
    return deltastore.ulid.to_text(key[-16:])


def record_at(storage: Storage, place: int) -> tuple[bytes, rec.Record]:
    key = sorted(rows_of_kind(storage, b"r"))[place]
    return key[-16:], recordrow.decode_row(unseal(key, rows_of(storage)[key]), key[-16:], None).records[0]


def change_namespace(storage: Storage, **changes: Any) -> None:
    with storage.write() as tx:
        (namespace,) = rows.load_namespaces(tx, 1)
        rows.store_namespace(tx, 1, replace(namespace, **changes))


def change_header(storage: Storage, **changes: Any) -> None:
    with storage.write() as tx:
        header = rows.load_header(tx, 1)
        assert header is not None
        rows.store_header(tx, 1, replace(header, **changes))


class TestHealthy:
    def test_an_empty_store(self, store: Store) -> None:
        report = check(store)
        assert report.ok
        assert report == CheckReport(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ())

    def test_what_is_counted(self, open_store: OpenStore) -> None:
        store = open_store(snapshot_frequency=4)
        for name, count in (("a", 9), ("b", 2)):
            for number in range(count):
                store.thread(name).append({"m": [say(f"{name}{number}")], "n": number})
        report = check(store)
        assert report.ok
        assert (report.threads, report.checkpoints, report.hidden, report.max_depth) == (2, 11, 0, 3)
        assert report.chunks == 22
        assert 22 * 2 < report.chunk_bytes < 22 * 40
        assert (report.garbage_chunks, report.garbage_bytes, report.garbage_records) == (0, 0, 0)
        assert (report.writes_without_checkpoint, report.queued_threads) == (0, 0)

    def test_it_writes_nothing(self, damaged: Store, storage: Storage) -> None:
        before = rows_of(storage)
        check(damaged)
        assert rows_of(storage) == before

    def test_it_needs_no_reducer_and_decodes_no_value(
        self, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        total = Reducer("total", 1, lambda value, write: value + write, int)
        store = open_store(reducers=[total], channels={"n": "total"})
        for number in range(3):
            store.thread("t").append({"n": number, "m": [say("x")]})

        def refuse(*_: Any) -> Any:
            raise AssertionError("a value was decoded")

        monkeypatch.setattr("deltastore.codec.strict.StrictCodec.decode", refuse)
        monkeypatch.setattr("deltastore.codec.strict.StrictCodec.decode_list", refuse)
        assert check(open_store()).ok


class TestDamage:
    @pytest.mark.parametrize("kind", [b"h", b"n", b"r", b"w", b"c"])
    def test_a_flipped_byte_in_each_row(self, damaged: Store, storage: Storage, kind: bytes) -> None:
        for key, row in rows_of_kind(storage, kind).items():
            put_raw(storage, key, row[:-1] + bytes((row[-1] ^ 1,)))
            found = problems(check(damaged))
            assert f"row {key.hex()} fails its checksum" in found
            assert "'t'" in found or "thread 1" in found
            put_raw(storage, key, row)
        assert check(damaged).ok

    @pytest.mark.parametrize("place", range(12))
    def test_a_missing_record(self, damaged: Store, storage: Storage, place: int) -> None:
        put_raw(storage, sorted(rows_of_kind(storage, b"r"))[place], None)
        found = problems(check(damaged))
        assert "thread 't': namespace '': 12 checkpoints are counted, 11 are there" in found
        if place not in (4, 9, 10, 11):  # the record after it is a delta
            assert "a delta whose base isn't the record before it" in found
        if place == 11:
            assert "its tip isn't the last record" in found
            assert "its latest is" in found

    def test_each_missing_chunk_row(self, damaged: Store, storage: Storage) -> None:
        for key, row in rows_of_kind(storage, b"c").items():
            put_raw(storage, key, None)
            number = int.from_bytes(key[-6:], "big")
            assert f"needs chunk {number} of series 0, which is missing" in problems(check(damaged))
            put_raw(storage, key, row)

    @pytest.mark.parametrize("kind", [b"r", b"c"])
    def test_swapped_rows(self, damaged: Store, storage: Storage, kind: bytes) -> None:
        (one, row_one), (two, row_two), *_ = rows_of_kind(storage, kind).items()
        put_raw(storage, one, row_two)
        put_raw(storage, two, row_one)
        found = problems(check(damaged))
        assert f"row {one.hex()} fails its checksum" in found

    def test_a_missing_header_or_namespace(self, damaged: Store, storage: Storage) -> None:
        content = rows_of(storage)
        header = keys.header(1)
        put_raw(storage, header, None)
        assert "thread 't': its header is missing" in problems(check(damaged))
        put_raw(storage, header, content[header])
        namespace = keys.namespace(1, b"")
        put_raw(storage, namespace, None)
        found = problems(check(damaged))
        assert "belongs to namespace 1, which isn't there" in found
        assert "its header counts 12 checkpoints, its namespaces 0" in found

    def test_all_rows_of_a_thread_missing(self, damaged: Store, storage: Storage) -> None:
        with storage.write() as tx:
            tx.delete_range(FIRST, keys.thread(2))
        assert problems(check(damaged)) == "thread 't': its number 1 has no rows"

    def test_names_lost_one_way(self, damaged: Store, storage: Storage) -> None:
        content = rows_of(storage)
        for key in (keys.of_name(keys.THREAD, b"t"), keys.of_number(keys.THREAD, 1), keys.of_name(keys.CHANNEL, b"m")):
            put_raw(storage, key, None)
            assert "is named one way only" in problems(check(damaged))
            put_raw(storage, key, content[key])
        put_raw(storage, keys.of_name(keys.THREAD, b"t"), None)
        assert "thread 1: rows of a thread that nothing names and nothing queues" in problems(check(damaged))

    def test_a_name_under_the_wrong_hash(self, damaged: Store, storage: Storage) -> None:
        key = keys.of_name(keys.THREAD, b"another")
        put_raw(storage, key, seal(key, ormsgpack.packb([[b"t", 1]])))
        assert "the name 't' stands under another's hash" in problems(check(damaged))

    def test_a_wrong_tip(self, damaged: Store, storage: Storage) -> None:
        ulid, _ = record_at(storage, 3)
        change_namespace(storage, tip=ulid)
        assert problems(check(damaged)) == "thread 't': namespace '': its tip isn't the last record"

    def test_a_wrong_latest(self, damaged: Store, storage: Storage) -> None:
        ulid, _ = record_at(storage, 3)
        change_namespace(storage, latest=deltastore.ulid.to_text(ulid))
        assert f"its latest is '{deltastore.ulid.to_text(ulid)}'; the greatest id is" in problems(check(damaged))

    def test_wrong_counts(self, damaged: Store, storage: Storage) -> None:
        change_namespace(storage, count=13)
        found = problems(check(damaged))
        assert "13 checkpoints are counted, 12 are there" in found
        assert "its header counts 12 checkpoints, its namespaces 13" in found

    def test_a_parent_that_is_itself_or_younger(self, damaged: Store, storage: Storage) -> None:  # go-git#2340
        expected = everything(damaged)
        own, _ = record_at(storage, 5)
        younger, _ = record_at(storage, 8)
        for place, parent in ((5, own), (5, younger), (3, younger), (0, younger)):
            before = rows_of(storage)
            id_ = change_record(storage, place, parent=parent)
            found = problems(check(damaged))
            assert f"the parent of {id_!r} is {deltastore.ulid.to_text(parent)}, which isn't older" in found
            fresh = Store(storage)
            for read in expected["t"]:  # bounded, and right or refused
                with contextlib.suppress(deltastore.BrokenChainError):
                    assert fresh.thread("t").state(at=read) == expected["t"][read][0]
            for key, row in before.items():
                put_raw(storage, key, row)
        assert check(damaged).ok

    def test_a_delta_on_another_than_the_record_before(self, damaged: Store, storage: Storage) -> None:
        older, _ = record_at(storage, 1)
        id_ = change_record(storage, 3, parent=older)
        assert f"checkpoint {id_!r}: a delta whose base isn't the record before it" in problems(check(damaged))
        with pytest.raises(deltastore.BrokenChainError, match=rf"'t': checkpoint {id_} can't be rebuilt.*is missing"):
            Store(storage).thread("t").state(at=id_)

    def test_a_delta_made_to_begin_nowhere(self, damaged: Store, storage: Storage) -> None:
        id_ = change_record(storage, 0, flags=0)
        assert f"checkpoint {id_!r}: " in problems(check(damaged))
        with pytest.raises(deltastore.BrokenChainError, match=rf"{id_}.*a delta without a base"):
            Store(storage).thread("t").state(at=id_)

    def test_wrong_ops(self, damaged: Store, storage: Storage) -> None:
        _, record = record_at(storage, 2)
        channel = record.ops[0].channel
        for ops, message in (
            ((rec.Patch(channel, 99, 1, ()),), ""),
            ((rec.Patch(400, 0, 0, ()),), "a patch without a value to patch"),
            ((rec.Set(channel, 0, rec.Value(rec.LIST, ((900, 1),))),), "needs chunk 900 of series 0, which is missing"),
        ):
            change_record(storage, 2, ops=ops)
            assert message in problems(check(damaged))

    def test_a_wrong_depth(self, damaged: Store, storage: Storage) -> None:
        change_record(storage, 3, depth=1)
        assert "depth 1 is stated, 3 records stand before it up to its anchor" in problems(check(damaged))

    def test_numbers_that_the_header_does_not_know(self, damaged: Store, storage: Storage) -> None:
        content = rows_of(storage)
        change_header(storage, next_chunk=[5, 1])
        assert "of series 0: the next number is 5" in problems(check(damaged))
        put_raw(storage, keys.header(1), content[keys.header(1)])
        change_header(storage, last_ulid=record_at(storage, 3)[0])
        assert "is newer than the header's last" in problems(check(damaged))
        put_raw(storage, keys.header(1), content[keys.header(1)])
        change_header(storage, loose_rows=[0, 0])
        assert "the header says 0 of" in problems(check(damaged))
        put_raw(storage, keys.header(1), content[keys.header(1)])
        change_header(storage, name=b"u")
        assert "thread 't': its header names 'u'" in problems(check(damaged))

    @pytest.mark.parametrize(
        "key",
        [
            FIRST + b"x",
            FIRST + b"w",
            FIRST + b"w\0\0\1",
            FIRST + b"w\0\0\1\5short",
            FIRST + b"w\0\0\1\2\xff\xff" + bytes(12),
            FIRST + b"r\0\0\1" + bytes(16),
            FIRST + b"r\0\0\1short",
            FIRST + b"r\0\0\2" + bytes(16),
            FIRST + b"c\0\0",
            FIRST + b"c\0" + bytes(6),
            FIRST + b"c\7" + bytes(6),
            FIRST + b"n",
            FIRST + b"i\0\0\1\xff",
            FIRST + b"\xff",
            FIRST + b"h2",
            keys.thread(9) + b"h",
            keys.thread(2**48 - 2) + b"h",
            keys.STORE + b"X",
            keys.STORE + b"Hx",
            keys.STORE + b"H\xff" + bytes(12),
            keys.STORE + b"N\xff\0\0\0\1",
            keys.STORE + b"Q",
            keys.STORE,
            b"\0",
            b"\0\0\1",
            b"foreign",
        ],
    )
    @pytest.mark.parametrize("sealed", [False, True])
    def test_a_foreign_row(self, damaged: Store, storage: Storage, key: bytes, sealed: bool) -> None:
        put_raw(storage, key, seal(key, b"\x90") if sealed else b"foreign")
        found = problems(check(damaged))
        named = ("nothing names and nothing queues", "one way only", "malformed record row", "malformed row")
        assert key.hex() in found or any(what in found for what in named)

    def test_foreign_rows_among_the_store_rows_that_name_nothing(self, damaged: Store, storage: Storage) -> None:
        key = keys.of_number(b"\xff", 3)
        put_raw(storage, key, seal(key, b"\xff\xfe"))
        assert r"name '\\xff\\xfe': number 3 of kind b'\xff' is named one way only" in problems(check(damaged))

    def test_a_counter_that_would_give_numbers_again(self, damaged: Store, storage: Storage) -> None:
        key = keys.counter(keys.CHANNEL)
        put_raw(storage, key, b"short")
        assert "the counter under" in problems(check(damaged))
        put_raw(storage, key, None)
        assert "number 18 of kind c has a name, and would be given again" in problems(check(damaged))

    def test_numbers_in_use_without_a_name(self, damaged: Store, storage: Storage) -> None:
        put_raw(storage, keys.of_name(keys.CHANNEL, b"m"), None)
        put_raw(storage, keys.of_number(keys.CHANNEL, 16), None)
        assert "thread 't': channel 16 has no name, so what is stored of it can't be read" in problems(check(damaged))

    def test_a_quarantine_row_that_is_none(self, damaged: Store, storage: Storage) -> None:
        for thread in (0, 1):
            key = keys.quarantined(thread, b"key", b"row")
            put_raw(storage, key, seal(key, b"\x90"))
        assert problems(check(damaged)).count("is no quarantine row") == 2

    def test_a_named_thread_that_is_queued_to_be_removed(self, damaged: Store, storage: Storage) -> None:
        with storage.write() as tx:
            rows.enqueue(tx, rows.Queued(1, rows.DELETED, 0))
        assert "thread 't': it is named, and queued to be removed" in problems(check(damaged))

    def test_a_list_that_would_never_end(self, damaged: Store, storage: Storage) -> None:
        with storage.write() as tx:
            for number in range(MAX_PROBLEMS + 50):
                tx.put(FIRST + b"x" + number.to_bytes(3, "big"), b"")
        assert len(check(damaged).problems) == MAX_PROBLEMS

    def test_damage_of_one_thread_hides_no_other(self, damaged: Store, storage: Storage) -> None:
        put_raw(storage, keys.header(1), b"short")
        put_raw(storage, next(iter(rows_of_kind(storage, b"c", thread=2))), None)
        report = check(damaged)
        assert report.threads == 2
        assert {problem.where for problem in report.problems} == {"thread 1", "thread 'other'"}

    def test_damage_in_a_file(self, tmp_path: Path) -> None:
        with deltastore.open(tmp_path / "store.ds") as store:
            for number in range(6):
                store.thread("t").append({"m": [say(str(number))]})
            put_raw(store.log.storage, sorted(rows_of_kind(store.log.storage, b"r"))[2], None)
            assert "6 checkpoints are counted, 5 are there" in problems(check(store))


class TestGarbage:
    def test_chunks_that_only_deleted_checkpoints_held(self, store: Store) -> None:
        thread = store.thread("t")
        made = [thread.put_state({"text": str(number) * 1000, "same": "s" * 1000}) for number in range(4)]
        whole = check(store)
        assert (whole.garbage_chunks, whole.garbage_bytes) == (0, 0)
        for place in (3, 1):
            thread.delete(made[place])
        report = check(store)
        assert report.ok
        assert report.chunks == whole.chunks == 5
        assert report.garbage_chunks == 2
        assert 2000 < report.garbage_bytes < 2020
        assert report.chunk_bytes == whole.chunk_bytes

    def test_chunks_of_writes_that_went_with_their_checkpoint(self, store: Store) -> None:
        thread = store.thread("t")
        made = thread.append({"m": ["a"]})
        thread.put_writes(made, {"w": "x" * 500})
        assert check(store).garbage_chunks == 0
        thread.append({"m": ["b"]})
        thread.delete(made)
        assert check(store).garbage_chunks == 1

    def test_appended_lists_leave_nothing(self, store: Store) -> None:
        thread = store.thread("t")
        made = [thread.append({"m": [say(str(number))]}) for number in range(6)]
        for checkpoint in made[:5]:
            thread.delete(checkpoint)
        report = check(store)
        assert (report.checkpoints, report.garbage_chunks) == (1, 0)
        assert len(thread.state()["m"]) == 6


class TestQueue:
    @pytest.fixture
    def interrupted(self, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> Store:
        """A store in which a deletion was cut off after its first transaction."""
        store = open_store()
        for name in ("gone", "stays"):
            for number in range(5):
                store.thread(name).append({"m": [say(str(number))]})

        def killed(_: Keeping) -> Any:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Keeping, "collect", killed)
            with pytest.raises(KeyboardInterrupt):
                store.delete("gone")
        return store

    def test_an_interrupted_deletion_is_counted_and_cleared(self, interrupted: Store) -> None:
        report = check(interrupted)
        assert report.ok
        assert (report.threads, report.queued_threads) == (1, 1)
        assert [info.name for info in interrupted.threads()] == ["stays"]
        assert interrupted.thread("gone").latest() is None
        again = interrupted.thread("gone").append({"m": ["new"]})
        found = interrupted.collect()
        assert found.threads == 1
        assert found.rows > 10
        assert (interrupted.collect().threads, interrupted.collect().rows) == (0, 0)
        report = check(interrupted)
        assert (report.threads, report.queued_threads, report.checkpoints) == (2, 0, 6)
        assert list(interrupted.thread("gone").history()) == [again]
        assert interrupted.thread("gone").state() == {"m": ["new"]}

    def test_the_next_deletion_clears_it(self, interrupted: Store) -> None:
        interrupted.delete("stays")
        report = check(interrupted)
        assert (report.threads, report.queued_threads) == (0, 0)
        assert not [key for key in rows_of(interrupted.log.storage) if key >= FIRST]

    def test_a_collection_cut_off_goes_on(self, interrupted: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(deleting, "MAX_COLLECTED_ROWS", 3)
        real, calls = deleting.names.in_write, []

        def killed(*arguments: Any) -> Any:
            calls.append(arguments)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return real(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(deleting.names, "in_write", killed)
            with pytest.raises(KeyboardInterrupt):
                interrupted.collect()
        assert check(interrupted).queued_threads == 1
        assert interrupted.collect().threads == 1
        assert check(interrupted).queued_threads == 0

    def test_an_abandoned_copy_is_collected_after_an_hour(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        for number in range(5):
            store.thread("t").append({"m": [say(str(number))]})

        def killed(*_: Any) -> Any:
            raise KeyboardInterrupt

        now = 1_000_000.0
        monkeypatch.setattr(store.log, "_clock", lambda: now)
        monkeypatch.setattr("deltastore.log.copying.MAX_COPIED_ROWS", 4)
        with monkeypatch.context() as patch:
            patch.setattr("deltastore.log.copying.names.assign", killed)
            with pytest.raises(KeyboardInterrupt):
                store.copy("t", "copy")
        report = check(store)
        assert report.ok
        assert (report.threads, report.queued_threads) == (1, 1)
        assert [info.name for info in store.threads()] == ["t"]
        now += 3599
        assert store.collect().threads == 0
        assert check(store).queued_threads == 1
        now += 1
        found = store.collect()
        assert found.threads == 1
        assert found.rows >= 4
        report = check(store)
        assert (report.threads, report.queued_threads) == (1, 0)
        assert store.copy("t", "copy").state() == store.thread("t").state()

    def test_a_copy_that_was_collected_meanwhile_is_refused(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from deltastore.log import copying

        for number in range(5):
            store.thread("t").append({"m": [say(str(number))]})
        monkeypatch.setattr(copying, "MAX_COPIED_ROWS", 4)
        real = copying._write

        def late(*arguments: Any) -> None:
            real(*arguments)
            monkeypatch.setattr(store.log, "_clock", lambda: 10.0**10)
            store.collect()

        monkeypatch.setattr(copying, "_write", late)
        with pytest.raises(
            deltastore.ConflictError, match=r"took so long that it was collected as abandoned; copy again"
        ):
            store.copy("t", "copy")
        assert [info.name for info in store.threads()] == ["t"]
