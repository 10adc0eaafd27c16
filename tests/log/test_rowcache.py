"""Rows that reads decoded are used again only while they are stored as they were."""

from typing import Any

import pytest

from deltastore import Store, compact
from deltastore.codec import chunkrow, recordrow
from deltastore.log import policy, reading
from deltastore.log.rowcache import SHARE, RowCache
from deltastore.storage.memory import MemoryStorage
from tests.raw import everything, states


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> MemoryStorage:
    """A store with a thread of packs and loose rows."""
    monkeypatch.setattr(policy, "MIN_LOOSE_ROWS", 4)
    storage = MemoryStorage()
    thread = Store(storage).thread("t")
    for number in range(40):
        thread.append({"m": [{"n": number, "text": f"text {number} " * 30}], "n": number})
    return storage


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What reads decode from now on."""
    found: list[str] = []

    def noting(name: str, decode: Any) -> Any:
        return lambda *given: found.append(name) or decode(*given)

    monkeypatch.setattr(chunkrow, "decode_row", noting("chunks", chunkrow.decode_row))
    monkeypatch.setattr(reading, "open_row", noting("records", recordrow.open_row))
    return found


def test_a_second_look_at_a_history_decodes_nothing(storage: MemoryStorage, decoded: list[str]) -> None:
    store = Store(storage)
    first = states(store.thread("t"))
    assert decoded
    decoded.clear()
    assert states(store.thread("t")) == first
    assert decoded == []


def test_without_memory_all_is_decoded_again(storage: MemoryStorage, decoded: list[str]) -> None:
    store = Store(storage, cache_bytes=0)
    first = states(store.thread("t"))
    decoded.clear()
    assert states(store.thread("t")) == first
    assert decoded
    assert store.log.activity().cache_bytes == 0


def test_rows_that_others_stored_anew_are_read_anew(storage: MemoryStorage) -> None:
    store, other = Store(storage), Store(storage)
    before = everything(store)
    latest = next(other.thread("t").history())
    for number, checkpoint in enumerate(list(other.thread("t").history())[1:30:3]):
        other.thread("t").delete(checkpoint)
        compact(other, erase=number % 2 == 0)
        assert everything(store) == everything(Store(storage, cache_bytes=0))
    other.delete("t")
    again = other.thread("t").append({"m": [{"n": 0, "text": "anew"}]})
    assert store.thread("t").state() == {"m": [{"n": 0, "text": "anew"}]}
    assert latest.id in before["t"]
    assert [found.id for found in store.thread("t").history()] == [again.id]


def test_it_holds_no_more_than_its_share(storage: MemoryStorage) -> None:
    for limit in (1_000, 20_000, 10_000_000):
        store = Store(storage, cache_bytes=limit)
        whole = states(Store(storage).thread("t"))
        assert states(store.thread("t")) == whole
        assert store.log._rows.held_bytes <= limit // SHARE
        assert store.log.activity().cache_bytes <= limit


def test_a_row_is_what_its_bytes_say() -> None:
    cache = RowCache(10_000)
    row = chunkrow.ChunkRow((1,), b"\1", {1: b"\1one"}, {})
    cache.keep(b"key", b"bytes", row)
    assert cache.get(b"key", b"bytes") is row
    assert cache.get(b"key", b"other") is None
    assert cache.get(b"kez", b"bytes") is None
    other = chunkrow.ChunkRow((1,), b"\1", {1: b"\1two"}, {})
    cache.keep(b"key", b"other", other)
    assert cache.get(b"key", b"bytes") is None
    assert cache.get(b"key", b"other") is other
