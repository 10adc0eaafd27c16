"""Where a namespace branched: parents with several children.

Pure. The invariant: exact for any ids, in any order; memory holds the branches that are open at one place of the list,
not the list.
"""

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

FORKS_PAGE = 256
"""Checkpoints that a search reads in one transaction: a few milliseconds."""

Family = tuple[str, str | None]
"""A checkpoint's id and its parent's."""


@dataclass(frozen=True, slots=True)
class Fork:
    """A place where a thread branched: a parent, and its stored children in the order of their ids.

    `parent_id` None: the children are roots. The parent itself needn't be stored any more.
    """

    parent_id: str | None
    child_ids: tuple[str, ...]


def find_forks(page: Callable[[str | None], Sequence[Family]]) -> list[Fork]:
    """Return the forks among checkpoints: roots first, then by the parent's id.

    `page` gives those that come next below an id, the greatest id first; none at the end. A parent's children have
    greater ids, so once the walk is below a parent its children are complete, and an only child is forgotten. Ids that
    callers chose may say otherwise: then there is a second walk, for the parents concerned.
    """
    found: dict[str | None, list[str]] = {}
    late: dict[str | None, list[str]] = {}
    waiting: list[str] = []  # parents of which the walk has met a child but not yet the place, ascending
    for id_, parent in _walk(page):
        while waiting and waiting[-1] >= id_:
            passed = waiting.pop()
            if len(found[passed]) == 1:
                del found[passed]
        if parent is not None and parent >= id_:
            late[parent] = []
            continue
        if parent is not None and parent not in found:
            insort(waiting, parent)
        found.setdefault(parent, []).append(id_)
    for id_, parent in _walk(page) if late else ():
        if parent in late:
            late[parent].append(id_)
    children = found | late
    return [
        Fork(parent, tuple(reversed(children[parent])))
        for parent in sorted(children, key=lambda parent: parent or "")
        if len(children[parent]) > 1
    ]


def _walk(page: Callable[[str | None], Sequence[Family]]) -> Iterator[Family]:
    before: str | None = None
    while found := page(before):
        yield from found
        before = found[-1][0]
