"""Values that machines write, and how they are told apart."""

from typing import Any

from hypothesis import strategies as st

DOCUMENT = "".join(f"line {number} of a document that is edited in place\n" for number in range(250))
scalars = st.sampled_from(
    [None, True, False, 0, 1, 1.0, -0.0, 0.0, float("nan"), "", "x", "é", "y" * 100, 2**63, b"\0"]
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["k", "l", "id"]), inner, max_size=3),
    max_leaves=6,
)
edits = st.integers(0, 249).map(lambda line: DOCUMENT.replace(f"line {line} ", f"LINE {line} "))
lists = st.lists(values, max_size=4) | st.lists(st.integers(-3, 3), max_size=5)
dicts = st.dictionaries(st.sampled_from(["k", "l", "m", "doc"]), values | edits, max_size=3)
picks = st.integers(0, 10**6)


def shown(value: Any) -> str:
    """Tell values apart by type, order and bits, as `==` doesn't."""
    return repr(value)


def choose(known: dict[str, Any], pick: int) -> str | None:
    ids = sorted(known)
    return ids[pick % len(ids)] if ids else None
