"""Quarantine rows: what they keep, and that each row has its own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltastore.codec.primitives import seal
from deltastore.errors import ChecksumError
from deltastore.log import keys, quarantine
from deltastore.log.quarantine import Quarantined
from deltastore.storage import MAX_KEY_BYTES
from deltastore.storage.memory import MemoryStorage

ROWS = st.builds(
    Quarantined, st.binary(max_size=MAX_KEY_BYTES), st.binary(max_size=200), st.text(), st.integers(0, 2**48)
)


@given(st.integers(0, 2**48 - 2), ROWS)
def test_they_keep_what_was_found(thread: int, found: Quarantined) -> None:
    key, row = quarantine.sealed(thread, found)
    assert key.startswith(keys.quarantine(thread))
    assert keys.is_well_formed(key)
    assert len(key) <= MAX_KEY_BYTES
    assert quarantine.decode(key, row) == found


@given(ROWS, ROWS)
def test_only_the_same_row_from_the_same_place_shares_one(one: Quarantined, other: Quarantined) -> None:
    same = (one.key, one.row) == (other.key, other.row)
    assert (quarantine.sealed(1, one)[0] == quarantine.sealed(1, other)[0]) == same


def test_where_a_key_ends_counts() -> None:
    assert keys.quarantined(1, b"ab", b"c") != keys.quarantined(1, b"a", b"bc")


def test_they_are_counted_by_thread() -> None:
    storage = MemoryStorage()
    with storage.write() as tx:
        for thread, name in ((0, b"a"), (1, b"a"), (1, b"b")):
            tx.put(*quarantine.sealed(thread, Quarantined(name, b"row", "why", 1)))
    with storage.read() as tx:
        assert [quarantine.count(tx, thread) for thread in (0, 1, 2)] == [1, 2, 0]
        assert [quarantine.decode(*row).key for row in quarantine.scan(tx, 0)] == [b"a"]


@pytest.mark.parametrize("data", [b"", b"\x90", b"\x94\x01\x01\x01\x01", b"\xc1"])
def test_what_is_none_is_refused(data: bytes) -> None:
    key = keys.quarantined(1, b"key", b"row")
    with pytest.raises(ChecksumError):
        quarantine.decode(key, seal(key, data))
