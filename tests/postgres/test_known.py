"""What a transaction knows: never more than it was told."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from deltastore.storage.postgres.known import Known

BYTES = st.binary(min_size=1, max_size=2).map(lambda key: bytes(byte % 3 for byte in key))
STORED = st.dictionaries(BYTES, st.binary(max_size=1), max_size=9)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), BYTES, BYTES),
        st.tuples(st.just("put"), BYTES, st.binary(max_size=1)),
        st.tuples(st.just("remove"), BYTES),
    ),
    max_size=12,
)
ALL = sorted({bytes(key) for a in range(3) for key in ([a], *([a, b] for b in range(3)))})


@given(stored=STORED, steps=STEPS)
def test_it_is_as_the_rows_are_in_every_stretch_and_knows_nothing_outside(
    stored: dict[bytes, bytes], steps: list[tuple]
) -> None:
    known = Known()
    rows = dict(stored)
    covered: set[bytes] = set()
    for name, key, *rest in steps:
        if name == "add":
            found = sorted(row for row in rows.items() if key <= row[0] < rest[0])
            known.add(key, rest[0], found)
            covered |= {each for each in ALL if key <= each < rest[0]}
        elif name == "put":
            known.put(key, rest[0])
            rows[key] = rest[0]
            covered.add(key)
        else:
            known.remove(key)
            rows.pop(key, None)
            covered.add(key)
    for key in ALL:
        assert known.holds(key) == (key in covered)
        if key in covered:
            assert known.rows.get(key) == rows.get(key)
    stretches = list(known.stretches())
    assert all(lower < upper for lower, upper in stretches)
    assert all(one[1] < other[0] for one, other in pairwise(stretches))
    for key in ALL:
        end, start = known.end_at(key), known.start_before(key)
        assert end is None or all(each in covered for each in ALL if key <= each < end)
        assert start is None or all(each in covered for each in ALL if start <= each < key)
    inside = sorted(key for key in known.rows if b"\1" <= key < b"\2")
    assert known.between(b"\1", b"\2") == inside
    assert known.first(b"\1", b"\2") == (inside[0] if inside else None)
