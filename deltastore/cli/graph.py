"""The branches of a thread as lines beside its checkpoints, as `git log --graph` draws them. Pure.

Checkpoints come newest first and have one parent each, so lanes only join on the way down. The invariant: each
checkpoint gets one line; ASCII only.
"""

from collections.abc import Hashable, Iterable, Iterator


def draw(checkpoints: Iterable[tuple[Hashable, Hashable | None]]) -> Iterator[tuple[list[str], str]]:
    """Iterate over the drawing of checkpoints, each given with its parent: lines before it, and what stands beside it.

    A parent that was drawn before its child, as ids chosen by callers allow, isn't connected.
    """
    lanes: list[Hashable] = []
    drawn: set[Hashable] = set()
    before: list[str] = []
    for id_, parent in checkpoints:
        drawn.add(id_)
        if id_ not in lanes:
            lanes.append(id_)
        place = lanes.index(id_)
        while lanes.count(id_) > 1:  # branches that began here, the rightmost first
            last = len(lanes) - 1 - lanes[::-1].index(id_)
            before.append(_closing(len(lanes), last, place))
            del lanes[last]
        yield before, " ".join("*" if number == place else "|" for number in range(len(lanes)))
        before = []
        if parent is not None and parent not in drawn:
            lanes[place] = parent
            continue
        if place + 1 < len(lanes):
            before.append(_closing(len(lanes), place, None))
        del lanes[place]


def _closing(lanes: int, closed: int, target: int | None) -> str:
    """Return the line on which a lane goes over to one left of it, or ends, and those on its right move up."""
    cells = [" "] * (2 * lanes)
    for number in range(closed):
        cells[2 * number] = "|"
    if target is not None:
        for number in range(target, closed - 1):
            cells[2 * number + 1] = "_"
        cells[2 * closed - 1] = "/"
    for number in range(closed + 1, lanes):
        cells[2 * number - 1] = "/"
    return "".join(cells).rstrip()
