"""Repair of each kind of damage, beside writers, and of what was killed half-way."""

import random
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

import deltastore
from deltastore import Reducer, Store, apply_repair, check, plan_repair, repair
from deltastore.codec import recordrow
from deltastore.codec import records as rec
from deltastore.codec.primitives import seal, unseal
from deltastore.langgraph import DeltaSaver
from deltastore.log import deleting, keys, names, quarantine, rows
from deltastore.log.retention import Retention
from deltastore.storage import Storage
from deltastore.storage.memory import MemoryStorage
from deltastore.ulid import to_text
from deltastore.upkeep import repair as repairing
from deltastore.upkeep.repair_plan import CUT, NAMED, RepairReport
from tests.langgraph.comparing import checkpoint, config
from tests.raw import everything, put_raw, rows_of
from tests.upkeep import both_fronts
from tests.upkeep.both_fronts import small_packs
from tests.upkeep.damaging import copy_of
from tests.upkeep.stopping import STORE, Stops

FIRST = keys.thread(1)


def where(id_: str | None = None) -> Any:
    return config("t", id_)


@pytest.fixture
def storage() -> Storage:
    return MemoryStorage()


@pytest.fixture
def store(storage: Storage) -> Store:
    """Two native threads: one of 12 checkpoints with anchors each 5th, writes, a tag and a fork; another one."""
    store = Store(storage, snapshot_frequency=5)
    thread = store.thread("t")
    for number in range(11):
        made = thread.append({"m": [f"message {number}"], "d": {str(number % 3): number}})
    thread.put_writes(made, {"w": "pending"}, task="a task")
    thread.append({"m": ["fork"]}, at=list(thread.history())[6])
    thread.tag("kept", list(thread.history())[2])
    store.thread("other").append({"m": ["other"]})
    return store


def rows_of_kind(storage: Storage, kind: bytes, thread: int = 1) -> list[bytes]:
    return sorted(key for key in rows_of(storage) if key.startswith(keys.thread(thread) + kind))


def flip(storage: Storage, key: bytes) -> bytes:
    """Damage a row; return what it is then."""
    row = rows_of(storage)[key]
    made = row[:-1] + bytes((row[-1] ^ 1,))
    put_raw(storage, key, made)
    return made


def repaired(store: Store) -> RepairReport:
    """Repair a store that needs it, and see to it that this is all that it needs."""
    assert not check(store).ok
    report = repair(store)
    assert report.ok
    found = check(store)
    assert found.ok, found.problems
    assert plan_repair(store).is_empty
    return report


def held(storage: Storage, thread: int = 1) -> dict[bytes, bytes]:
    """Return what is quarantined, by its key."""
    with storage.read() as tx:
        found = [quarantine.decode(key, row) for key, row in quarantine.scan(tx, thread)]
    assert all(each.reason for each in found)
    return {each.key: each.row for each in found}


def fresh(storage: Storage) -> Store:
    return Store(storage, snapshot_frequency=5)


def same_but(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]], *lost: str) -> None:
    """Compare all that two stores hold, but for checkpoints of the first thread that are lost."""
    expected = {**before, "t": {id_: what for id_, what in before["t"].items() if id_ not in lost}}
    assert after == expected


class TestNothing:
    def test_a_healthy_store_is_left_alone(self, store: Store, storage: Storage) -> None:
        before = rows_of(storage)
        plan = plan_repair(store)
        assert plan.is_empty
        assert apply_repair(store, plan) == RepairReport((), (), 0, (), ())
        assert repair(store).is_lossless
        assert rows_of(storage) == before

    def test_a_plan_writes_nothing(self, store: Store, storage: Storage) -> None:
        flip(storage, rows_of_kind(storage, b"c")[3])
        before = rows_of(storage)
        told: list[tuple[int, int | None]] = []
        plan = plan_repair(store, progress=lambda done, total: told.append((done, total)))
        assert rows_of(storage) == before
        assert told == [(1, 2), (2, 2)]
        assert plan.actions
        assert plan.lost
        assert plan.quarantined > 0


class TestIndexes:
    """What is made anew of other rows: nothing is lost."""

    @pytest.mark.parametrize("remove", [True, False])
    @pytest.mark.parametrize(
        "key",
        [
            keys.header(1),
            keys.of_name(keys.THREAD, b"t"),
            keys.of_number(keys.THREAD, 1),
            keys.of_name(keys.CHANNEL, b"m"),
            keys.of_number(keys.CHANNEL, 16),
        ],
        ids=["header", "name", "number", "channel name", "channel number"],
    )
    def test_rows_that_others_tell(self, store: Store, storage: Storage, key: bytes, remove: bool) -> None:
        before = everything(store)
        made = None if remove else flip(storage, key)
        if remove:
            put_raw(storage, key, None)
        report = repaired(fresh(storage))
        assert report.is_lossless
        assert everything(fresh(storage)) == before
        assert (key in held(storage, 0 if key.startswith(keys.STORE) else 1)) == (not remove)
        if made is not None:
            assert made in held(storage, 0 if key.startswith(keys.STORE) else 1).values()
        again = fresh(storage).thread("t").append({"m": ["new"]})
        assert again.id > max(before["t"])
        assert check(fresh(storage)).ok

    def test_the_name_rows_of_a_thread_together(self, store: Store, storage: Storage) -> None:
        before = everything(store)
        flip(storage, keys.of_name(keys.THREAD, b"t"))
        flip(storage, keys.of_number(keys.THREAD, 1))
        assert repaired(fresh(storage)).is_lossless
        assert everything(fresh(storage)) == before

    def test_without_a_trace_of_them_it_gets_another_name(self, store: Store, storage: Storage) -> None:
        before = everything(store)
        put_raw(storage, keys.of_name(keys.THREAD, b"t"), None)
        put_raw(storage, keys.of_number(keys.THREAD, 1), None)
        report = repaired(fresh(storage))
        assert [action.action for action in report.actions if action.thing == "thread 1"] == [NAMED]
        assert everything(fresh(storage)) == {"recovered-1": before["t"], "other": before["other"]}

    def test_a_name_that_is_taken(self, store: Store, storage: Storage) -> None:
        before = everything(store)
        put_raw(storage, keys.of_name(keys.THREAD, b"t"), None)
        again = fresh(storage)
        again.thread("t").append({"m": ["new"]})
        repaired(again)
        assert everything(fresh(storage))["recovered-1"] == before["t"]
        assert len(list(fresh(storage).thread("t").history())) == 1

    def test_counters_that_would_give_numbers_again(self, store: Store, storage: Storage) -> None:
        before = everything(store)
        for kind in (keys.THREAD, keys.CHANNEL):
            flip(storage, keys.counter(kind))
        put_raw(storage, keys.counter(keys.TAG), None)
        assert repaired(fresh(storage)).is_lossless
        again = fresh(storage)
        again.thread("new").append({"another channel": ["new"]})
        assert check(again).ok
        assert {name: found for name, found in everything(again).items() if name != "new"} == before

    @pytest.mark.parametrize("field", ["loose_rows", "next_chunk", "checkpoints", "last_ulid", "next_namespace"])
    def test_counts_of_the_header(self, store: Store, storage: Storage, field: str) -> None:
        before = everything(store)
        header = rows.Header.decode(keys.header(1), unseal(keys.header(1), rows_of(storage)[keys.header(1)]))
        setattr(header, field, {"last_ulid": None, "checkpoints": 3, "next_namespace": 1}.get(field, [1, 1]))
        put_raw(storage, keys.header(1), seal(keys.header(1), header.encode()))
        if check(fresh(storage)).ok:
            return  # nothing depends on it
        assert repaired(fresh(storage)).is_lossless
        assert everything(fresh(storage)) == before

    def test_counts_of_a_namespace(self, store: Store, storage: Storage) -> None:
        before = everything(store)
        with storage.write() as tx:
            (namespace,) = rows.load_namespaces(tx, 1)
            namespace.count, namespace.latest, namespace.tip = 4, "x", bytes(16)
            rows.store_namespace(tx, 1, namespace)
        assert repaired(fresh(storage)).is_lossless
        assert everything(fresh(storage)) == before

    def test_the_name_of_the_root_namespace(self, store: Store, storage: Storage) -> None:
        before = everything(store)
        (key,) = rows_of_kind(storage, b"n")
        flip(storage, key)
        repaired(fresh(storage))
        assert everything(fresh(storage)) == before

    def test_the_name_of_a_namespace_without_a_trace(self, store: Store, storage: Storage) -> None:
        before = everything(store)
        (key,) = rows_of_kind(storage, b"n")
        put_raw(storage, key, None)
        repaired(fresh(storage))
        thread = fresh(storage).thread("t", namespace="recovered-1")
        assert {found.id: thread.state(at=found) for found in thread.history()} == {
            id_: what[0] for id_, what in before["t"].items()
        }
        assert fresh(storage).thread("t").latest() is None

    def test_rules_that_cannot_be_read_keep_everything(self, store: Store, storage: Storage) -> None:
        store.thread("t").retention = Retention(keep_last=1)
        store.retention = Retention(keep_last=1)
        flip(storage, keys.retention(1))
        flip(storage, keys.RETENTION)
        repaired(fresh(storage))
        assert fresh(storage).thread("t").retention == Retention()
        assert fresh(storage).retention is None

    def test_a_named_thread_that_is_queued(self, store: Store, storage: Storage) -> None:
        before = everything(store)
        with storage.write() as tx:
            rows.enqueue(tx, rows.Queued(1, rows.DELETED, 0))
        repaired(fresh(storage))
        fresh(storage).collect()
        assert everything(fresh(storage)) == before

    def test_a_queue_row_that_cannot_be_read(self, store: Store, storage: Storage) -> None:
        with storage.write() as tx:
            deleting.delete_thread(tx, "other", 0)
        flip(storage, keys.queued(2))
        repaired(fresh(storage))
        assert [found.name for found in fresh(storage).threads()] == ["t"]
        assert check(fresh(storage)).queued_threads == 1

    def test_a_name_without_a_thread(self, store: Store, storage: Storage) -> None:
        before = everything(store)
        for key in [key for key in rows_of(storage) if key.startswith(keys.thread(2))]:
            put_raw(storage, key, None)
        report = repaired(fresh(storage))
        assert any("all of it is lost" in action.reason for action in report.actions)
        assert everything(fresh(storage)) == {"t": before["t"]}
        fresh(storage).thread("other").append({"m": ["again"]})


class TestCheckpoints:
    """What can't be rebuilt goes, is named, and takes nothing along that can."""

    def test_a_chunk_that_is_lost(self, store: Store, storage: Storage) -> None:
        before = everything(store)
        ids = sorted(before["t"])
        flip(storage, rows_of_kind(storage, b"c")[3])
        report = repaired(fresh(storage))
        lost = [found.id for found in report.lost]
        assert lost
        assert all(found.thread == "t" and set(found.channels) <= {"m", "d"} for found in report.lost)
        same_but(before, everything(fresh(storage)), *lost)
        assert ids[3] in lost
        with pytest.raises(deltastore.CheckpointNotFoundError):
            fresh(storage).thread("t").state(at=ids[3])

    @pytest.mark.parametrize("place", [0, 3, 5, 11])
    @pytest.mark.parametrize("remove", [True, False])
    def test_a_record_that_is_lost(self, store: Store, storage: Storage, place: int, remove: bool) -> None:
        before = everything(store)
        key = rows_of_kind(storage, b"r")[place]
        row = None if remove else flip(storage, key)
        if remove:
            put_raw(storage, key, None)
        report = repaired(fresh(storage))
        ids = sorted(before["t"])
        lost = {found.id for found in report.lost} | ({ids[place]} if remove else set())
        assert ids[place] in lost
        # up to the next anchor, or to where the thread branched
        assert lost == set(ids[place : next(n for n in (5, 10, 11, 12) if n > place)])
        same_but(before, everything(fresh(storage)), *lost)
        assert held(storage).get(key) == row
        if place == 11:
            assert fresh(storage).thread("t").latest().id == ids[10]

    def test_a_delta_whose_channels_its_lost_base_did_not_share(self, storage: Storage) -> None:
        store = fresh(storage)
        thread = store.thread("t")
        first = thread.put_state({"text": "first " * 10})
        second = thread.put_state({"text": "second " * 10})
        third = thread.put_state({"text": "third " * 10})
        before = everything(store)
        put_raw(storage, rows_of_kind(storage, b"c")[1], None)
        report = repaired(fresh(storage))
        assert [found.id for found in report.lost] == [second.id]
        same_but(before, everything(fresh(storage)), second.id)
        assert _record(storage, third.id).is_anchor
        assert fresh(storage).thread("t").checkpoint(third.id).parent_id == second.id
        assert first.id in everything(fresh(storage))["t"]

    def test_writes_that_wait_for_a_registered_reducer_go_on_waiting(self, storage: Storage) -> None:
        total = Reducer("sum", 1, lambda value, write: [value[0] + write[0]], lambda: [0])

        def open_() -> Store:
            return Store(storage, snapshot_frequency=50, reducers=[total], channels={"n": "sum", "text": "replace"})

        thread = open_().thread("t")
        for number in range(3):
            thread.append({"n": [number]})
        lost = thread.append({"text": "lost"})
        anchored = thread.append({"text": "kept"})
        thread.append({"n": [9]})
        before = everything(open_())
        flip(storage, rows_of_kind(storage, b"c")[3])
        report = repaired(open_())
        assert [found.id for found in report.lost] == [lost.id]
        same_but(before, everything(open_()), lost.id)
        ops = _record(storage, anchored.id).ops
        assert [type(op) for op in ops if op.channel == ops[0].channel] == [rec.Set, rec.Fold]
        put = open_().thread("t").append({"n": [5]})
        assert open_().thread("t").state(at=put)["n"] == [0 + 0 + 1 + 2 + 9 + 5]
        deltastore.compact(open_(), level=1)
        copied = open_().copy("t", "copy")
        copied.delete(anchored.id)
        assert copied.state() == open_().thread("t").state()

    def test_a_pack_of_records_keeps_what_can_be_read(self, storage: Storage) -> None:
        store = Store(storage, snapshot_frequency=2)
        with small_packs():
            for number in range(12):
                store.thread("t").put_state({"text": f"text {number} " * 5})
        before = everything(store)
        packs = [key for key in rows_of_kind(storage, b"r") if _row(storage, key).packed]
        assert packs
        member = sorted(before["t"])[2]
        (chunk,) = [
            number
            for op in _record(storage, member).ops
            if op.channel >= rec.FIRST_CHANNEL and not isinstance(op, rec.Drop | rec.Fold)
            for number, _ in (op.value.spans if isinstance(op, rec.Set) else op.spans)
        ]
        row = next(key for key in rows_of_kind(storage, b"c\0") if int.from_bytes(key[-6:], "big") >= chunk)
        flip(storage, row)
        report = repaired(fresh(storage))
        lost = {found.id for found in report.lost}
        assert member in lost
        assert len(lost) < 8
        same_but(before, everything(fresh(storage)), *lost)

    def test_a_lost_tip_is_followed_by_an_anchor(self, store: Store, storage: Storage) -> None:
        flip(storage, rows_of_kind(storage, b"r")[11])
        repaired(fresh(storage))
        thread = fresh(storage).thread("t")
        state = thread.state()
        put = thread.append({"m": ["new"]})
        assert _record(storage, put.id).is_anchor
        assert thread.state(at=put) == {**state, "m": [*state["m"], "new"]}

    def test_pending_writes_go_a_task_at_a_time(self, store: Store, storage: Storage) -> None:
        before = everything(store)
        latest = sorted(before["t"])[10]
        store.thread("t").put_writes(latest, {"w": "another"}, task="another task")
        (doomed,) = [key for key in rows_of_kind(storage, b"w") if keys.task_hash(b"a task") in key]
        row = flip(storage, doomed)
        report = repaired(fresh(storage))
        assert not report.lost
        assert not report.is_lossless
        assert [write.value for write in fresh(storage).thread("t").writes(latest)] == ["another"]
        assert held(storage)[doomed] == row

    def test_a_tag_of_a_lost_checkpoint(self, store: Store, storage: Storage) -> None:
        tagged = store.thread("t").tags()["kept"]
        key = next(key for key in rows_of_kind(storage, b"r") if to_text(key[-16:]) == tagged)
        flip(storage, key)
        report = repaired(fresh(storage))
        assert fresh(storage).thread("t").tags() == {}
        assert any("tag 'kept'" in action.thing for action in report.actions)

    @pytest.mark.parametrize(
        "key",
        [FIRST + b"x", FIRST + b"r\0\0\1short", FIRST + b"c\7" + bytes(6), FIRST + b"h2", FIRST + b"i\0\0\1\xff"],
    )
    def test_foreign_rows_of_a_thread(self, store: Store, storage: Storage, key: bytes) -> None:
        before = everything(store)
        put_raw(storage, key, b"foreign")
        repaired(fresh(storage))
        assert held(storage)[key] == b"foreign"
        assert everything(fresh(storage)) == before

    @pytest.mark.parametrize(
        "key",
        [keys.STORE + b"X", keys.STORE, b"\0", b"\0\0\1", b"foreign", keys.thread(9) + b"h", keys.STORE + b"Hx"],
    )
    def test_foreign_rows_of_no_thread(self, store: Store, storage: Storage, key: bytes) -> None:
        before = everything(store)
        put_raw(storage, key, b"foreign")
        repaired(fresh(storage))
        assert held(storage, 0)[key] == b"foreign"
        assert everything(fresh(storage)) == before

    def test_a_quarantine_row_that_is_damaged_itself(self, store: Store, storage: Storage) -> None:
        put_raw(storage, FIRST + b"x", b"foreign")
        put_raw(storage, keys.STORE + b"X", b"foreign")
        repaired(fresh(storage))
        for thread in (0, 1):
            (key,) = rows_of_kind(storage, b"q", thread)
            flip(storage, key)
        repaired(fresh(storage))
        assert [len(held(storage, thread)) for thread in (0, 1)] == [1, 1]

    def test_a_name_that_nothing_tells_any_more_is_left_as_a_problem(self, store: Store, storage: Storage) -> None:
        put_raw(storage, keys.of_name(keys.CHANNEL, b"m"), None)
        put_raw(storage, keys.of_number(keys.CHANNEL, 16), None)
        again = fresh(storage)
        report = repair(again)
        assert not report.ok
        assert all("channel 16 has no name" in what for what in report.left)
        with pytest.raises(deltastore.ChecksumError):
            again.thread("t").state()


def _row(storage: Storage, key: bytes) -> recordrow.RecordRow:
    return recordrow.decode_row(unseal(key, rows_of(storage)[key]), key[-16:], None)


def _record(storage: Storage, id_: str) -> rec.Record:
    for key in rows_of_kind(storage, b"r"):
        row = _row(storage, key)
        for ulid, record in zip(row.ulids, row.records, strict=True):
            if to_text(ulid) == id_:
                return record
    raise AssertionError(id_)


class TestGraphs:
    """LangGraph's namespaces: ids, and the histories of delta channels."""

    @pytest.fixture
    def saver(self, storage: Storage) -> DeltaSaver:
        """Six checkpoints in a line, of which the first states a delta channel and all others have writes for it."""
        saver = DeltaSaver(Store(storage, snapshot_frequency=3))
        put: Any = where()
        for number in range(6):
            values = {"plain": number} | ({"log": ["seed"]} if number == 0 else {})
            versions = {"plain": number + 1, "log": number + 1}
            put = saver.put(put, checkpoint(f"{number:08}", versions, values), {"step": number}, versions)
            saver.put_writes(put, [("log", [f"write {number}"])], f"task {number}")
        return saver

    def history(self, storage: Storage, number: int) -> Any:
        saver = DeltaSaver(Store(storage))
        found = saver.get_delta_channel_history(config=where(f"{number:08}"), channels=["log"])
        return repr(found)

    def test_ids_are_led_anew(self, saver: DeltaSaver, storage: Storage) -> None:
        before = [repr(found) for found in saver.list(where())]
        for key in rows_of_kind(storage, b"i")[::2]:
            flip(storage, key)
        put_raw(storage, rows_of_kind(storage, b"i")[1], None)
        assert repaired(Store(storage)).is_lossless
        assert [repr(found) for found in DeltaSaver(Store(storage)).list(where())] == before

    def test_a_history_over_a_lost_checkpoint_raises(self, saver: DeltaSaver, storage: Storage) -> None:
        histories = [self.history(storage, number) for number in range(6)]
        tuples = {found.config["configurable"]["checkpoint_id"]: repr(found) for found in saver.list(where())}
        flip(storage, rows_of_kind(storage, b"r")[2])
        report = repaired(Store(storage))
        assert [found.id for found in report.lost] == ["00000002"]
        assert CUT in {action.action for action in report.actions}
        again = DeltaSaver(Store(storage))
        assert {found.config["configurable"]["checkpoint_id"]: repr(found) for found in again.list(where())} == {
            id_: told for id_, told in tuples.items() if id_ != "00000002"
        }
        assert [self.history(storage, number) for number in (0, 1)] == histories[:2]
        for number in (3, 4, 5):
            with pytest.raises(deltastore.BrokenChainError, match="was lost and quarantined"):
                self.history(storage, number)

    def test_a_history_over_lost_writes_raises_and_new_ones_do_not(self, saver: DeltaSaver, storage: Storage) -> None:
        flip(storage, rows_of_kind(storage, b"w")[2])
        flip(storage, rows_of_kind(storage, b"w")[5])
        report = repaired(Store(storage))
        assert not report.lost
        for number in (3, 4, 5):
            with pytest.raises(deltastore.BrokenChainError):
                self.history(storage, number)
        assert "write 1" in self.history(storage, 2)

    def test_deletions_and_retention_go_on_and_the_loss_is_not_forgotten(
        self, saver: DeltaSaver, storage: Storage, tmp_path: Path
    ) -> None:
        flip(storage, rows_of_kind(storage, b"r")[2])
        repaired(Store(storage))
        deltastore.apply_retention(Store(storage), Retention(keep_last=1))
        assert check(Store(storage)).ok
        # what was before the lost one is the end of a branch now, with writes that wait
        assert [found.checkpoint["id"] for found in DeltaSaver(Store(storage)).list(where())] == [
            "00000005",
            "00000001",
        ]
        with pytest.raises(deltastore.BrokenChainError):
            self.history(storage, 5)
        deltastore.compact(Store(storage), level=1)
        with pytest.raises(deltastore.BrokenChainError):
            self.history(storage, 5)
        deltastore.dump(Store(storage), tmp_path / "x.dump")
        loaded = MemoryStorage()
        deltastore.load(Store(loaded), tmp_path / "x.dump")
        assert check(Store(loaded)).ok
        with pytest.raises(deltastore.BrokenChainError):
            self.history(loaded, 5)

    def test_a_late_child_of_a_lost_checkpoint_has_no_shorter_history(
        self, saver: DeltaSaver, storage: Storage
    ) -> None:
        flip(storage, rows_of_kind(storage, b"r")[5])
        repaired(Store(storage))
        again = DeltaSaver(Store(storage))
        versions = {"plain": 9, "log": 6}
        again.put(where("00000005"), checkpoint("00000006", versions, {"plain": 9}), {"step": 6}, versions)
        with pytest.raises(deltastore.NotFoundError):
            self.history(storage, 6)

    def test_an_id_whose_row_was_lost_and_that_was_put_again(self, saver: DeltaSaver, storage: Storage) -> None:
        put_raw(storage, rows_of_kind(storage, b"i")[5], None)
        again = DeltaSaver(Store(storage))
        versions = {"plain": 9, "log": 6}
        again.put(where("00000004"), checkpoint("00000005", versions, {"plain": "again"}), {"step": 5}, versions)
        repaired(Store(storage))
        found = DeltaSaver(Store(storage)).get_tuple(where("00000005"))
        assert found is not None
        assert found.checkpoint["channel_values"]["plain"] == "again"


class TestQuarantine:
    @pytest.fixture
    def mended(self, store: Store, storage: Storage) -> Store:
        flip(storage, rows_of_kind(storage, b"r")[11])
        put_raw(storage, keys.STORE + b"X", b"foreign")
        repaired(store)
        return store

    def test_it_is_counted_and_is_no_problem(self, mended: Store) -> None:
        assert check(mended).quarantined == 2
        assert check(mended).ok

    def test_it_goes_with_its_thread(self, mended: Store) -> None:
        mended.delete("t")
        assert check(mended).quarantined == 1

    def test_copies_and_dumps_leave_it_out(self, mended: Store, tmp_path: Path) -> None:
        mended.copy("t", "copy")
        assert check(mended).quarantined == 2
        deltastore.dump(mended, tmp_path / "x.dump")
        other = Store(MemoryStorage())
        deltastore.load(other, tmp_path / "x.dump")
        assert check(other).quarantined == 0
        assert everything(other)["t"] == everything(mended)["t"]

    def test_backups_and_moves_take_it_along(self, mended: Store, tmp_path: Path) -> None:
        deltastore.backup(mended, tmp_path / "copy.ds")
        with deltastore.open(tmp_path / "copy.ds") as copied:
            assert check(copied).quarantined == 2
            deltastore.shrink(copied)
            assert check(copied).quarantined == 2

    def test_erasing_removes_it(self, mended: Store, storage: Storage) -> None:
        assert deltastore.compact(mended, level=1).quarantined_dropped == 0
        assert deltastore.compact(mended, threads=["t"], erase=True, level=1).quarantined_dropped == 1
        assert deltastore.compact(mended, erase=True, level=1).quarantined_dropped == 1
        assert check(mended).quarantined == 0
        assert check(mended).ok


class TestBesideOthers:
    def test_what_changed_since_the_plan_is_left_out(self, store: Store, storage: Storage) -> None:
        flip(storage, rows_of_kind(storage, b"r")[3])
        plan = plan_repair(store)
        store.thread("t").append({"m": ["meanwhile"]})
        before = rows_of(storage)
        report = apply_repair(store, plan)
        assert report.skipped == ("t",)
        assert (report.actions, report.quarantined) == ((), 0)
        assert rows_of(storage) == before
        assert repair(store).ok
        assert check(store).ok
        assert store.thread("t").state()["m"][-1] == "meanwhile"

    def test_a_thread_deleted_since_the_plan(self, store: Store, storage: Storage) -> None:
        flip(storage, rows_of_kind(storage, b"r")[3])
        plan = plan_repair(store)
        store.delete("t")
        assert apply_repair(store, plan).skipped == ("t",)
        assert check(store).ok

    def test_rows_of_the_store_that_changed_since(self, store: Store, storage: Storage) -> None:
        put_raw(storage, keys.of_name(keys.THREAD, b"t"), None)
        plan = plan_repair(store)
        store.thread("t").append({"m": ["another"]})
        assert apply_repair(store, plan).skipped[0] == repairing.STORE
        assert repair(store).ok
        assert check(store).ok

    def test_caches_of_other_handles_are_not_believed(self, store: Store, storage: Storage) -> None:
        other = fresh(storage)
        other.thread("t").state()
        latest = sorted(everything(store)["t"])
        flip(storage, rows_of_kind(storage, b"r")[11])
        repaired(store)
        put = other.thread("t").append({"m": ["after"]})
        assert put.parent_id == latest[10]
        assert check(store).ok
        assert fresh(storage).thread("t").state()["m"] == [*(f"message {n}" for n in range(11)), "after"]

    def test_beside_a_writer_on_lmdb(self, tmp_path: Path) -> None:
        path = tmp_path / "store.ds"
        with deltastore.open(path, sync="none", snapshot_frequency=5) as store:
            for number in range(20):
                store.thread("t").put_state({"text": f"text {number}"})
            storage = store.log.storage
            flip(storage, rows_of_kind(storage, b"r")[7])
            kept = {found.id for found in store.thread("busy").history()}
            stop = threading.Event()
            put: list[str] = []

            def write() -> None:
                while not stop.is_set():
                    put.append(store.thread("busy").append({"m": ["x"]}).id)
                    put.append(store.thread("t").append({"m": ["y"]}).id)
                    stop.wait(0.02)

            writer = threading.Thread(target=write)
            writer.start()
            try:
                report = repair(store)
            finally:
                stop.set()
                writer.join()
            assert report.ok
            assert check(store).ok
            found = {each.id for name in ("t", "busy") for each in store.thread(name).history()}
            assert set(put) | kept <= found


class TestBounds:
    def test_large_repairs_are_cut_and_may_stop_between(
        self, store: Store, storage: Storage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = everything(store)
        monkeypatch.setattr(repairing, "MAX_CHANGED_ROWS", 2)
        for key in rows_of_kind(storage, b"r")[5:10]:
            flip(storage, key)
        damaged = rows_of(storage)
        real, calls = names.in_write, []
        stops = 0
        while True:
            stops += 1
            calls.clear()

            def counted(*arguments: Any) -> Any:
                calls.append(arguments)
                if len(calls) == stops:  # noqa: B023
                    raise KeyboardInterrupt
                return real(*arguments)

            half = fresh(copy_of(damaged))
            with monkeypatch.context() as patch:
                patch.setattr("deltastore.upkeep.repair.names.in_write", counted)
                try:
                    repair(half)
                except KeyboardInterrupt:
                    pass
                else:
                    break
            check(half)
            repair(half)
            assert check(half).ok
            assert plan_repair(half).is_empty
            same_but(before, everything(fresh(half.log.storage)), *sorted(before["t"])[5:10])
        assert stops > 4


def test_killed_anywhere_it_can_be_run_again(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repairing, "MAX_CHANGED_ROWS", 3)
    site = tmp_path / "site"
    site.mkdir()
    original = site / STORE
    both_fronts.make(original)
    chance = random.Random(5)
    with deltastore.open(original, sync="none") as store:
        storage = store.log.storage
        for thread, kind in ((1, b"r"), (1, b"c"), (2, b"h"), (3, b"r"), (3, b"i"), (3, b"w"), (0, b"H")):
            flip(storage, chance.choice(rows_of_kind(storage, kind, thread)))
    finished = tmp_path / "finished.ds"
    shutil.copytree(original, finished)
    with deltastore.open(finished, sync="none") as store:
        repair(store)
        assert check(store).ok
        expected = _told(store)
    seen: set[int] = set()
    stops = Stops(site, repair, tmp_path, profile=request.config.getoption("--profile"))
    for stop in stops:
        with deltastore.open(stop.site / STORE, sync="none") as store:
            state = hash(tuple(rows_of(store.log.storage).items()))
            if state not in seen:
                seen.add(state)
                check(store)
                assert repair(store).ok
                report = check(store)
                assert report.ok, report.problems
                assert plan_repair(store).is_empty
                assert _told(store) == expected
    assert len(seen) >= 5


def _told(store: Store) -> dict[str, str]:
    out: dict[str, str] = {}
    for name in both_fronts.NATIVE:
        thread = store.thread(name)
        for found in thread.history():
            what = (thread.state(at=found), found.metadata, found.parent_id, found.created_at, thread.writes(found))
            out[f"{name} {found.id}"] = repr(what)
    for found in DeltaSaver(store).list({"configurable": {"thread_id": "g", "checkpoint_ns": ""}}):
        out[found.config["configurable"]["checkpoint_id"]] = repr(found)
    return out
