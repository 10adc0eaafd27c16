"""Branches drawn as git draws them."""

from collections.abc import Hashable

from hypothesis import given
from hypothesis import strategies as st

from deltastore.cli.graph import draw


def drawn(checkpoints: list[tuple[Hashable, Hashable | None]]) -> list[str]:
    return [
        line
        for (id_, _), (before, beside) in zip(checkpoints, draw(checkpoints), strict=True)
        for line in (*before, f"{beside} {id_}")
    ]


def test_a_line() -> None:
    assert drawn([(3, 2), (2, 1), (1, None)]) == ["* 3", "* 2", "* 1"]


def test_a_fork() -> None:
    assert drawn([(4, 2), (3, 1), (2, 1), (1, None)]) == ["* 4", "| * 3", "* | 2", "|/", "* 1"]


def test_three_branches_of_one_checkpoint() -> None:
    assert drawn([(4, 1), (3, 1), (2, 1), (1, None)]) == ["* 4", "| * 3", "| | * 2", "|_|/", "|/", "* 1"]


def test_a_branch_that_joins_between_others() -> None:
    assert drawn([(5, 2), (4, 2), (3, 1), (2, 1), (1, None)]) == [
        "* 5",
        "| * 4",
        "| | * 3",
        "|/ /",
        "* | 2",
        "|/",
        "* 1",
    ]


def test_a_root_before_others() -> None:
    assert drawn([(4, None), (3, 1), (2, None), (1, None)]) == ["* 4", "* 3", "| * 2", "* 1"]
    assert drawn([(4, 1), (3, 2), (1, None), (2, None)]) == ["* 4", "| * 3", "* | 1", " /", "* 2"]


def test_a_parent_that_comes_first_is_not_connected() -> None:
    assert drawn([("b", None), ("a", "b")]) == ["* b", "* a"]


@given(st.lists(st.integers(0, 30), max_size=30))
def test_every_checkpoint_gets_one_line_of_its_own(parents: list[int]) -> None:
    checkpoints = [(number, parent if parent < number else None) for number, parent in enumerate(parents)][::-1]
    lines = list(draw(checkpoints))
    assert len(lines) == len(checkpoints)
    assert all(beside.count("*") == 1 and set(beside) <= set("*| ") for _, beside in lines)
    assert all(set(line) <= set("|/_ ") for before, _ in lines for line in before)
