"""Keys: their order, that no two things share one, and their bytes."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from deltastore.errors import InvalidIdError
from deltastore.log import keys
from deltastore.storage import MAX_KEY_BYTES, RESERVED_PREFIX

THREADS = st.one_of(st.integers(1, 3), st.integers(1, 2**48 - 2))
NAMESPACES = st.one_of(st.integers(1, 3), st.integers(1, 2**24 - 1))
NUMBERS = st.one_of(st.integers(1, 300), st.integers(1, 2**48 - 1))
ULIDS = st.binary(min_size=16, max_size=16)
IDS = st.one_of(st.text(alphabet="a\0\x01\xff", min_size=1, max_size=4), st.text(min_size=1, max_size=60)).filter(
    lambda id_: len(id_.encode()) <= keys.MAX_ID_BYTES
)
PLACES = st.tuples(THREADS, NAMESPACES, IDS)
HASH = b"\xff" * keys.HASH_BYTES


def end_of(prefix: bytes, key: bytes) -> bool:
    return prefix <= key < keys.end_of(prefix)


class TestRanges:
    @given(st.binary(min_size=1).filter(lambda prefix: prefix.strip(b"\xff") != b""), st.binary())
    @example(b"a\xff\xff", b"a\xff\xff\xff\xff")
    @example(b"\0", b"\0")
    def test_a_range_holds_what_begins_with_the_prefix_and_nothing_else(self, prefix: bytes, key: bytes) -> None:
        assert end_of(prefix, prefix + key)
        assert end_of(prefix, key) == key.startswith(prefix)

    @given(THREADS, THREADS, NAMESPACES, ULIDS, IDS, NUMBERS)
    def test_all_rows_of_a_thread_stand_together(
        self, thread: int, other: int, namespace: int, ulid: bytes, id_: str, number: int
    ) -> None:
        of_thread = [
            keys.header(thread),
            keys.namespace(thread, b"name"),
            keys.record(thread, namespace, ulid),
            keys.by_id(thread, namespace, keys.encode_id(id_)),
            keys.writes(thread, namespace, keys.encode_id(id_)) + HASH,
            keys.chunk(thread, 0, number),
            keys.quarantined(thread, b"key", b"row"),
        ]
        assert all(end_of(keys.thread(thread), key) for key in of_thread)
        assert all(end_of(keys.thread(other), key) == (thread == other) for key in of_thread)
        assert len({key[keys.THREAD_BYTES] for key in of_thread}) == len(of_thread)
        assert all(key > keys.QUEUE + b"\xff" * 6 for key in of_thread)

    def test_no_key_belongs_to_the_storage(self) -> None:
        store = [keys.FORMAT, keys.queued(1), keys.counter(b"t"), keys.of_name(b"t", b""), keys.of_number(b"t", 1)]
        assert not any(key.startswith(RESERVED_PREFIX) for key in [*store, keys.header(1)])

    def test_the_longest_keys_fit(self) -> None:
        longest = b"x" * keys.MAX_ID_BYTES
        assert len(keys.writes(2**48 - 1, 2**24 - 1, longest)) + keys.HASH_BYTES <= MAX_KEY_BYTES
        assert len(keys.by_id(2**48 - 1, 2**24 - 1, longest)) <= MAX_KEY_BYTES


class TestOrder:
    @given(THREADS, NUMBERS, NUMBERS, st.sampled_from([0, 1]))
    def test_chunk_rows_stand_in_the_order_of_their_numbers(
        self, thread: int, one: int, other: int, series: int
    ) -> None:
        assert (keys.chunk(thread, series, one) < keys.chunk(thread, series, other)) == (one < other)
        assert end_of(keys.chunks(thread, series), keys.chunk(thread, series, one))
        assert not end_of(keys.chunks(thread, 1 - series), keys.chunk(thread, series, one))

    @given(THREADS, NAMESPACES, ULIDS, ULIDS)
    def test_records_stand_in_the_order_of_their_ulids(
        self, thread: int, namespace: int, one: bytes, other: bytes
    ) -> None:
        assert (keys.record(thread, namespace, one) < keys.record(thread, namespace, other)) == (one < other)
        assert end_of(keys.records(thread, namespace), keys.record(thread, namespace, one))

    @given(THREADS, NAMESPACES, IDS, IDS)
    def test_ids_stand_in_the_order_of_their_text(self, thread: int, namespace: int, one: str, other: str) -> None:
        def key(id_: str) -> bytes:
            return keys.by_id(thread, namespace, keys.encode_id(id_))

        assert (key(one) < key(other)) == (one < other)

    @given(NUMBERS, NUMBERS)
    def test_numbers_and_the_queue_stand_in_order(self, one: int, other: int) -> None:
        assert (keys.queued(one) < keys.queued(other)) == (one < other)
        assert (keys.of_number(b"t", one) < keys.of_number(b"t", other)) == (one < other)
        assert end_of(keys.numbers_of(b"t"), keys.of_number(b"t", one))
        assert not end_of(keys.numbers_of(b"c"), keys.of_number(b"t", one))


class TestInjectivity:
    @given(PLACES, PLACES)
    @example((1, 1, "a"), (1, 1, "a\0"))
    @example((1, 1, "a"), (1, 1, "aa"))
    @example((1, 1, "\0"), (1, 1, "\0\0"))
    @example((1, 1, "\x01\x01a"), (1, 1, "\x01"))
    def test_no_two_places_share_a_key_nor_the_range_of_their_writes(
        self, one: tuple[int, int, str], other: tuple[int, int, str]
    ) -> None:
        assume(one != other)
        first, second = (keys.by_id(thread, namespace, id_.encode()) for thread, namespace, id_ in (one, other))
        assert first != second
        first, second = (keys.writes(thread, namespace, id_.encode()) for thread, namespace, id_ in (one, other))
        for task in (keys.task_hash(b"task"), b"\0" * keys.HASH_BYTES, HASH):
            assert not end_of(first, second + task)
            assert end_of(second, second + task)

    @given(st.text(), st.text())
    @example("", "\0")
    @example("a\0", "a")
    def test_names_of_any_content_have_keys_of_their_own(self, one: str, other: str) -> None:
        assume(one != other)
        first, second = keys.encode_name(one), keys.encode_name(other)
        assert keys.of_name(b"t", first) != keys.of_name(b"t", second)
        assert keys.namespace(1, first) != keys.namespace(1, second)

    def test_kinds_of_names_are_apart(self) -> None:
        kinds = (keys.THREAD, keys.CHANNEL, keys.REDUCER, keys.TAG)
        for make in (keys.counter, lambda kind: keys.of_name(kind, b"n"), lambda kind: keys.of_number(kind, 1)):
            assert len({make(kind) for kind in kinds}) == len(kinds)


class TestNames:
    @given(st.text(alphabet=st.characters()))
    @example("\ud800")
    @example("a\udc80\0")
    def test_a_name_of_any_content_comes_back(self, name: str) -> None:
        assert keys.decode_name(keys.encode_name(name)) == name

    @given(st.text(min_size=1, max_size=60))
    def test_an_id_comes_back(self, id_: str) -> None:
        assert keys.encode_id(id_).decode() == id_

    @pytest.mark.parametrize("id_", ["", "x" * 256, "é" * 128, "\ud800", "a\udfff", None, 5, b"id", ["id"]])
    def test_what_can_be_no_id_is_refused(self, id_: Any) -> None:
        with pytest.raises(InvalidIdError):
            keys.encode_id(id_)

    def test_the_longest_id_and_name_are_taken(self) -> None:
        assert len(keys.encode_id("x" * 255)) == 255
        assert len(keys.encode_name("x" * keys.MAX_NAME_BYTES)) == keys.MAX_NAME_BYTES
        with pytest.raises(InvalidIdError):
            keys.encode_name("x" * keys.MAX_NAME_BYTES + "x")


ULID = bytes(range(0x10, 0x20))


@pytest.mark.parametrize(
    ("key", "pinned"),
    [
        (lambda: keys.FORMAT, "000000000000" + "46"),
        (lambda: keys.of_name(keys.THREAD, b"name"), "000000000000" + "48" + "74" + "7e9425407ab242c4b1b834c0"),
        (lambda: keys.of_number(keys.CHANNEL, 16), "000000000000" + "4e" + "63" + "000000000010"),
        (lambda: keys.queued(258), "000000000000" + "51" + "000000000102"),
        (lambda: keys.counter(keys.REDUCER), "000000000000" + "43" + "72"),
        (lambda: keys.header(258), "000000000102" + "68"),
        (lambda: keys.namespace(258, b"name"), "000000000102" + "6e" + "7e9425407ab242c4b1b834c0"),
        (lambda: keys.record(258, 3, ULID), "000000000102" + "72" + "000003" + ULID.hex()),
        (lambda: keys.by_id(258, 3, b"id"), "000000000102" + "69" + "000003" + "6964"),
        (lambda: keys.writes(258, 3, b"id"), "000000000102" + "77" + "000003" + "02" + "6964"),
        (lambda: keys.task_hash(b"name"), "7e9425407ab242c4b1b834c0"),
        (lambda: keys.chunk(258, 1, 515), "000000000102" + "63" + "01" + "000000000203"),
    ],
)
def test_the_bytes_of_keys_in_format_1(key: Callable[[], bytes], pinned: str) -> None:
    """A change here is a change of the format: docs/format.md first, then its version."""
    assert key().hex() == pinned
