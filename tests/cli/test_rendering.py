"""Values as text and as JSON."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltastore import REMOVE_ALL, Remove
from deltastore.cli.plain import FORMS, plain
from deltastore.cli.rendering import kind_of, lines_of, one_line
from deltastore.codec.generic import Built, Sealed
from deltastore.upkeep.inspecting import Unfolded

SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.builds(Built, st.text(), inner)
        | st.builds(Unfolded, st.none() | st.text(), st.booleans(), inner, st.lists(inner).map(tuple))
    ),
    max_leaves=20,
)


@given(VALUES, st.booleans())
def test_every_line_is_printable(value: Any, full: bool) -> None:
    assert all(line.isprintable() for line in lines_of(value, full=full))
    assert one_line(value).isprintable()
    assert kind_of(value).isprintable()


@given(VALUES)
def test_every_value_is_a_document(value: Any) -> None:
    json.dumps(plain(value), allow_nan=False)


@pytest.mark.parametrize(
    ("value", "line", "document"),
    [
        (None, "None", None),
        (True, "True", True),
        (float("nan"), "nan", {"$float": "nan"}),
        ("a\n\x1b", '"a\\n\\x1b"', "a\n\x1b"),
        (b"\0", "b'\\x00'", {"$bytes": "AA=="}),
        ([1, "a"], '[1, "a"]', [1, "a"]),
        ({1: 2}, "{1: 2}", {"$entries": [[1, 2]]}),
        ({"$object": 1}, '{"$object": 1}', {"$entries": [["$object", 1]]}),
        (Built("m.C", {"a": 1}), "m.C{a: 1}", {"$object": "m.C", "parts": {"a": 1}}),
        (Built("m.C", (1, 2)), "m.C(1, 2)", {"$object": "m.C", "parts": [1, 2]}),
        (Built("set", [1, 2]), "set([1, 2])", {"$object": "set", "parts": [1, 2]}),
        (Built("uuid.UUID", "ab"), 'uuid.UUID("ab")', {"$object": "uuid.UUID", "parts": "ab"}),
        (
            Sealed("m.S", "msgpack+aes", 12),
            "<12 B of msgpack+aes that only m.S can read>",
            {"$sealed": {"serializer": "m.S", "kind": "msgpack+aes", "bytes": 12}},
        ),
        (Remove(3), "<remove 3>", {"$remove": 3}),
        (REMOVE_ALL, "<remove all>", {"$remove": None}),
        (
            Unfolded(None, False, None, (1,)),
            "<seed and 1 writes, which only the graph's own reducer can fold> seed: (none) write 0: 1",
            {"$unfolded": {"reducer": None, "writes": [1]}},
        ),
    ],
)
def test_forms(value: Any, line: str, document: Any) -> None:
    assert one_line(value) == line
    assert plain(value) == document


def test_all_forms_are_documented() -> None:
    shown = [
        plain(value)
        for value in (
            Built("m.C", 1),
            b"",
            float("inf"),
            {1: 1},
            Sealed("", "", 0),
            Unfolded(None, False, 0, ()),
            Remove(1),
        )
    ]
    assert [next(iter(document)) for document in shown] == [form.split('"')[1] for form in FORMS]


def test_long_values_take_lines_and_long_texts_are_cut() -> None:
    value = Built("m.Message", {"content": "x" * 1000, "ids": list(range(50))})
    lines = lines_of(value)
    assert lines[0] == "m.Message{"
    assert lines[1] == f'  content: "{"x" * 400}"… (1000 characters),'
    assert lines[-1] == "}"
    assert f'  content: "{"x" * 1000}",' in lines_of(value, full=True)
