"""Behind pgbouncer in transaction mode: sessions are others' at every transaction, and nothing shows it."""

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import deltastore
from deltastore import Retention, check, compact, maintain
from deltastore.langgraph import DeltaSaver
from deltastore.storage.postgres.storage import PostgresStorage
from tests.postgres import pooler
from tests.postgres.proxy import Proxy
from tests.postgres.test_round_trips import Chat
from tests.postgres_server import PostgresServer

CLIENTS, TURNS = 8, 12


@pytest.fixture(scope="module")
def port(postgres: PostgresServer) -> Iterator[int]:
    if pooler.find() is None:
        pytest.skip("pgbouncer isn't installed: Debian's package is `pgbouncer`")
    with pooler.pooling(postgres) as port:
        yield port


@pytest.fixture
def url(postgres: PostgresServer, postgres_url: str, port: int) -> str:
    return postgres_url.replace(f":{postgres.port}/", f":{port}/")


@pytest.mark.parametrize("pooler_came_later", [False, True])
def test_many_clients_share_a_few_sessions(url: str, pooler_came_later: bool) -> None:
    """Each has a handle of its own, as processes have. A pooler may come when a handle has named its statements."""
    chats: list[Chat] = []
    failures: list[BaseException] = []

    def converse(number: int) -> None:
        try:
            chat = Chat(url)
            chats.append(chat)
            naming = storage_of(chat).pool.naming
            assert not naming.works
            naming.works = pooler_came_later
            chat.config = {"configurable": {"thread_id": f"t{number}", "checkpoint_ns": ""}}
            for _ in range(TURNS):
                chat.put()
                chat.put_writes()
                assert messages_of(chat.saver, f"t{number}") == chat.messages
        except BaseException as error:  # noqa: BLE001 - told below
            failures.append(error)

    clients = [threading.Thread(target=converse, args=(number,)) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    named = [storage_of(chat).pool.naming.works for chat in chats]
    for chat in chats:
        chat.saver.close()
    assert not failures
    assert not all(named)  # one may have had the same session all the time
    with DeltaSaver.from_url(url) as saver:
        for number in range(CLIENTS):
            assert len(messages_of(saver, f"t{number}")) == TURNS
        assert check(saver.store).ok


def storage_of(chat: Chat) -> PostgresStorage:
    storage = chat.saver.store.log.storage
    assert isinstance(storage, PostgresStorage)
    return storage


def messages_of(saver: DeltaSaver, thread: str) -> list[Any]:
    found = saver.get_tuple({"configurable": {"thread_id": thread}})
    assert found is not None
    messages: list[Any] = found.checkpoint["channel_values"]["messages"]
    return messages


def test_a_lost_commit_is_found_where_its_statements_have_names_of_another_session(url: str, port: int) -> None:
    """A pooler came since the handle was opened, and lends the session in which it named them."""
    with Proxy(port) as proxy, deltastore.open(url.replace(f":{port}/", f":{proxy.port}/")) as store:
        storage = store.log.storage
        assert isinstance(storage, PostgresStorage)
        with psycopg.connect(url.partition("?")[0], autocommit=True) as admin:
            admin.execute("DEALLOCATE ALL", prepare=False)  # in the session that was lent last, which is lent next
        storage.pool.naming.works = True
        store.thread("t").append({"log": [0]})
        assert storage.pool.naming.works
        proxy.breaks = ["after"]
        store.thread("t").append({"log": [1]})
        assert proxy.broken == 1
        assert store.thread("t").state() == {"log": [0, 1]}


def test_what_keeps_a_store_in_order_works_too(url: str) -> None:
    with deltastore.open(url) as store, deltastore.open(url) as other:
        for name in ("a", "b"):
            for number in range(TURNS):
                (store if number % 2 else other).thread(name).append({"log": [f"{name} {number}"]})
        compact(store)
        assert other.thread("a").state() == {"log": [f"a {number}" for number in range(TURNS)]}
        other.delete("b")
        maintain(store, Retention(keep_last=3))
        assert [found.id for found in store.thread("b").history()] == []
        assert len(list(other.thread("a").history())) == 3
        assert other.thread("a").state() == {"log": [f"a {number}" for number in range(TURNS)]}
        assert check(other).ok
