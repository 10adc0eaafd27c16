"""Varints, sealed rows and compressed parts."""

import random
import tracemalloc

import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from deltastore.codec import primitives as pr
from deltastore.errors import ChecksumError, EncodeError

MEGABYTE = 1 << 20


def varint(number: int) -> bytes:
    out = bytearray()
    pr.put_varint(out, number)
    return bytes(out)


def claiming(size: int) -> bytes:
    """A well-formed zstd frame that says it holds `size` bytes and holds one."""
    return b"\x28\xb5\x2f\xfd\xe0" + size.to_bytes(8, "little") + b"\x09\0\0x"


class TestVarint:
    @given(st.lists(st.integers(0, 2**70 - 1)))
    @example([0, 127, 128, 2**64 - 1, 2**70 - 1])
    def test_what_was_put_is_read(self, numbers: list[int]) -> None:
        reader = pr.Reader(b"".join(map(varint, numbers)))
        assert [reader.varint() for _ in numbers] == numbers
        reader.finish()

    @given(st.integers(0, 2**70 - 1))
    def test_a_varint_takes_seven_bits_a_byte(self, number: int) -> None:
        assert len(varint(number)) == max(1, -(-number.bit_length() // 7))

    @pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 9, b"\xff" * 10, b"\xff" * 11 + b"\0"])
    def test_one_without_end_is_refused(self, data: bytes) -> None:
        with pytest.raises(ChecksumError):
            pr.Reader(data).varint()

    @given(st.integers(-(2**63), 2**64))
    def test_zigzag_is_undone(self, number: int) -> None:
        assert pr.unzigzag(pr.zigzag(number)) == number

    def test_zigzag_maps_small_to_small(self) -> None:
        assert [pr.zigzag(number) for number in (0, -1, 1, -2, 2)] == [0, 1, 2, 3, 4]


class TestReader:
    def test_taking_more_than_there_is_is_refused(self) -> None:
        with pytest.raises(ChecksumError):
            pr.Reader(b"abc", 1).take(3)

    def test_finish_refuses_what_is_left(self) -> None:
        reader = pr.Reader(b"abc")
        assert reader.take(2) == b"ab"
        with pytest.raises(ChecksumError):
            reader.finish()


class TestSeal:
    @given(st.binary(), st.binary())
    def test_what_was_sealed_is_unsealed(self, key: bytes, value: bytes) -> None:
        assert pr.unseal(key, pr.seal(key, value)) == value

    @given(st.binary(), st.binary(), st.data())
    def test_any_flipped_bit_fails(self, key: bytes, value: bytes, data: st.DataObject) -> None:
        row = bytearray(pr.seal(key, value))
        bit = data.draw(st.integers(0, len(row) * 8 - 1))
        row[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ChecksumError):
            pr.unseal(key, bytes(row))

    @given(st.binary(), st.binary(), st.binary())
    def test_a_row_moved_to_another_key_fails(self, key: bytes, other: bytes, value: bytes) -> None:
        if key != other:
            with pytest.raises(ChecksumError, match=f"row {other.hex()} fails"):
                pr.unseal(other, pr.seal(key, value))

    @given(st.binary(), st.binary(), st.data())
    def test_a_row_cut_short_fails(self, key: bytes, value: bytes, data: st.DataObject) -> None:
        row = pr.seal(key, value)
        with pytest.raises(ChecksumError):
            pr.unseal(key, row[: data.draw(st.integers(0, len(row) - 1))])

    def test_the_checksum_is_xxh3_over_key_and_value(self) -> None:
        assert pr.seal(b"key", b"value").hex() == b"value".hex() + "a986367d94cda23c"


class TestPack:
    @given(st.binary(max_size=300), st.integers(0, 2000), st.sampled_from([pr.ROW_LEVEL, pr.PACK_LEVEL]))
    def test_what_was_packed_is_unpacked(self, data: bytes, repeats: int, level: int) -> None:
        plain = data + b"x" * repeats
        packed = pr.pack(plain, level)
        assert pr.unpack(packed) == plain
        assert len(packed) <= len(plain) + 1

    @given(st.binary())
    @example(b"\x01" + claiming(2**62))
    @example(b"\x01" + claiming(2**40))
    @example(b"\x01\x28\xb5\x2f\xfd")
    @example(b"\x01\x50\x2a\x4d\x18\x04\0\0\0abcd")  # a frame to skip
    def test_malformed_bytes_raise_a_checksum_error(self, data: bytes) -> None:
        for packed in (data, b"\x01" + data, b"\x01\x28\xb5\x2f\xfd" + data):
            try:
                plain = pr.unpack(packed)
            except ChecksumError:
                continue
            assert pr.unpack(pr.pack(plain)) == plain

    def test_bytes_after_a_frame_are_refused(self) -> None:
        packed = pr.pack(b"x" * 1000)
        with pytest.raises(ChecksumError):
            pr.unpack(packed + b"y")

    @pytest.mark.parametrize("size", [MEGABYTE, pr.MAX_PLAIN_BYTES, pr.MAX_PLAIN_BYTES + 1, 2**62])
    def test_a_frame_that_claims_what_it_cannot_hold_takes_no_memory(self, size: int) -> None:
        frame = claiming(size)
        tracemalloc.start()
        try:
            with pytest.raises(ChecksumError):
                pr.decompress(frame)
            with pytest.raises(ChecksumError):
                pr.decompress_against(frame, b"base", size)
            assert tracemalloc.get_traced_memory()[1] < MEGABYTE
        finally:
            tracemalloc.stop()

    @pytest.mark.parametrize("level", [1, pr.ROW_LEVEL, pr.PACK_LEVEL, 19])
    def test_no_frame_expands_more_than_is_allowed_for(self, level: int) -> None:
        plain = bytes(64 * MEGABYTE)
        frame = zstandard.ZstdCompressor(level=level).compress(plain)
        assert len(plain) <= len(frame) * pr.MAX_EXPANSION
        assert pr.decompress(frame) == plain

    def test_more_than_can_be_read_again_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pr, "MAX_PLAIN_BYTES", 1000)
        assert pr.unpack(pr.pack(b"x" * 1000)) == b"x" * 1000
        with pytest.raises(EncodeError, match="1001"):
            pr.pack(b"x" * 1001)


class TestAgainst:
    @given(st.binary(), st.binary(), st.binary())
    @example(b"", b"", b"")
    @example(b"\x37\xa4\x30\xec" + b"x" * 100, b"\x37\xa4\x30\xec", b"y")  # looks like a trained dictionary
    def test_a_difference_is_undone_with_its_base(self, common: bytes, before: bytes, after: bytes) -> None:
        base, data = common + before, after + common
        assert pr.decompress_against(pr.compress_against(data, base), base, len(data)) == data

    @pytest.mark.parametrize(
        ("before", "after"),
        [(100_000, 30_000), (70_000, 60_000), (36_000, 20_000), (66_000, 64_000), (40_000, 40_100)],
    )
    def test_all_of_a_base_is_found_whatever_the_lengths(self, before: int, after: int) -> None:
        """Zstd takes into its tables only the end of a base that is large beside them."""
        base = random.Random(before).randbytes(before)
        data = (base * (after // before + 1))[:after]
        assert len(pr.compress_against(data, base)) < 200

    @given(st.binary(), st.binary(), st.integers(0, 2**40))
    def test_malformed_frames_raise_a_checksum_error(self, frame: bytes, base: bytes, size: int) -> None:
        with pytest.raises(ChecksumError):
            pr.decompress_against(frame, base, size)
        with pytest.raises(ChecksumError):
            pr.decompress_against(pr.compress_against(b"abc", base)[:-1], base, 3)

    def test_another_length_than_stated_is_refused(self) -> None:
        with pytest.raises(ChecksumError):
            pr.decompress_against(pr.compress_against(b"abc", b"base"), b"base", 4)
