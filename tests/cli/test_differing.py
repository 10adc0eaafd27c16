"""What differs between two states."""

from typing import Any

import pytest
from hypothesis import given

from deltastore.cli.differing import ABSENT, Change, diff
from deltastore.codec.generic import Built
from tests.cli.test_rendering import VALUES


@given(VALUES)
def test_a_value_does_not_differ_from_itself(value: Any) -> None:
    assert diff({"c": value}, {"c": value}) == []


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ({"a": 1}, {}, [Change(("a",), 1, ABSENT)]),
        ({}, {"a": 1}, [Change(("a",), ABSENT, 1)]),
        ({"a": 1}, {"a": True}, [Change(("a",), 1, True)]),
        ({"a": 1}, {"a": 1.0}, [Change(("a",), 1, 1.0)]),
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 2, "x": 1}}, []),
        ({"a": [1, 2, 3]}, {"a": [1, 3]}, [Change(("a", 1), 2, ABSENT)]),
        ({"a": [1]}, {"a": [1, 2, 3]}, [Change(("a", 1), ABSENT, 2), Change(("a", 2), ABSENT, 3)]),
        ({"a": [0, {"x": 1}]}, {"a": [0, {"x": 2}]}, [Change(("a", 1, "x"), 1, 2)]),
        ({"a": Built("m.C", {"x": 1})}, {"a": Built("m.C", {"x": 2})}, [Change(("a", "x"), 1, 2)]),
        (
            {"a": Built("m.C", {"x": 1})},
            {"a": Built("m.D", {"x": 1})},
            [Change(("a",), Built("m.C", {"x": 1}), Built("m.D", {"x": 1}))],
        ),
        ({"a": "1"}, {"a": 1}, [Change(("a",), "1", 1)]),
    ],
)
def test_changes(old: dict[str, Any], new: dict[str, Any], changes: list[Change]) -> None:
    assert diff(old, new) == changes
