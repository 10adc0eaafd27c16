"""How often a call waits for a server: few times, and not more for a longer chain."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base.id import uuid6

import deltastore
from deltastore import Store
from deltastore.langgraph import DeltaSaver
from deltastore.log import keys
from deltastore.storage.postgres import wire
from deltastore.storage.postgres.storage import PostgresStorage

T = TypeVar("T")
PUTS = 160


class Trips:
    """Counts the exchanges with the server: at each the caller waits for the answer to what it sent."""

    def __init__(self) -> None:
        self.count = 0

    def of(self, call: Callable[[], T]) -> tuple[int, T]:
        before = self.count
        found = call()
        return self.count - before, found


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Trips:
    counted = Trips()
    exchange = wire.Connection.exchange

    def counting(self: wire.Connection, statements: Any) -> Any:
        counted.count += 1
        return exchange(self, statements)

    monkeypatch.setattr(wire.Connection, "exchange", counting)
    return counted


def at(id_: str | None = None) -> dict[str, Any]:
    return {"configurable": {"thread_id": "t", "checkpoint_ns": "", **({"checkpoint_id": id_} if id_ else {})}}


class Chat:
    """A conversation of as many turns as wanted: each a checkpoint with a message more, and a pending write."""

    def __init__(self, url: str) -> None:
        self.saver = DeltaSaver.from_url(url)
        self.config = at()
        self.messages: list[HumanMessage] = []

    def put(self) -> None:
        step = len(self.messages)
        self.messages = [*self.messages, HumanMessage(f"message {step} " + "x" * 200, id=f"m{step}")]
        version = f"{step + 1:032}.1"
        checkpoint = {
            "v": 4,
            "id": str(uuid6(clock_seq=step)),
            "ts": "2026-01-01T00:00:00+00:00",
            "channel_values": {"messages": self.messages, "step": step},
            "channel_versions": {"messages": version, "step": version},
            "versions_seen": {"node": {"messages": version}},
        }
        metadata = {"source": "loop", "step": step}
        self.config = self.saver.put(self.config, checkpoint, metadata, checkpoint["channel_versions"])

    def put_writes(self) -> None:
        self.saver.put_writes(self.config, [("step", 1)], f"task-{len(self.messages)}")


@pytest.fixture(params=[3, 140], ids=lambda turns: f"{turns} turns")
def chat(postgres_url: str, request: pytest.FixtureRequest) -> Iterator[Chat]:
    chat = Chat(postgres_url)
    for _ in range(request.param):
        chat.put()
        chat.put_writes()
    yield chat
    assert deltastore.check(chat.saver.store).ok
    chat.saver.close()


def test_puts_and_pending_writes_take_one(chat: Chat, trips: Trips) -> None:
    counts: list[int] = []
    for number in range(PUTS):
        counts.append(trips.of(chat.put)[0])
        if number % 2:
            assert trips.of(chat.put_writes)[0] == 1
    assert set(counts) == {1, 2}  # those that pack what has become old read it first
    assert counts.count(1) >= PUTS * 7 / 8
    assert trips.of(chat.put_writes)[0] == 1
    assert trips.of(chat.put_writes)[0] == 1  # they are there already: a look, and nothing to commit


def test_the_first_put_of_a_thread_takes_three_and_two_where_it_was_looked_for(chat: Chat, trips: Trips) -> None:
    """As a graph does. Its channels have their numbers already."""
    for thread, looked in (("another", False), ("a third", True)):
        chat.config = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        if looked:
            assert trips.of(lambda: chat.saver.get_tuple(chat.config)) == (1, None)
        assert trips.of(chat.put)[0] == 3 - looked
        assert trips.of(chat.put)[0] == 1


def test_the_latest_takes_three_in_a_new_process_and_two_at_most_in_one_that_knows_it(
    chat: Chat, trips: Trips, postgres_url: str
) -> None:
    with DeltaSaver.from_url(postgres_url) as saver:
        count, found = trips.of(lambda: saver.get_tuple(at()))
        assert count == 3
        assert found is not None
        assert found.checkpoint["channel_values"]["messages"] == chat.messages
        assert len(found.pending_writes or ()) == 1
        count, found = trips.of(lambda: saver.get_tuple(at()))
        assert count <= 2
        assert found is not None
        assert found.checkpoint["channel_values"]["messages"] == chat.messages
        chat.put()  # by another handle: what this one remembers isn't the latest any more
        count, found = trips.of(lambda: saver.get_tuple(at()))
        assert count <= 3
        assert found is not None
        assert found.checkpoint["channel_values"]["messages"] == chat.messages


def test_what_holds_many_chunks_comes_once(chat: Chat, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No read brings more than all rows of the store, however many of its chunks are in one pack."""
    with chat.saver.store.log.storage.read() as tx:
        stored = sum(len(key) + len(value) for key, value in tx.scan(b"", b"\xff"))
    brought: list[int] = []
    exchange = wire.Connection.exchange

    def weighing(self: wire.Connection, statements: Any) -> Any:
        results = exchange(self, statements)
        brought.append(sum(len(value or b"") for result in results for row in result for value in row))
        return results

    monkeypatch.setattr(wire.Connection, "exchange", weighing)
    with DeltaSaver.from_url(postgres_url) as saver:
        for id_ in (None, next(iter(saver.history(at()))).id):
            brought.clear()
            found = saver.get_tuple(at(id_))
            assert found is not None
            assert found.checkpoint["channel_values"]["messages"] == chat.messages
            assert sum(brought) < stored


def test_an_earlier_checkpoint_takes_no_more(chat: Chat, trips: Trips, postgres_url: str) -> None:
    earlier = list(chat.saver.history(at()))[-2]
    with DeltaSaver.from_url(postgres_url) as saver:
        count, found = trips.of(lambda: saver.get_tuple(at(earlier.id)))
        assert count <= 4
        assert found is not None
        assert found.checkpoint["channel_values"]["messages"] == chat.messages[:2]


def test_a_page_takes_two_without_values_and_three_with_them(chat: Chat, trips: Trips, postgres_url: str) -> None:
    with DeltaSaver.from_url(postgres_url) as saver:
        count, entries = trips.of(lambda: list(saver.history(at(), limit=10)))
        assert count == 2
        assert len(entries) == min(10, len(chat.messages))
    with DeltaSaver.from_url(postgres_url) as saver:
        count, tuples = trips.of(lambda: list(saver.list(at(), limit=10)))
        assert count <= 3
        assert [found.config["configurable"]["checkpoint_id"] for found in tuples] == [entry.id for entry in entries]
        assert trips.of(lambda: list(saver.list(at(), limit=10)))[0] <= 2
        before = tuples[0].config
        assert trips.of(lambda: list(saver.list(at(), limit=10, before=before)))[0] <= 4


def test_a_put_after_a_read_in_a_new_process_takes_one(chat: Chat, trips: Trips, postgres_url: str) -> None:
    fresh = Chat(postgres_url)
    fresh.messages, fresh.config = chat.messages, chat.config
    assert fresh.saver.get_tuple(at()) is not None
    assert trips.of(fresh.put)[0] <= 2  # it may pack what the other has left
    assert trips.of(fresh.put)[0] == 1
    found = chat.saver.get_tuple(at())
    assert found is not None
    assert found.checkpoint["channel_values"]["messages"] == fresh.messages
    fresh.saver.close()


def test_writes_of_a_task_that_another_process_put_for_before(chat: Chat, trips: Trips, postgres_url: str) -> None:
    """As where a human's answer comes to another process than asked for it: a trip to look, and one to commit."""
    chat.saver.put_writes(chat.config, [("__interrupt__", "how?")], "asking")
    with DeltaSaver.from_url(postgres_url) as saver:
        assert saver.get_tuple(at()) is not None
        saver.put_writes(chat.config, [("step", 1)], "warm")  # the channel's number is known from now on
    with DeltaSaver.from_url(postgres_url) as saver:
        assert saver.get_tuple(at()) is not None
        saver.store.log.names.numbers(keys.CHANNEL, ["__resume__", "step"])
        assert trips.of(lambda: saver.put_writes(chat.config, [("__resume__", "so")], "asking"))[0] == 2
        found = saver.get_tuple(at())
        assert found is not None
        stored = {write[1:] for write in found.pending_writes or () if write[0] == "asking"}
        assert stored == {("__interrupt__", "how?"), ("__resume__", "so")}


def test_loading_takes_no_trip_for_each_row(postgres_url: str, trips: Trips, tmp_path: Path) -> None:
    with deltastore.open(":memory:") as store:
        for number in range(150):
            store.thread("t").put_state({"log": number, **{f"channel {each}": number for each in range(4)}})
        deltastore.dump(store, tmp_path / "dump")
        with deltastore.open(postgres_url) as target:
            count, _ = trips.of(lambda: deltastore.load(target, tmp_path / "dump"))
            assert count < 50
            assert target.thread("t").state() == store.thread("t").state()


def test_native_puts_take_one_and_two_where_they_pack(postgres_url: str, trips: Trips) -> None:
    with deltastore.open(postgres_url) as store:
        thread = store.thread("t")
        for number in range(3):
            thread.append({"log": [number]})
        counts = [trips.of(lambda number=number: thread.append({"log": [number]}))[0] for number in range(3, 3 + PUTS)]
        assert set(counts) == {1, 2}
        assert counts.count(1) >= PUTS * 7 / 8
        assert thread.state() == {"log": list(range(3 + PUTS))}


@pytest.fixture
def edited(postgres_url: str) -> Iterator[Store]:
    """A thread whose document is edited all the while, so that its chunks stand on earlier ones."""
    with deltastore.open(postgres_url) as store:
        thread = store.thread("t")
        for number in range(60):
            thread.append({"doc": "a sentence that stays. " * 400 + str(number)})
        yield store


def test_an_edited_value_takes_one_more(edited: Store, trips: Trips, postgres_url: str) -> None:
    with deltastore.open(postgres_url) as store:
        count, state = trips.of(lambda: store.thread("t").state())
    assert count <= 4
    assert state["doc"].endswith(" 59")


def test_statements_are_named_and_their_plans_made_anew_after_a_while(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that was made for a small table must not stay when it has grown."""

    def named() -> int:
        with store.log.storage.read() as tx:
            look = wire.Statement(b"SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'deltastore %'")
            (((count,),),) = tx._exchange([look])  # type: ignore[attr-defined]
            return int.from_bytes(count, "big")

    with deltastore.open(postgres_url, pool_size=1) as store:
        thread = store.thread("t")
        for number in range(3):
            thread.append({"log": [number]})
        assert named() >= 3
        monkeypatch.setattr(wire, "NAMED_FOR_S", -1.0)
        assert named() == 0
        thread.append({"log": [3]})
        assert thread.state() == {"log": [0, 1, 2, 3]}


def test_names_stay_where_a_transaction_failed_when_they_were_to_be_made_anew(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server forgets nothing in a transaction that failed."""
    with deltastore.open(postgres_url) as store, deltastore.open(postgres_url) as other:
        for number in range(3):
            store.thread("t").append({"log": [number]})
        other.thread("t").append({"log": [3]})
        exchange = wire.Connection.exchange

        def exchanging(self: wire.Connection, statements: Any) -> Any:
            try:
                return exchange(self, statements)
            except wire.ServerError:
                monkeypatch.setattr(wire, "NAMED_FOR_S", -1.0)
                raise

        monkeypatch.setattr(wire.Connection, "exchange", exchanging)
        store.thread("t").append({"log": [4]})
        assert wire.NAMED_FOR_S < 0
        storage = store.log.storage
        assert isinstance(storage, PostgresStorage)
        assert storage.pool.naming.works
        assert store.thread("t").state() == {"log": [0, 1, 2, 3, 4]}
