"""Hostile bytes at every decoder: a value or a typed error, in bounded memory, whatever sizes they claim."""

import contextlib
import random
import tracemalloc
from functools import cache

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from tests.fuzzing.decoders import ALLOWED, Decoder, decoders

NAMES = sorted(decoders())
EXAMPLES = {"quick": 40, "ci": 2_000, "deep": 50_000}

MEMORY_BYTES = 64 << 20
"""What a decoder may take for some KB; a frame of zstd may honestly grow to 32,768 times its size."""

HOSTILE = [
    b"\x7f",
    b"\xff" * 10,
    b"\xff" * 9 + b"\x01",
    b"\xdd\xff\xff\xff\xff",  # msgpack: a list, a map, bytes and an extension of 2^32 - 1
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xc9\xff\xff\xff\xff\x05",
    b"\x91" * 3000,  # nested deeper than anything reads
    b"\x81\x01" * 3000,
    b"\x00" * 64,
    b"\xf4" * 64,
    b"\xc0",
    b"\x80",
    b"\x90",
    b"\x28\xb5\x2f\xfd\xe4\xff\xff\xff\xff\xff\xff\xff\x7f",  # a frame of zstd that claims 2^63 bytes
    b"\x28\xb5\x2f\xfd\xa4\xff\xff\xff\x7f\x01\x00\x00",  # and one of 2 GB
]


@cache
def table() -> dict[str, Decoder]:
    return decoders()


def seed_of(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--hypothesis-seed"))


def run(decoder: Decoder, data: bytes) -> None:
    with contextlib.suppress(*ALLOWED):
        decoder.decode(data)


@pytest.mark.parametrize("name", NAMES)
def test_seeds_decode(name: str) -> None:
    assert table()[name].seeds
    for row in table()[name].seeds:
        run(table()[name], row)


@pytest.mark.parametrize("name", NAMES)
def test_mutated_rows(name: str, request: pytest.FixtureRequest) -> None:
    decoder = table()[name]
    count = EXAMPLES[request.config.getoption("--profile")]

    @seed(seed_of(request))
    @settings(max_examples=count)
    @given(st.data())
    def search(data: st.DataObject) -> None:
        row = bytearray(data.draw(st.sampled_from(decoder.seeds)))
        for _ in range(data.draw(st.integers(1, 4))):
            place = data.draw(st.integers(0, len(row)))
            new = data.draw(st.one_of(st.binary(max_size=12), st.sampled_from(HOSTILE)))
            row[place : place + data.draw(st.integers(0, 12))] = new
        run(decoder, bytes(row))

    search()


@pytest.mark.parametrize("name", NAMES)
def test_any_bytes(name: str, request: pytest.FixtureRequest) -> None:
    decoder = table()[name]

    @seed(seed_of(request))
    @settings(max_examples=EXAMPLES[request.config.getoption("--profile")])
    @given(st.one_of(st.binary(max_size=200), st.lists(st.sampled_from(HOSTILE), max_size=4).map(b"".join)))
    def search(data: bytes) -> None:
        run(decoder, data)

    search()


@pytest.mark.parametrize("name", NAMES)
def test_hostile_sizes_take_little_memory(name: str) -> None:
    decoder = table()[name]
    tracemalloc.start()
    try:
        for row in [*decoder.seeds[:3], b"", b"\x01", b"\x02", b"\x03", b"\0\x28\2", b"\1\0\0"]:
            for hostile in HOSTILE:
                for place in {0, 1, 2, 3, len(row) // 2}:
                    run(decoder, row[:place] + hostile + row[place:])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MEMORY_BYTES


def test_single_bits(request: pytest.FixtureRequest) -> None:
    """Single flipped bits, which a search by parts seldom makes."""
    chance = random.Random(seed_of(request))
    for name in NAMES:
        decoder = table()[name]
        for _ in range(EXAMPLES[request.config.getoption("--profile")]):
            row = bytearray(chance.choice(decoder.seeds))
            row[chance.randrange(len(row))] ^= 1 << chance.randrange(8)
            run(decoder, bytes(row))
