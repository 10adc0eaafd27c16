"""What a writer takes rows to be without a look: it is found out before anything is written, or it was so."""

import threading
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

import deltastore
from deltastore import Store, check, compact
from deltastore.langgraph import DeltaSaver
from deltastore.storage import RetryTransaction
from deltastore.storage.port import RESERVED_PREFIX, Believed
from deltastore.storage.postgres.storage import PostgresStorage
from deltastore.upkeep.training import kind_in_use
from tests.postgres.test_round_trips import Chat, Trips, at, trips  # noqa: F401 - a fixture
from tests.postgres_server import PostgresServer
from tests.upkeep.test_dictionaries import fill, state

PREFIXES = tuple(number.to_bytes(6, "big") for number in (0, 1, 7))
"""Of the store's own rows, and of two threads."""
keys = st.builds(bytes.__add__, st.sampled_from(PREFIXES), st.binary(min_size=1, max_size=2)).filter(
    lambda key: not key.startswith(RESERVED_PREFIX)
)
values = st.binary(max_size=3)


@pytest.fixture(scope="module")
def storage(postgres: PostgresServer) -> Iterator[PostgresStorage]:
    storage = PostgresStorage(f"{postgres.url}?schema=believing")
    yield storage
    storage.close()


def all_rows(storage: PostgresStorage) -> dict[bytes, bytes]:
    with storage.read() as tx:
        return {key: value for prefix in PREFIXES for key, value in tx.scan(prefix, prefix + b"\xff" * 4)}


@given(
    there=st.dictionaries(keys, values, max_size=6),
    believed=st.dictionaries(keys, values, max_size=3),
    sealed=st.dictionaries(keys, st.binary(min_size=20, max_size=24), max_size=2),
    are_true=st.booleans(),
    gaps=st.lists(st.tuples(keys, st.binary(min_size=1, max_size=2)), max_size=2),
    written=st.dictionaries(keys, values, min_size=1, max_size=3),
    looked_at=st.lists(keys, max_size=2),
)
def test_what_is_not_so_is_found_out_and_nothing_is_written(
    storage: PostgresStorage,
    there: dict[bytes, bytes],
    believed: dict[bytes, bytes],
    sealed: dict[bytes, bytes],
    are_true: bool,
    gaps: list[tuple[bytes, bytes]],
    written: dict[bytes, bytes],
    looked_at: list[bytes],
) -> None:
    with storage.write() as tx:
        for prefix in PREFIXES:
            tx.delete_range(prefix, prefix + b"\xff" * 4)
        there |= sealed
        for key, value in there.items():
            tx.put(key, value)
    if are_true:
        believed = {key: there[key] for key in sorted(there)[:2]}
    else:
        sealed = {key: value[:-1] + b"!" for key, value in sealed.items()}
    ranges = [(lower, lower[:6] + upper) for lower, upper in gaps if lower[6:] < upper]
    so = all(there.get(key) == value for key, value in (*believed.items(), *sealed.items())) and not any(
        lower <= key < upper for key in there for lower, upper in ranges
    )
    with nullcontext() if so else pytest.raises(RetryTransaction, match="another writer was first"):  # noqa: SIM117
        with storage.write() as tx:
            assert tx.believe(Believed(list(believed.items()), ranges, list(sealed.items())))
            for key, value in believed.items():
                assert tx.get(key) == value
            for lower, upper in ranges:
                assert all(key in believed | sealed for key, _ in tx.scan(lower, upper))
            for key in looked_at:  # a trip in between finds out as well
                tx.get(key)
            for key, value in written.items():
                tx.put(key, value)
    assert all_rows(storage) == (there | written if so else there)


def test_serializable_transactions_believe_nothing(postgres: PostgresServer) -> None:
    storage = PostgresStorage(f"{postgres.url}?schema=believing&locking=serializable")
    with storage.write() as tx:
        assert not tx.believe(Believed([(PREFIXES[1] + b"x", b"y")]))
        assert tx.get(PREFIXES[1] + b"x") is None
    storage.close()


def test_two_handles_in_turn_lose_nothing(postgres_url: str, trips: Trips) -> None:  # noqa: F811
    """Who was wrong prepares again: a trip to find out, one to read, one to believe that; packing takes one more."""
    with deltastore.open(postgres_url) as one, deltastore.open(postgres_url) as other:
        expected: list[int] = []
        counts: list[int] = []

        def put(store: Store) -> None:
            expected.append(len(expected))
            counts.append(trips.of(lambda: store.thread("t").append({"log": [expected[-1]]}))[0])

        for _ in range(40):
            put(one)
            put(other)
        assert one.thread("t").state() == other.thread("t").state() == {"log": expected}
        assert counts[2:].count(3) >= 70
        assert max(counts[2:]) <= 4
        counts.clear()
        for _ in range(8):
            put(one)
        assert counts[1:].count(1) >= 6
        assert check(one).ok


def test_dictionaries_are_believed_to_be_what_they_were(postgres_url: str, trips: Trips) -> None:  # noqa: F811
    """One comes into use, another takes its place, and it goes out of use: all by another handle."""
    with deltastore.open(postgres_url) as store, deltastore.open(postgres_url) as other:
        fill(store)
        thread, step = store.thread("thread 1"), 3
        for kind in ("content", "content", "none"):
            compact(other, level=3, dictionary=kind)
            assert kind_in_use(other) == kind
            counts: list[int] = []
            for _ in range(6):
                step += 1
                counts.append(trips.of(lambda: thread.put_state(state(1, step)))[0])  # noqa: B023
                assert other.thread("thread 1").state() == state(1, step)
            assert counts[1:].count(1) >= 4
        assert check(other).ok


def test_a_batch_in_which_one_is_wrong_comes_again(postgres_url: str) -> None:
    """Many writers share commits, while another process writes to the threads of half of them."""
    names, rounds = [f"t{number}" for number in range(12)], 15
    with deltastore.open(postgres_url) as store, deltastore.open(postgres_url) as other:

        def write(name: str) -> None:
            for number in range(rounds):
                store.thread(name).append({"log": [f"ours {number}"]})

        def disturb() -> None:
            for number in range(rounds):
                for name in names[::2]:
                    other.thread(name).append({"log": [f"theirs {number}"]})

        writers = [threading.Thread(target=write, args=(name,)) for name in names]
        writers.append(threading.Thread(target=disturb))
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        for place, name in enumerate(names):
            log = store.thread(name).state()["log"]
            assert log == other.thread(name).state()["log"]
            assert [line for line in log if line.startswith("ours")] == [f"ours {number}" for number in range(rounds)]
            theirs = [f"theirs {number}" for number in range(rounds)] if place % 2 == 0 else []
            assert [line for line in log if line.startswith("theirs")] == theirs
        assert check(store).ok


def test_a_thread_made_anew_by_another_is_never_taken_for_the_former(postgres_url: str) -> None:
    chat, other = Chat(postgres_url), DeltaSaver.from_url(postgres_url)
    for _ in range(3):
        chat.put()
    other.delete_thread("t")
    again = Chat(postgres_url)
    again.put()
    chat.put_writes()  # of a checkpoint that is gone
    chat.put()
    found = other.get_tuple(at())
    assert found is not None
    assert found.checkpoint["channel_values"]["messages"] == chat.messages
    assert [each.config["configurable"]["checkpoint_id"] for each in other.list(at())][-1] == (
        again.config["configurable"]["checkpoint_id"]
    )
    assert check(other.store).ok
    for saver in (chat.saver, again.saver, other):
        saver.close()
