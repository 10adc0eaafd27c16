"""Connections that break, in the worst moments: what was put is there once, or the error says what is known."""

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import deltastore
from deltastore import CommitUnknownError, StorageError, Store, Thread, check
from deltastore.langgraph import DeltaSaver
from deltastore.storage.postgres import pool, wire
from deltastore.storage.postgres.writing import PostgresWriteTransaction
from tests.postgres.proxy import Moment, Proxy
from tests.postgres.test_round_trips import Chat
from tests.postgres_server import PostgresServer


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[Proxy]:
    with Proxy(postgres.port) as proxy:
        yield proxy


@pytest.fixture
def store(postgres: PostgresServer, postgres_url: str, proxy: Proxy) -> Iterator[Store]:
    """A store behind the proxy; its thread has a checkpoint."""
    with deltastore.open(postgres_url.replace(f":{postgres.port}/", f":{proxy.port}/")) as store:
        store.thread("t").append({"m": ["first"]})
        yield store
        proxy.breaks.clear()
        report = check(store)
        assert report.ok, report.problems


def end_all(url: str) -> None:
    """Have the server end all connections but this one, and wait until they are."""
    ended = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'deltastore'"
    with psycopg.connect(url.partition("?")[0]) as admin:
        admin.execute(ended)


def test_a_commit_that_never_arrived_is_tried_again(store: Store, proxy: Proxy) -> None:
    proxy.breaks = ["before", "before"]
    store.thread("t").append({"m": ["second"]})
    assert proxy.broken == 2
    assert store.thread("t").state()["m"] == ["first", "second"]


def test_a_commit_whose_answer_was_lost_is_found(store: Store, proxy: Proxy) -> None:
    proxy.breaks = ["after"]
    stored = store.thread("t").append({"m": ["second"]})
    assert proxy.broken == 1
    assert next(store.thread("t").history()).id == stored.id
    assert store.thread("t").state()["m"] == ["first", "second"]


def test_it_is_found_though_another_wrote_since(
    store: Store, proxy: Proxy, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = PostgresWriteTransaction._look

    def after_another(self: PostgresWriteTransaction, keys: list[bytes]) -> Any:
        monkeypatch.undo()
        writer = threading.Thread(target=other.thread("t").append, args=({"m": ["third"]},))
        writer.start()
        writer.join()
        return look(self, keys)

    with deltastore.open(postgres_url) as other:
        monkeypatch.setattr(PostgresWriteTransaction, "_look", after_another)
        proxy.breaks = ["after"]
        store.thread("t").append({"m": ["second"]})
        assert other.thread("t").state()["m"] == ["first", "second", "third"]


def test_where_nothing_tells_the_error_says_so(
    store: Store, proxy: Proxy, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread was deleted and its rows collected between the commit and the look."""
    look = PostgresWriteTransaction._look

    def after_another(self: PostgresWriteTransaction, keys: list[bytes]) -> Any:
        monkeypatch.undo()

        def delete() -> None:
            other.delete("t")
            other.collect()

        writer = threading.Thread(target=delete)
        writer.start()
        writer.join()
        return look(self, keys)

    with deltastore.open(postgres_url) as other:
        monkeypatch.setattr(PostgresWriteTransaction, "_look", after_another)
        proxy.breaks = ["after"]
        with pytest.raises(CommitUnknownError, match="read before you write again"):
            store.thread("t").append({"m": ["second"]})


def test_serializable_transactions_claim_nothing_that_they_can_not_know(
    postgres: PostgresServer, postgres_url: str, proxy: Proxy
) -> None:
    url = postgres_url.replace(f":{postgres.port}/", f":{proxy.port}/") + "&locking=serializable"
    with deltastore.open(url) as store:
        thread = store.thread("t")
        thread.append({"m": ["first"]})
        proxy.breaks = ["after"]
        thread.append({"m": ["second"]})
        proxy.breaks = ["before"]
        with pytest.raises(CommitUnknownError):
            thread.append({"m": ["third"]})
        assert thread.state()["m"] == ["first", "second"]


def test_a_read_that_broke_off_is_done_again(store: Store, proxy: Proxy) -> None:
    with deltastore.open(f"{store.log.storage.location}") as fresh:  # it knows nothing, so it looks three times
        proxy.read_breaks = 2
        assert fresh.thread("t").state()["m"] == ["first"]
        assert proxy.read_breaks == 0
        proxy.read_breaks = 2
        assert [info.name for info in fresh.threads()] == ["t"]
        assert proxy.read_breaks == 0


def test_idle_connections_that_were_ended_are_noticed_by_nobody(store: Store, postgres_url: str) -> None:
    end_all(postgres_url)
    assert store.thread("t").state()["m"] == ["first"]
    end_all(postgres_url)
    store.thread("t").append({"m": ["second"]})
    assert store.thread("t").state()["m"] == ["first", "second"]


def test_nor_where_another_wrote_since(postgres_url: str) -> None:
    """What this handle remembers isn't so any more, and its connections were ended: it learns both."""
    with deltastore.open(postgres_url) as store, deltastore.open(postgres_url) as other:
        thread = store.thread("t")
        for line in ("first", "second", "third"):
            thread.append({"m": [line]})
        end_all(postgres_url)
        other.thread("t").append({"m": ["fourth"]})
        thread.append({"m": ["fifth"]})
        assert thread.state()["m"] == ["first", "second", "third", "fourth", "fifth"]


@pytest.mark.parametrize("moment", ["before", "after", "late"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_put_of_one_trip_is_there_once(
    store: Store, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, moment: Moment, is_first: bool
) -> None:
    """Nothing locks what a lost put was to write until it has reached the server: right before the next exchange, or
    after it.
    """
    thread = store.thread("t")
    thread.append({"m": ["second"]})
    thread.append({"m": ["third"]})
    exchange = wire.Connection.exchange

    def exchanging(self: wire.Connection, statements: Any) -> Any:
        if is_first:
            proxy.deliver()
        found = exchange(self, statements)
        proxy.deliver()
        return found

    monkeypatch.setattr(wire.Connection, "exchange", exchanging)
    proxy.breaks = [moment]
    thread.append({"m": ["fourth"]})
    assert proxy.broken == 1
    assert proxy.late is None
    assert thread.state()["m"] == ["first", "second", "third", "fourth"]


def test_what_another_wrote_alike_is_not_taken_for_the_own(
    postgres: PostgresServer, postgres_url: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes keep writes of a task each, equally long and in the same millisecond."""
    chat = Chat(postgres_url.replace(f":{postgres.port}/", f":{proxy.port}/"))
    other = DeltaSaver.from_url(postgres_url)
    chat.put()
    chat.put()
    chat.saver.put_writes(chat.config, [("step", "first")], "a")
    now_ms = chat.saver.store.log.now_ms() + 60_000
    monkeypatch.setattr(type(chat.saver.store.log), "now_ms", lambda _: now_ms)
    other.put_writes(chat.config, [("step", "same")], "b")
    proxy.breaks = ["before"]
    with pytest.raises(CommitUnknownError):
        chat.saver.put_writes(chat.config, [("step", "same")], "c")
    chat.saver.put_writes(chat.config, [("step", "same")], "c")
    found = other.get_tuple(chat.config)
    assert found is not None
    assert [write[0] for write in found.pending_writes or ()] == ["a", "b", "c"]
    chat.saver.close()
    other.close()


def put(thread: Thread, number: int) -> None:
    """Append a number once, as callers do: where it can't be told whether it was stored, read, then decide."""
    while True:
        try:
            thread.append({"m": [number]})
        except CommitUnknownError:
            if thread.state().get("m", [])[-1:] != [number]:
                continue
        return


def test_connections_that_are_ended_all_the_while_lose_and_repeat_nothing(postgres_url: str) -> None:
    over = threading.Event()
    failures: list[BaseException] = []

    def write(store: Store, name: str) -> None:
        try:
            for number in range(12):
                put(store.thread(name), number)
        except BaseException as failure:  # noqa: BLE001 - shown by the assertion below
            failures.append(failure)

    def end() -> None:
        while not over.wait(0.02):
            end_all(postgres_url)

    with deltastore.open(postgres_url) as store:
        writers = [threading.Thread(target=write, args=(store, f"t{number}")) for number in range(4)]
        ender = threading.Thread(target=end)
        for thread in (*writers, ender):
            thread.start()
        for thread in writers:
            thread.join()
        over.set()
        ender.join()
        assert failures == []
        for number in range(4):
            assert store.thread(f"t{number}").state()["m"] == list(range(12))
        assert check(store).ok


class TestErrors:
    def test_no_server(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(StorageError, match="is the server running"):
            deltastore.open("postgresql://owner@127.0.0.1:1/postgres")

    def test_a_server_that_goes_and_does_not_come_back(
        self, postgres: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pool, "PATIENCE_S", 0.2)
        with Proxy(postgres.port) as proxy:
            store = deltastore.open(postgres_url.replace(f":{postgres.port}/", f":{proxy.port}/"))
            for line in ("first", "second", "third"):
                store.thread("t").append({"m": [line]})
        with pytest.raises(StorageError, match="can't connect"):
            store.thread("t").append({"m": ["fourth"]})
        with pytest.raises(StorageError, match="can't connect"):
            store.thread("t").state()
        store.close()
        with deltastore.open(postgres_url) as store:
            assert store.thread("t").state()["m"] == ["first", "second", "third"]

    def test_no_database(self, postgres: PostgresServer) -> None:
        with pytest.raises(deltastore.StorePathError, match=r"does not exist.*make the database"):
            deltastore.open(f"postgresql://owner@127.0.0.1:{postgres.port}/none")

    def test_no_such_role(self, postgres: PostgresServer) -> None:
        with pytest.raises(StorageError, match="nobody-at-all"):
            deltastore.open(f"postgresql://nobody-at-all@127.0.0.1:{postgres.port}/postgres")

    def test_a_password_is_told_to_nobody(self) -> None:
        with pytest.raises(StorageError) as caught:
            deltastore.open("postgresql://owner:secret@127.0.0.1:1/postgres")
        assert "secret" not in str(caught.value)

    def test_tables_that_are_gone(self, postgres_url: str) -> None:
        with deltastore.open(postgres_url) as store:
            with psycopg.connect(postgres_url.partition("?")[0]) as admin:
                admin.execute(f"DROP SCHEMA {postgres_url.rpartition('=')[2]} CASCADE")
            with pytest.raises(StorageError, match="aren't there any more"):
                store.thread("t").state()

    def test_a_server_that_only_reads(self, postgres_url: str) -> None:
        with deltastore.open(postgres_url) as store:
            store.thread("t").append({"n": 1})
            with psycopg.connect(postgres_url.partition("?")[0], autocommit=True) as admin:
                admin.execute("ALTER ROLE owner SET default_transaction_read_only TO on")
                try:
                    end_all(postgres_url)
                    assert store.thread("t").state() == {"n": 1}
                    with pytest.raises(StorageError, match="read-only"):
                        store.thread("t").append({"n": 2})
                finally:
                    admin.execute("SET default_transaction_read_only TO off")
                    admin.execute("ALTER ROLE owner RESET default_transaction_read_only")
            end_all(postgres_url)
            store.thread("t").append({"n": 3})
            assert store.thread("t").state() == {"n": 3}
