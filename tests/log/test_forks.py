"""Forks of any family trees, against the plain definition."""

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from deltastore.log.forks import Family, Fork, find_forks

IDS = st.text(alphabet="abcé", min_size=1, max_size=2)


def plain(families: dict[str, str | None]) -> list[Fork]:
    children: dict[str | None, list[str]] = defaultdict(list)
    for id_ in sorted(families):
        children[families[id_]].append(id_)
    forks = [Fork(parent, tuple(found)) for parent, found in children.items() if len(found) > 1]
    return sorted(forks, key=lambda fork: fork.parent_id or "")


class Pages:
    """Checkpoints in pages, the greatest id first, and how many pages were asked for."""

    def __init__(self, families: dict[str, str | None], size: int) -> None:
        self.families = sorted(families.items(), reverse=True)
        self.size = size
        self.asked = 0

    def __call__(self, before: str | None) -> list[Family]:
        self.asked += 1
        return [family for family in self.families if before is None or family[0] < before][: self.size]


@given(st.dictionaries(IDS, st.none() | IDS, max_size=16), st.integers(1, 5))
def test_any_parents(families: dict[str, str | None], size: int) -> None:
    assert find_forks(Pages(families, size)) == plain(families)


@given(st.lists(st.integers(0, 6) | st.none(), max_size=40), st.integers(1, 5))
def test_parents_put_before_their_children_take_one_walk(back: list[int | None], size: int) -> None:
    families: dict[str, str | None] = {}
    for number, steps in enumerate(back):
        families[f"{number:03}"] = None if steps is None or steps >= number else f"{number - 1 - steps:03}"
    pages = Pages(families, size)
    assert find_forks(pages) == plain(families)
    assert pages.asked == -(-len(families) // size) + 1  # the last one is empty
