"""Where the chunks of a new value stand: found again among known ones, or numbered anew.

Pure; imports codec and state. The invariant: a number is only named for a chunk whose encoded bytes are equal,
compared in full.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from deltastore.codec import chunkrow
from deltastore.codec import spans as sp
from deltastore.codec.blobs import Cut
from deltastore.codec.records import OPAQUE
from deltastore.log.state import Splice, diff

_FEW = 8
"""So many searches of a list take less than an index of it."""


class Old(NamedTuple):
    """A value that is stored: its chunks' numbers and bytes, and a dict's keys where they are known."""

    kind: int
    spans: sp.Spans
    blobs: list[bytes]
    keys: tuple[Any, ...] | None


class Placed(NamedTuple):
    """A new value's chunks: an old value's with `inserted` spliced in, or with no splice just those."""

    blobs: list[bytes]
    inserted: sp.Spans
    splice: Splice | None = None
    old: sp.Spans = ()

    @property
    def spans(self) -> sp.Spans:
        """The numbers of all of them."""
        splice = self.splice
        return sp.splice(self.old, splice.place, splice.removed, self.inserted) if splice else self.inserted


class NewChunks:
    """The chunks that one put adds to one series, in the numbering that prepare saw. Not thread-safe.

    `may_base`: large ones may be stored against their predecessors, whose own bases are known then.
    """

    def __init__(self, first: int, *, may_base: bool = True) -> None:
        self.first = first
        self._may_base = may_base
        self.index: dict[bytes, int] = {}
        self._blobs: list[bytes] = []
        self._predecessors: dict[int, tuple[int, bytes]] = {}

    def __len__(self) -> int:
        return len(self._blobs)

    def place(self, blob: bytes, predecessor: tuple[int, bytes] | None = None) -> int:
        """Return the number of an equal chunk of this put, or a new one."""
        number = self.index.get(blob)
        if number is None:
            number = self.index[blob] = self.first + len(self._blobs)
            self._blobs.append(blob)
            if self._may_base and predecessor is not None and len(blob) > chunkrow.MIN_BASED_BYTES:
                self._predecessors[number] = predecessor
        return number

    def blob(self, number: int) -> bytes | None:
        """Return a chunk of this put, or None where the number is an older one's."""
        return self._blobs[number - self.first] if number >= self.first else None

    def row(self, bases: Mapping[int, tuple[int, ...]]) -> chunkrow.ChunkRow | None:
        """Return the row that holds these chunks, edited large ones against their predecessors."""
        if not self._blobs:
            return None
        whole: dict[int, bytes] = {}
        based: dict[int, chunkrow.Based] = {}
        for number, blob in enumerate(self._blobs, self.first):
            made = None
            if number in self._predecessors:
                base, base_blob = self._predecessors[number]
                made = chunkrow.make_based(blob, base, base_blob, bases.get(base, ()))
            if made is None:
                whole[number] = blob
            else:
                based[number] = made
        numbers = tuple(range(self.first, self.first + len(self._blobs)))
        return chunkrow.ChunkRow(numbers, bytes(blob[0] for blob in self._blobs), whole, based)


def place(cut: Cut, old: Old | None, known: Mapping[bytes, int], new: NewChunks) -> Placed:
    """Place a value's chunks: those of the old value first, then known ones, then this put's own."""
    if old is None or old.kind != cut.kind:
        return Placed(cut.blobs, sp.of_numbers(known.get(blob) or new.place(blob) for blob in cut.blobs))
    splice = diff(old.blobs, cut.blobs)
    if splice.removed == splice.inserted == 0:
        return Placed(old.blobs, (), splice, old.spans)
    stop = splice.place + splice.inserted
    middle: list[int] = []
    find = _finder(old, splice.inserted)
    predecessors = _predecessors(cut, old, range(splice.place, stop))
    for place_, blob in enumerate(cut.blobs[splice.place : stop], splice.place):
        number = known.get(blob)
        if number is None:
            number = find(blob)
        middle.append(new.place(blob, predecessors.get(place_)) if number is None else number)
    after = splice.place + splice.removed
    blobs = [*old.blobs[: splice.place], *cut.blobs[splice.place : stop], *old.blobs[after:]]
    return Placed(blobs, sp.of_numbers(middle), splice, old.spans)


def _finder(old: Old, times: int) -> Callable[[bytes], int | None]:
    """Return a search for an equal chunk of an old value, to be asked so many times."""
    if times > _FEW:
        return dict(zip(old.blobs, sp.numbers(old.spans), strict=True)).get

    def find(blob: bytes) -> int | None:
        return sp.numbers(old.spans)[old.blobs.index(blob)] if blob in old.blobs else None

    return find


def _predecessors(cut: Cut, old: Old, among: Iterable[int]) -> dict[int, tuple[int, bytes]]:
    """Return, for the large ones among these places, the old chunk that it was probably edited from."""
    large = [place for place in among if len(cut.blobs[place]) > chunkrow.MIN_BASED_BYTES]
    if not large:
        return {}
    if cut.keys is not None and old.keys is not None:
        places: Mapping[Any, int] = {key: place for place, key in enumerate(old.keys)}
        pairs: Sequence[tuple[int, int | None]] = [(place, places.get(cut.keys[place])) for place in large]
    elif cut.kind == OPAQUE or len(cut.blobs) == len(old.blobs):
        pairs = [(place, place) for place in large]
    else:
        pairs = []
    numbers = sp.numbers(old.spans) if pairs else []
    return {place: (numbers[before], old.blobs[before]) for place, before in pairs if before is not None}
