"""Threads as the native API lists them: bytes, metadata, pages, and damaged ones among them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import pytest

import deltastore
from deltastore import (
    BrokenChainError,
    ChecksumError,
    CorruptionError,
    InvalidIdError,
    InvalidInputError,
    Store,
    ThreadNotFoundError,
)
from deltastore.log import keys
from deltastore.storage.memory import MemoryStorage
from tests.conftest import OpenStore
from tests.raw import put_raw, rows_of


class Counting(MemoryStorage):
    """A storage that counts transactions, and those that are open."""

    begun = open = 0

    @contextmanager
    def read(self) -> Iterator[Any]:  # type: ignore[override]
        self.begun += 1
        self.open += 1
        with super().read() as tx:
            yield tx
        self.open -= 1


def names(found: Any) -> list[str]:
    return [info.name for info in found]


def damage(store: Store, key: bytes) -> None:
    put_raw(store.log.storage, key, b"damaged row of some length")


class TestThreads:
    def test_bytes_are_those_of_the_thread_s_rows(self, store: Store) -> None:
        for name, text in (("small", "x"), ("large", "".join(map(str, range(20_000))))):
            store.thread(name).append({"m": text})
            store.thread(name, namespace="sub").append({"m": "y"})
        stored = rows_of(store.log.storage)
        for number, info in enumerate(reversed(list(store.threads())), 1):
            own = {key: row for key, row in stored.items() if key.startswith(keys.thread(number))}
            assert info.bytes == sum(len(key) + len(row) for key, row in own.items())
        large, small = store.threads()
        assert large.bytes > 2 * small.bytes > 0

    @pytest.mark.parametrize("frequency", [1, 3, 50])
    def test_metadata_are_the_latest_checkpoint_s(self, open_store: OpenStore, frequency: int) -> None:
        store = open_store(snapshot_frequency=frequency)
        thread = store.thread("t")
        made = [thread.append({"m": [number]}, metadata={"n": number, "user": "u1"}) for number in range(40)]
        thread.append({"m": ["branch"]}, at=made[3], metadata={"n": "branch"})
        assert [info.metadata for info in store.threads()] == [{"n": "branch"}]
        latest = thread.latest()
        assert latest is not None
        thread.delete(latest)
        assert [info.metadata for info in store.threads()] == [{"n": 39, "user": "u1"}]
        thread.delete(made[39])
        thread.delete(made[38])
        assert [info.metadata for info in store.threads()] == [{"n": 37, "user": "u1"}]

    def test_a_thread_without_a_root_namespace_has_no_metadata(self, store: Store) -> None:
        store.thread("t", namespace="sub").append({"n": 1}, metadata={"user": "u1"})
        assert [(info.metadata, info.checkpoints) for info in store.threads()] == [({}, 1)]

    def test_limit_and_before_give_pages(self, store: Store) -> None:
        every = [f"t{number}" for number in range(210)]
        for name in every:
            store.thread(name).append({"n": 1})
        store.thread("t5").delete(store.thread("t5").latest() or "")  # not listed, and still a place to go on from
        expected = [name for name in reversed(every) if name != "t5"]
        assert names(store.threads()) == expected
        assert names(store.threads(limit=0)) == []
        assert names(store.threads(limit=1)) == ["t209"]
        assert names(store.threads(limit=150)) == expected[:150]
        assert names(store.threads(limit=1000, before="t50")) == expected[expected.index("t49") :]
        assert names(store.threads(before="t5")) == ["t4", "t3", "t2", "t1", "t0"]
        assert names(store.threads(before="t0")) == []
        pages: list[str] = []
        while page := names(store.threads(limit=17, before=pages[-1] if pages else None)):
            pages += page
        assert pages == expected

    def test_what_can_not_be_asked_for_is_refused_at_once(self, store: Store) -> None:
        store.thread("t").append({"n": 1})
        with pytest.raises(ThreadNotFoundError, match="'unknown'"):
            store.threads(before="unknown")
        for limit in (-1, 1.0, True, "1"):
            with pytest.raises(InvalidInputError):
                store.threads(limit=limit)  # type: ignore[arg-type]
        for before in (1, ""):
            with pytest.raises(InvalidIdError):
                store.threads(before=before)  # type: ignore[arg-type]

    def test_a_page_takes_two_transactions_and_none_while_the_caller_looks(self) -> None:
        storage = Counting()
        store = Store(storage)
        for number in range(300):
            store.thread(f"t{number}").append({"n": 1}, metadata={"n": number})
        storage.begun = 0
        for info in store.threads():
            assert storage.open == 0
            assert info.bytes
        assert storage.begun == 2 * 3 + 1

    def test_a_thread_deleted_after_its_page_was_read(self, store: Store) -> None:
        for number in range(3):
            store.thread(f"t{number}").append({"n": 1})
        found = store.threads()
        assert next(found).name == "t2"
        store.delete("t1")
        assert names(found) == ["t1", "t0"]  # as of the page's moment
        assert names(store.threads()) == ["t2", "t0"]


class TestDamage:
    """A thread that can't be read hides none of the others, and is never passed over."""

    @pytest.fixture
    def store(self) -> Store:
        store = Store(MemoryStorage())
        for name in ("a", "b", "c", "d"):
            store.thread(name).append({"m": [name]}, metadata={"of": name})
        return store

    @pytest.mark.parametrize(
        ("key", "row", "error"),
        [
            (lambda store: keys.header(2), b"damaged", ChecksumError),
            (lambda store: keys.header(2), None, ChecksumError),
            (lambda store: keys.namespace(2, b""), b"damaged", ChecksumError),
            (lambda store: record_of(store, 2), b"damaged", ChecksumError),
            (lambda store: record_of(store, 2), None, BrokenChainError),
        ],
    )
    def test_it_is_named_when_it_is_reached_and_the_rest_is_listed(
        self, store: Store, key: Callable[[Store], bytes], row: bytes | None, error: type[CorruptionError]
    ) -> None:
        put_raw(store.log.storage, key(store), row)
        found = store.threads()
        assert names(islice(found, 2)) == ["d", "c"]
        with pytest.raises(error, match="thread 'b': "):
            next(found)
        assert names(store.threads(limit=2)) == ["d", "c"]
        assert names(store.threads(before="b")) == ["a"]

    def test_a_thread_whose_name_is_damaged_too_is_called_by_its_number(self, store: Store) -> None:
        damage(store, keys.header(2))
        damage(store, keys.of_number(keys.THREAD, 2))
        with pytest.raises(ChecksumError, match="thread 'number 2'"):
            list(store.threads())

    def test_chunks_are_not_read(self, store: Store) -> None:
        for number in range(1, 5):
            for key in rows_of(store.log.storage):
                if key.startswith(keys.chunks(number, 0)):
                    damage(store, key)
        assert [info.metadata for info in store.threads()] == [{"of": name} for name in "dcba"]


def record_of(store: Store, thread: int) -> bytes:
    """Return the key of a thread's only record."""
    (key,) = [key for key in rows_of(store.log.storage) if key.startswith(keys.records(thread, 1))]
    return key


def test_threads_of_langgraph_have_bytes_and_no_native_metadata() -> None:
    from deltastore.langgraph import DeltaSaver
    from tests.langgraph.comparing import checkpoint, config

    with deltastore.open(":memory:") as store:
        saver = DeltaSaver(store)
        saver.put(config("t"), checkpoint("1", {"a": "1"}, {"a": 1}), {"source": "loop", "user": "u1"}, {"a": "1"})
        (info,) = store.threads()
        assert (info.name, info.checkpoints, info.metadata) == ("t", 1, {})
        assert info.bytes > 0
