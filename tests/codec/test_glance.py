"""A glance at a record row tells what reading it tells."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltastore.codec import recordrow
from deltastore.codec.glance import glance
from deltastore.codec.records import HIDDEN, Drop, Record, encode_record
from deltastore.errors import ChecksumError
from deltastore.ulid import ULID_BYTES

ULID = bytes(ULID_BYTES)


def record(id_: str, metadata: bytes, *, hidden: bool = False) -> Record:
    flags = HIDDEN if hidden else 0
    return Record(flags, id_, None, None, 0, 5, None, None, metadata, (Drop(17),), None, (), (1, 1))


@given(st.text(max_size=20) | st.uuids().map(str), st.binary(max_size=200), st.booleans(), st.integers(0, 2**40))
def test_it_tells_what_reading_tells(id_: str, metadata: bytes, hidden: bool, shift: int) -> None:
    row = recordrow.encode_row(encode_record(record(id_, metadata, hidden=hidden)), (shift, 1))
    (read,) = recordrow.open_row(row, ULID, None).records
    found = glance(row, None)
    assert found is not None
    assert (found.id, found.is_hidden, found.metadata) == (read.id, read.is_hidden, read.metadata)
    assert (found.id, found.is_hidden, found.metadata) == (id_, hidden, metadata)


def test_a_pack_is_left_to_others() -> None:
    later = bytes(ULID_BYTES - 1) + b"\x01"
    pack = recordrow.RecordRow(True, (ULID, later), (record("a", b""), record("b", b"")), {})
    assert glance(recordrow.encode_pack(pack), None) is None


@given(st.binary(max_size=60))
def test_other_bytes_raise_or_tell_something(data: bytes) -> None:
    with contextlib.suppress(ChecksumError):
        glance(b"\x01" + data, None)


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x01\x00\x00", b"\x01\x00\x00\x00\x90"])
def test_too_little_raises(data: bytes) -> None:
    with pytest.raises(ChecksumError):
        glance(data, None)
