"""Names shown on one line, whatever is in them, and read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltastore.cli.text import columns, escaped, message, size, unescaped

ANY_TEXT = st.text(st.characters(exclude_categories=()))


@given(ANY_TEXT)
def test_what_is_shown_is_printable_and_can_be_given_back(text: str) -> None:
    assert escaped(text).isprintable()
    assert unescaped(escaped(text)) == text


@given(ANY_TEXT)
def test_whatever_is_given_back_is_text_or_nothing(text: str) -> None:
    assert isinstance(unescaped(text), str | None)


@pytest.mark.parametrize("text", ["\\", "\\q", "\\x1", "\\xzz", "\\uD8", "\\Uffffffff", "\\x-1"])
def test_what_was_never_shown_is_no_name(text: str) -> None:
    assert unescaped(text) is None


def test_a_message_keeps_its_backslashes_and_its_line() -> None:
    assert message("thread 'a\\x00':\nbroken \x1b[31m") == "thread 'a\\x00':\\nbroken \\x1b[31m"


def test_sizes() -> None:
    assert [size(count) for count in (0, 999, 1000, 15_000_000, 3e15)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "15.0 MB",
        "3000.0 TB",
    ]


def test_columns_stand_under_each_other_and_end_without_blanks() -> None:
    assert columns([("a", "1", ""), ("long", "22", "x")], heading=("T", "N", "M"), right=(1,)) == [
        "T      N  M",
        "a      1",
        "long  22  x",
    ]
