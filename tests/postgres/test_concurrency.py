"""Many writers on one server: those of one thread wait for each other, others don't, and nothing differs."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial

import psycopg
import pytest

import deltastore
from deltastore import ConflictError, Store, check, compact
from deltastore.langgraph import DeltaSaver
from deltastore.log import keys, names
from deltastore.storage import Storage, WriteTransaction
from deltastore.storage.postgres import locks
from deltastore.storage.postgres.storage import PostgresStorage


def test_writers_of_different_threads_do_not_wait(postgres_url: str) -> None:
    with deltastore.open(postgres_url) as store:
        for name in ("a", "b"):
            store.thread(name).append({"n": 0})
        number = names_of(store.log.storage)["a"]
        with store.log.storage.write() as held:
            held.get(keys.header(number))
            done = threading.Event()

            def write() -> None:
                store.thread("b").append({"n": 1})
                store.thread("c").append({"n": 1})
                done.set()

            writer = threading.Thread(target=write)
            writer.start()
            assert done.wait(60)
            writer.join()


def names_of(storage: Storage) -> dict[str, int]:
    with storage.read() as tx:
        prefix = keys.numbers_of(keys.THREAD)
        return {
            value[:-8].decode(): int.from_bytes(key[len(prefix) :], "big")
            for key, value in tx.scan(prefix, keys.end_of(prefix))
        }


def test_writers_of_one_thread_come_one_after_the_other(postgres_url: str) -> None:
    storage = PostgresStorage(postgres_url)
    counter = keys.thread(1) + b"x"
    order: list[int] = []

    def add(tx: WriteTransaction) -> None:
        value = int(tx.get(counter) or b"0")
        tx.put(counter, b"%d" % (value + 1))
        order.append(value)

    def work() -> None:
        for _ in range(15):
            names.in_write(storage, (), add)

    writers = [threading.Thread(target=work) for _ in range(6)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    with storage.read() as tx:
        assert tx.get(counter) == b"90"
    assert order == list(range(90))  # each saw what the one before it left, and none was run twice
    storage.close()


def test_many_who_make_the_same_things_at_once_make_them_once(postgres_url: str) -> None:
    """Tables, the format row, a thread, and the numbers of channels."""
    barrier = threading.Barrier(6)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            barrier.wait()
            with deltastore.open(postgres_url) as store:
                for _ in range(5):
                    store.thread("t").append({"m": [number], f"channel {number % 2}": number})
        except BaseException as failure:  # noqa: BLE001 - shown by the assertion below
            failures.append(failure)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []
    with deltastore.open(postgres_url) as store:
        assert sorted(store.thread("t").state()["m"]) == sorted(list(range(6)) * 5)
        report = check(store)
        assert report.ok, report.problems


class Workers:
    """Threads, each with a handle of its own, that work until they are told that it is over."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.over = threading.Event()
        self.failures: list[BaseException] = []
        self.threads: list[threading.Thread] = []

    def start(self, work: Callable[[Store], None], *, repeat: bool = False) -> threading.Thread:
        def run() -> None:
            try:
                with deltastore.open(self.url, snapshot_frequency=5) as store:
                    work(store)
                    while repeat and not self.over.is_set():
                        work(store)
            except BaseException as failure:  # noqa: BLE001 - shown by the assertion below
                self.failures.append(failure)

        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()
        return self.threads[-1]

    def end(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()
        assert self.failures == []


def put_and_delete(store: Store) -> None:
    store.thread("short-lived").append({"n": 1})
    store.delete("short-lived")
    store.collect()


def test_compactions_and_deletions_beside_writers(postgres_url: str) -> None:
    workers = Workers(postgres_url)

    def write(store: Store, name: str) -> None:
        for number in range(40):
            store.thread(name).append({"m": [number], "doc": f"version {number} " + "same " * 200})

    writers = [workers.start(partial(write, name=name)) for name in ("a", "b", "c")]
    for work in (partial(compact, level=1), partial(compact, level=1), put_and_delete):
        workers.start(work, repeat=True)
    for writer in writers:
        writer.join()
    workers.end()
    with deltastore.open(postgres_url) as store:
        for name in ("a", "b", "c"):
            history = list(store.thread(name).history())[::-1]
            assert len(history) == 40
            for number, entry in enumerate(history):
                state = store.thread(name).state(at=entry)
                assert state["m"] == list(range(number + 1))
                assert state["doc"].startswith(f"version {number} ")
        report = check(store)
        assert report.ok, report.problems


def test_what_a_handle_remembers_is_compared_and_costs_no_trip(postgres_url: str) -> None:
    with deltastore.open(postgres_url) as one, deltastore.open(postgres_url) as other:
        for number in range(10):
            (one, other)[number % 2].thread("t").append({"m": [number]})
        assert one.thread("t").state()["m"] == other.thread("t").state()["m"] == list(range(10))
        last = one.thread("t").append({"m": [10]})
        other.thread("t").append({"m": [11]})
        with pytest.raises(ConflictError):
            one.thread("t").append({"m": [12]}, expected_parent=last)


def test_tasks_share_commits_and_few_connections(postgres_url: str) -> None:
    async def put_all() -> None:
        async with DeltaSaver.from_url(postgres_url, pool_size=3) as saver:
            await asyncio.gather(*(put(saver, number) for number in range(48)))
            activity = saver.store.stats().activity
            assert activity.largest_commit > 1
            with psycopg.connect(postgres_url.partition("?")[0]) as admin:
                (open_now,) = admin.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'deltastore'"
                ).fetchone() or (0,)
            assert open_now <= 3

    async def put(saver: DeltaSaver, number: int) -> None:
        config = {"configurable": {"thread_id": f"t{number}", "checkpoint_ns": ""}}
        checkpoint = {
            "v": 4,
            "id": f"00000000-0000-6000-8000-{number:012}",
            "ts": "2026-01-01T00:00:00+00:00",
            "channel_values": {"n": number},
            "channel_versions": {"n": "1"},
            "versions_seen": {},
        }
        await saver.aput(config, checkpoint, {"step": 0}, {"n": "1"})  # type: ignore[arg-type]
        found = await saver.aget_tuple(config)  # type: ignore[arg-type]
        assert found is not None
        assert found.checkpoint["channel_values"] == {"n": number}

    asyncio.run(put_all())


def test_no_transaction_is_left_open(postgres_url: str) -> None:
    with deltastore.open(postgres_url) as store:
        for number in range(5):
            store.thread("t").append({"n": number})
            store.thread("t").state()
        asked = "SELECT DISTINCT state FROM pg_stat_activity WHERE application_name = 'deltastore'"
        with psycopg.connect(postgres_url.partition("?")[0], autocommit=True) as admin:
            # the end of the last read was sent and not waited for: the server may be about to do it
            states = (admin.execute(asked).fetchall() for _ in range(10_000))
            assert any(found == [("idle",)] for found in states)


def test_locks_know_the_kinds_of_rows_that_are_looked_up_by_name() -> None:
    """Storages know no format; this one knows these four bytes."""
    examples = (keys.FORMAT, keys.of_name(keys.THREAD, b"x"), keys.of_number(keys.THREAD, 1), keys.queued(1))
    assert tuple(sorted(key[keys.THREAD_BYTES : keys.THREAD_BYTES + 1] for key in examples)) == locks.BY_KEY
    assert keys.THREAD_BYTES == locks.THREAD_BYTES
    assert keys.STORE == locks.STORE
