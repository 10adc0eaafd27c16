"""The small rows: they come back, and malformed ones raise ChecksumError and nothing else."""

import contextlib
from collections.abc import Callable
from typing import Any

import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltastore.codec import spans as sp
from deltastore.codec.primitives import unpack
from deltastore.codec.records import KINDS, Value
from deltastore.errors import ChecksumError
from deltastore.log import keys, rows
from deltastore.storage.memory import MemoryStorage

NUMBERS = st.integers(0, 2**48 - 1)
PAIRS = st.lists(NUMBERS, min_size=2, max_size=2)
ULIDS = st.binary(min_size=16, max_size=16)
NAMES = st.text(alphabet=st.characters()).map(keys.encode_name)
HEADERS = st.builds(
    rows.Header, NAMES, NUMBERS, NUMBERS, st.none() | ULIDS, PAIRS, NUMBERS, NUMBERS, PAIRS, PAIRS, PAIRS, NUMBERS
)
NAMESPACES = st.builds(
    rows.Namespace,
    NAMES,
    st.integers(0, 2**24 - 1),
    st.sampled_from([rows.NATIVE, rows.LANGGRAPH]),
    NUMBERS,
    st.none() | ULIDS,
    st.none() | st.text(),
    NUMBERS,
    NUMBERS,
    st.none() | ULIDS,
    NUMBERS,
)
ENTRIES = st.one_of(
    ULIDS.map(rows.IdEntry),
    st.builds(rows.IdEntry, ULIDS, st.one_of(st.text(), st.uuids().map(str)), st.integers(2, 2**32)),
)
WRITES = st.builds(
    rows.StoredWrite,
    st.integers(-10, 10),
    st.integers(1, 2**32),
    st.builds(Value, st.sampled_from(KINDS), st.lists(st.integers(1, 40), max_size=5).map(sp.of_numbers)),
    st.text(alphabet=st.characters()),
    NUMBERS,
)
TASKS = st.dictionaries(
    st.text(alphabet=st.characters()),
    st.lists(WRITES, max_size=3).map(lambda writes: {write.idx: write for write in writes}),
    max_size=3,
)
ODD = st.recursive(
    st.one_of(st.none(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(max_size=3), st.binary(max_size=17)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=2), inner, max_size=2)),
    max_leaves=4,
)
KEY = b"key"
DECODERS: list[Callable[[bytes, bytes], Any]] = [
    rows.Header.decode,
    rows.decode_namespaces,
    rows.decode_id_entry,
    rows.decode_tasks,
]


def with_odd(data: st.DataObject, value: Any) -> Any:
    if isinstance(value, list) and value and data.draw(st.integers(0, 4)):
        place = data.draw(st.integers(0, len(value) - 1))
        return [*value[:place], with_odd(data, value[place]), *value[place + 1 :]]
    return data.draw(ODD)


class TestRoundTrip:
    @given(HEADERS)
    def test_a_header_comes_back(self, header: rows.Header) -> None:
        assert rows.Header.decode(KEY, header.encode()) == header

    @given(st.lists(NAMESPACES, min_size=1, max_size=3))
    def test_namespaces_come_back(self, found: list[rows.Namespace]) -> None:
        assert rows.decode_namespaces(KEY, ormsgpack.packb([each.fields() for each in found])) == found

    @given(ENTRIES)
    def test_an_id_entry_comes_back(self, entry: rows.IdEntry) -> None:
        assert rows.decode_id_entry(KEY, entry.encode()) == entry

    @given(TASKS)
    def test_writes_come_back(self, tasks: rows.Tasks) -> None:
        found = rows.decode_tasks(KEY, rows.encode_tasks(tasks))
        assert found == tasks
        assert [list(writes) for writes in found.values()] == [list(writes) for writes in tasks.values()]

    @given(TASKS, TASKS)
    def test_a_loose_write_wins_over_a_packed_one(self, packed: rows.Tasks, loose: rows.Tasks) -> None:
        merged = rows.merge_tasks(packed, loose)
        for task in packed | loose:
            for idx in packed.get(task, {}) | loose.get(task, {}):
                wanted = loose.get(task, {}).get(idx) or packed[task][idx]
                assert merged[task][idx] == wanted
        assert sum(map(len, merged.values())) == len(
            {(task, idx) for tasks in (packed, loose) for task, writes in tasks.items() for idx in writes}
        )


class TestStored:
    def test_rows_are_sealed_under_their_key(self) -> None:
        storage = MemoryStorage()
        with storage.write() as tx:
            rows.put(tx, b"k1", b"value")
            tx.put(b"k2", tx.get(b"k1") or b"")
        with storage.read() as tx:
            assert rows.get(tx, b"k1") == b"value"
            assert rows.get(tx, b"k3") is None
            with pytest.raises(ChecksumError):
                rows.get(tx, b"k2")

    def test_headers_and_namespaces_are_found_by_thread(self) -> None:
        storage = MemoryStorage()
        header = rows.Header(b"name", 1, 2)
        first, second = rows.Namespace(b"z", 1, 0), rows.Namespace(b"a", 2, 1)
        with storage.write() as tx:
            rows.store_header(tx, 7, header)
            for namespace in (second, first):
                rows.store_namespace(tx, 7, namespace)
            second.count = 5
            rows.store_namespace(tx, 7, second)
        with storage.read() as tx:
            assert rows.load_header(tx, 7) == header
            assert rows.load_header(tx, 8) is None
            assert rows.load_namespaces(tx, 7) == [first, second]
            assert rows.load_namespace(tx, 7, b"a") == second
            assert rows.load_namespace(tx, 7, b"b") is None
            assert rows.load_namespaces(tx, 8) == []

    def test_namespaces_that_share_a_hash_are_told_apart(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(keys, "name_hash", lambda name: b"h" * keys.HASH_BYTES)
        storage = MemoryStorage()
        found = [rows.Namespace(name, number, 0) for number, name in enumerate((b"a", b"b", b"c"), 1)]
        with storage.write() as tx:
            for namespace in found:
                rows.store_namespace(tx, 7, namespace)
            rows.store_namespace(tx, 7, found[0])
        with storage.read() as tx:
            assert rows.load_namespaces(tx, 7) == found
            assert [rows.load_namespace(tx, 7, each.name) for each in found] == found
            assert rows.load_namespace(tx, 7, b"d") is None

    def test_the_queue_stands_in_the_order_of_threads(self) -> None:
        storage = MemoryStorage()
        queued = [rows.Queued(2, rows.DELETED, 5), rows.Queued(258, rows.FILLING, 3)]
        with storage.write() as tx:
            for each in reversed(queued):
                rows.enqueue(tx, each)
        with storage.read() as tx:
            assert rows.load_queue(tx) == queued

    @pytest.mark.parametrize("odd", [[], [1], [1, None], "ab", 5, [1, 2, 3], ["1", 2]])
    def test_a_queue_row_that_cannot_be_is_damage(self, odd: Any) -> None:
        storage = MemoryStorage()
        with storage.write() as tx:
            rows.put(tx, keys.queued(1), ormsgpack.packb(odd))
        with storage.read() as tx, pytest.raises(ChecksumError):
            rows.load_queue(tx)


class TestDamage:
    @given(st.binary())
    def test_any_bytes_decode_or_raise_a_checksum_error(self, data: bytes) -> None:
        for decode in DECODERS:
            for row in (data, b"\0" + data):
                with contextlib.suppress(ChecksumError):
                    decode(KEY, row)

    @given(HEADERS, NAMESPACES, ENTRIES, TASKS, st.data())
    def test_rows_of_odd_fields_decode_or_raise_a_checksum_error(
        self,
        header: rows.Header,
        namespace: rows.Namespace,
        entry: rows.IdEntry,
        tasks: rows.Tasks,
        data: st.DataObject,
    ) -> None:
        for decode, row in zip(
            DECODERS,
            (
                header.encode(),
                ormsgpack.packb([namespace.fields()]),
                entry.encode(),
                unpack(rows.encode_tasks(tasks)),
            ),
            strict=True,
        ):
            odd = ormsgpack.packb(with_odd(data, ormsgpack.unpackb(row)))
            try:
                found = decode(KEY, b"\0" + odd if decode == rows.decode_tasks else odd)
            except ChecksumError:
                continue
            if isinstance(found, rows.Header):
                assert rows.Header.decode(KEY, found.encode()) == found

    @pytest.mark.parametrize("decode", DECODERS)
    @pytest.mark.parametrize("odd", [None, 5, "text", b"bytes", {}, [None], ["abc"], [["a", "b", "c"]], [[[1]]]])
    def test_a_row_that_cannot_be_is_damage(self, decode: Callable[[bytes, bytes], Any], odd: Any) -> None:
        row = ormsgpack.packb(odd)
        with pytest.raises(ChecksumError):
            decode(KEY, b"\0" + row if decode == rows.decode_tasks else row)


def test_a_write_of_unknown_kind_is_damage() -> None:
    write = rows.StoredWrite(0, 16, Value(max(KINDS) + 1, ((3, 2),)), "p", 9)
    with pytest.raises(ChecksumError):
        rows.decode_tasks(KEY, rows.encode_tasks({"task": {0: write}}))


def test_the_bytes_of_small_rows_in_format_1() -> None:
    """A change here is a change of the format: docs/format.md first, then its version."""
    write = rows.StoredWrite(-1, 16, Value(1, ((3, 2),)), "p", 9)
    assert rows.Header(b"t", 1, 2).encode().hex() == (
        "9e" + "c40174" + "0102" + "c0" + "920101" + "0100" + "920000" * 3 + "000000" + "c0"
    )
    assert ormsgpack.packb(rows.Namespace(b"n", 1, 0).fields()).hex() == (
        "9a" + "c4016e" + "010000" + "c0c0" + "0000" + "c0" + "00"
    )
    assert rows.IdEntry(b"\x01" * 16).encode().hex() == "91" + "c410" + "01" * 16
    assert rows.IdEntry(b"\x01" * 16, "a", 2).encode().hex() == "93" + "c410" + "01" * 16 + "a161" + "02"
    assert rows.encode_tasks({"t": {-1: write}}).hex() == (
        "00" + "91" + "92" + "a174" + "91" + "96" + "ff" + "10" + "01" + "c4020602" + "c40170" + "09"
    )
