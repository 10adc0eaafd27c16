"""Faults that users of LMDB reported in public trackers: full maps, growth, readers, long keys, file systems.

Each test takes the whole kind of a report. The processes are real, and so are their deaths.
"""

import asyncio
import itertools
import os
import random
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import deltastore
from deltastore import InvalidIdError, StorageError, StoreFullError, check, compact
from deltastore.langgraph import DeltaSaver
from deltastore.storage import RetryTransaction, engine, environment
from deltastore.storage.filesystem import mount_of
from deltastore.storage.lmdb import LmdbStorage
from tests import fleet, workers
from tests.fleet import Fleet, hear, spawn
from tests.raw import rows_of
from tests.workers import Job, config

MIB = 1 << 20
EVERYTHING = (b"", b"\xff" * 8)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.ds"


# --- a full map -------------------------------------------------------------------------------


def fill(front: Any, process: int) -> int:
    """Put until the store is full, and again a few times; return how many puts were acknowledged."""
    count, refused = 0, 0
    while refused < 5:
        try:
            front.put("t", process, 0, count)
        except StoreFullError:
            refused += 1
        else:
            count += 1
    return count


@pytest.mark.parametrize("front", ["native", "saver"])
def test_a_store_filled_to_its_cap_goes_on_when_something_is_deleted(path: Path, front: str) -> None:
    """strfry#64, lmdb-rs#55, sawtooth-core#2411: the error has a type, nothing is torn, and deleting makes room."""
    with deltastore.open(path, sync="none", max_bytes=MIB) as store:
        saver = DeltaSaver(store)
        chosen: Any = workers.Native(store) if front == "native" else workers.Saver(saver)
        chosen.put("beside", 1, 0, 0)
        first = 0
        for turn in range(4):
            process = workers.HEAVY + turn
            count = fill(chosen, process)
            if turn == 0:
                first = count
            assert count >= max(first // 2, 3)  # what was freed is used again
            assert check(store).ok
            chosen.look("beside", random.Random(turn))
            if front == "native":
                items = store.thread("t").state()["items"]
                assert items == workers.messages(process, 0, len(items))
                assert len(items) >= count
            else:
                for found in saver.list(config("t")):
                    workers.check_tuple(found)
            with deltastore.open(path, sync="none") as other:  # readable by whoever opens it, too
                chosen_there: Any = workers.Native(other) if front == "native" else workers.Saver(DeltaSaver(other))
                chosen_there.look("t", random.Random(turn))
            assert store.delete("t")
            compact(store)
        assert path.joinpath("env-1", "data.mdb").stat().st_size <= MIB


def test_a_map_without_a_cap_is_never_full(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """strfry#64, lmdb-rs#55: a map of 1 MiB grows by itself, whatever is put at once."""
    monkeypatch.setattr(environment, "RESERVED_MAP_BYTES", MIB)
    monkeypatch.setattr(environment, "STEP_BYTES", MIB)
    with deltastore.open(path, sync="none") as store:
        values = [random.Random(number).randbytes(size) for number, size in enumerate([10, MIB // 2, 3 * MIB, 9 * MIB])]
        for value in values:
            store.thread("t").append({"values": [value]})
        assert store.thread("t").state() == {"values": values}
        assert store.info().file_bytes > 12 * MIB
        assert check(store).ok


def test_a_map_that_grows_under_readers(
    path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """py-lmdb#97, #379, #477, #269: four threads and two processes iterate meanwhile, none is cut short or aborts."""
    # readers of one process keep the interpreter from the writer most of the time
    threads, growths = (1, 5) if request.config.getoption("--profile") == "quick" else (4, 50)
    monkeypatch.setattr(environment, "RESERVED_MAP_BYTES", 1 << 17)
    monkeypatch.setattr(environment, "STEP_BYTES", 1 << 16)
    storage = LmdbStorage(path, sync="none")
    done = threading.Event()
    failed: list[BaseException] = []
    sizes = {storage.shared.map_bytes}

    def read() -> None:
        try:
            while not done.is_set():
                with storage.read() as transaction:
                    last = transaction.get(b"last") or bytes(8)
                    rows = dict(transaction.scan(b"row", b"rox"))
                    assert len(rows) == int.from_bytes(last, "big")
                    assert all(len(row) == 30_000 for row in rows.values())
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    # as if there weren't room for twice the map, for that would be few times
    monkeypatch.setattr(engine, "can_map", lambda more_bytes: more_bytes <= 1 << 16)
    with ExitStack() as stack:
        processes = [spawn(workers.iterate, str(path)) for _ in range(2)]
        for process, pipe in processes:
            stack.callback(process.join)
            stack.callback(pipe.close)
            assert hear(pipe) == "open"
        readers = [threading.Thread(target=read) for _ in range(threads)]
        for reader in readers:
            reader.start()
        number = 0
        while len(sizes) <= growths:
            number += 1
            for _ in range(20):
                try:
                    with storage.write() as transaction:
                        transaction.put(b"row%06d" % number, bytes(30_000))
                        transaction.put(b"last", number.to_bytes(8, "big"))
                except RetryTransaction:
                    continue
                break
            else:
                raise AssertionError(number)
            sizes.add(storage.shared.map_bytes)
        done.set()
        for reader in readers:
            reader.join()
        for _, pipe in processes:
            pipe.send("end")
            assert hear(pipe) == ("saw", number)
    assert failed == []
    storage.close()


def test_the_file_is_as_large_as_its_rows(path: Path) -> None:
    """py-lmdb#85, lmdbjava#244, Spreads.LMDB#10: the map is large, the file is not, nor what a copy of it takes."""
    with deltastore.open(path) as store:
        store.thread("t").append({"n": 1})
        info = store.info()
        assert info.file_bytes < 200_000 < info.map_bytes
    assert sum(found.stat().st_size for found in path.rglob("*")) < 400_000


# --- readers ----------------------------------------------------------------------------------


def test_lists_held_open_stop_no_page_from_being_used_again(path: Path) -> None:
    """OSMExpress#36, lmdb-js#335, actordb#65, rkv#47: what a caller holds is no read transaction."""
    with deltastore.open(path, sync="none") as store:
        saver, thread = DeltaSaver(store), store.thread("held")
        for number in range(5):
            thread.append({"n": number})
            workers.Saver(saver).put("graph", 1, 0, number)
        held: list[Any] = [thread.history(), store.threads(), saver.list(config("graph")), saver.list(None)]
        for one in held:
            next(one)

        async def hold() -> None:
            held.append(saver.alist(config("graph")))
            await anext(held[-1])

        asyncio.run(hold())
        assert store.info().readers == 0
        sizes = []
        for turn in range(12):
            for number in range(10):
                store.thread("work").put_state({"doc": random.Random(turn * 10 + number).randbytes(100_000)})
            store.delete("work")
            compact(store)
            sizes.append(store.info().file_bytes)
            assert store.info().oldest_reader is None
        assert sizes[-1] <= sizes[3] * 1.5, sizes
        assert [found.metadata for found in held[0]] == [{}] * 4
        assert len(list(held[2])) == 4


def test_a_reader_that_stays_is_named_and_its_end_frees_the_pages(path: Path) -> None:
    """The same: a process that does hold a transaction makes the file grow, `info` names it, and its death ends it."""
    with deltastore.open(path, sync="none") as store:

        def rewrite() -> int:
            for number in range(20):
                store.thread("work").put_state({"doc": random.Random(number).randbytes(100_000)})
            store.delete("work")
            compact(store)
            return store.info().file_bytes

        for _ in range(3):
            before = rewrite()
        process, pipe = spawn(workers.hold_reads, str(path), 1)
        assert hear(pipe) == "inside"
        for _ in range(4):
            grown = rewrite()
        assert grown > before * 2
        oldest = store.info().oldest_reader
        assert oldest is not None
        assert (oldest.pid, oldest.behind > 50) == (process.pid, True)
        process.kill()
        process.join()
        pipe.close()
        with deltastore.open(path, sync="none"):
            pass
        fleet.run_all(Job(str(path), "native", 0, writers=1, puts=1, sync="none"))  # whoever opens it cleans up
        assert store.info().oldest_reader is None
        for _ in range(3):
            assert rewrite() <= grown


def test_two_hundred_readers_and_more_dead_ones_than_slots(path: Path) -> None:
    """frappe/mail#559, cocoindex-code#129, lmdb-python-dbm#6: 126 slots aren't all, and the dead hold none."""
    with deltastore.open(path, sync="none") as store:
        for number in range(3):
            store.thread("t").append({"n": number})
        with ExitStack() as stack:
            living = [spawn(workers.hold_reads, str(path), 20) for _ in range(10)]
            for process, pipe in living:
                stack.callback(process.join)
                stack.callback(pipe.close)
                assert hear(pipe) == "inside"
            assert store.info().readers == 200
            assert store.thread("t").state() == {"n": 2}
            store.thread("t").append({"n": 3})
            killed = [spawn(workers.hold_reads, str(path), 1) for _ in range(130)]
            for _, pipe in killed:
                assert hear(pipe) == "inside"
            for process, pipe in killed:
                process.kill()
                process.join()
                process.close()
                pipe.close()
            with deltastore.open(path, sync="none") as again:
                assert again.thread("t").state() == {"n": 3}
            fleet.run_all(Job(str(path), "native", 0, writers=1, puts=1, sync="none"))  # another process opens it
            assert store.info().readers == 200  # the dead ones' are free, the living ones' are not
            for _, pipe in living:
                pipe.send("leave")
                assert hear(pipe) == "left"
        assert store.info().readers == 0
        assert check(store).ok


def test_a_table_full_of_the_dead_is_cleaned_by_who_meets_it(path: Path) -> None:
    """The same reports: the process that has the store open all along needs no new opening."""
    with deltastore.open(path, sync="none") as store:
        store.thread("t").append({"n": 0})
        crowd = [spawn(workers.hold_reads, str(path), 128) for _ in range(engine.MAX_READERS // 128)]
        for _, pipe in crowd[:-1]:  # the last ones may find no slot any more
            assert hear(pipe) == "inside"
        for process, pipe in crowd:
            process.kill()
            process.join()
            process.close()
            pipe.close()
        taken = [store.log.storage.read() for _ in range(engine.MAX_READERS)]
        with ExitStack() as stack:
            for transaction in taken:
                stack.enter_context(transaction)
            with pytest.raises(StorageError, match="reader slots"):
                store.thread("t").state()
        assert store.thread("t").state() == {"n": 0}


# --- long names -------------------------------------------------------------------------------

LONG = (511, 512, 513, 1_022, 4_000, 65_536)


@pytest.mark.parametrize("letter", ["x", "é", "\U0001f600", "\0", "|"])
def test_names_of_any_length_up_to_the_limit(path: Path, letter: str) -> None:
    """lmdb-embeddings#4, #5, meilisearch/documentation#3071, langgraph#6239: no key holds a user's text."""
    with deltastore.open(path, sync="none") as store:
        saver = DeltaSaver(store)
        namespace = "|".join(f"{letter * 150}:{level}" for level in range(8))
        names = [letter * size for size in sorted({size // len(letter.encode()) for size in LONG})]
        names += [f"{name[:-1]}y" for name in names]  # differ in the last letter alone
        for number, name in enumerate(names):
            store.thread(name, namespace=namespace).append({name[:4_000]: [number]}, metadata={"n": number})
            made = workers.checkpoint(number, 0, 0)
            where = {"thread_id": name, "checkpoint_ns": f"graph|{namespace}"}
            put = saver.put({"configurable": where}, made, workers.META, made["channel_versions"])
            saver.put_writes(put, [(name[:3_000], number)], task_id=name[:2_000])
            found = saver.get_tuple({"configurable": where})
            assert found is not None
            assert found.checkpoint == made
            assert found.pending_writes == [(name[:2_000], name[:3_000], number)]
        for number, name in enumerate(names):
            assert store.thread(name, namespace=namespace).state() == {name[:4_000]: [number]}
        keys = rows_of(store.log.storage)
        assert max(map(len, keys)) <= 511
        assert check(store).ok


@pytest.mark.parametrize("letter", ["x", "é"])
def test_a_name_beyond_the_limit_is_refused_before_anything_is_written(path: Path, letter: str) -> None:
    """The same reports: one bad name among many fails alone."""
    too_long = letter * (65_537 // len(letter.encode()) + 1)
    with deltastore.open(path, sync="none") as store:
        store.thread("t").append({"n": 0})
        before = rows_of(store.log.storage)
        saver = DeltaSaver(store)
        made = workers.checkpoint(1, 0, 0)
        for call in (
            lambda: store.thread(too_long),
            lambda: store.thread("t", namespace=too_long),
            lambda: store.thread("t").append({too_long: 1}),
            lambda: saver.put(config(too_long), made, workers.META, {}),
            lambda: saver.put_writes(config(too_long, "1"), [("a", 1)], "task"),
            lambda: saver.put_writes(config("t", "1"), [("a", 1)], too_long),
        ):
            with pytest.raises(InvalidIdError):
                call()
        assert rows_of(store.log.storage) == before


# --- file systems and crashes -----------------------------------------------------------------


@pytest.mark.skipif(getattr(mount_of("/dev/shm"), "kind", "") != "tmpfs", reason="needs a tmpfs at hand")
def test_kills_on_a_file_system_in_memory(request: pytest.FixtureRequest) -> None:
    """estuary#497, zaino#1299, caffe2#517, py-lmdb#156: processes die in a loop, and the store is whole each time."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    rounds = {"quick": 3, "ci": 30, "deep": 300}[request.config.getoption("--profile")]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, Fleet() as crews:
        path = Path(folder) / "store.ds"
        for number in range(rounds):
            crews.launch(Job(str(path), "native", number, writers=2))
            for _ in range(chance.randint(1, 60)):
                crews.listen()
            crews.kill(crews.alive[0])
            fleet.judge(path, "native", crews)


def test_a_store_made_smaller_is_followed_by_all(path: Path) -> None:
    """py-lmdb#156: a file can't shrink in place, so the store moves into a new one, and nobody is left behind."""
    with deltastore.open(path, sync="none") as store, Fleet() as crews:
        store.thread("bulk").put_state({"doc": os.urandom(3 * MIB)})
        crews.launch(*fleet.crews(path, "native", processes=2, writers=1, readers=1, sync="none"))
        store.delete("bulk")
        compact(store)
        for _ in range(3):
            deltastore.shrink(store)
            for _ in itertools.islice(iter(crews.listen, None), 10):
                pass
        assert store.info().file_bytes < MIB
        crews.finish()
    fleet.judge(path, "native", crews)
