"""Re-basing: large edited chunks stored against versions that make chains short and few versions whole.

The versions of an edited value are a *lineage*. Version n stands on n with its lowest set bit cleared (Subversion's
skip-deltas), so that eight steps reach any of 511 versions, of which one is whole. Only chunks that something names are
versions: afterwards nothing is kept for the sake of another alone. `plan` reads and compresses outside write
transactions, one row's worth at a time, oldest first; `apply` puts that in place. Imports log and below. The
invariant: every chunk reads as before, between any two rows.
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from deltastore.codec import chunkrow
from deltastore.codec.primitives import plain_size, unseal
from deltastore.log import dictionaries, keys, rows
from deltastore.log.reading import View
from deltastore.storage.port import Row, WriteTransaction
from deltastore.upkeep.repacking import MAX_PACK_BYTES, Means, split

SERIES = 0
"""Chunks of the hidden channels are small, and never based."""
MAX_LINEAGES = 8
"""How many lineages are looked at for where a whole chunk belongs: those touched last."""
MAX_GUESSED_BYTES = 4 << 20
"""A larger whole chunk isn't tried against lineages: their last versions are kept in memory."""
MAX_SIZE_RATIO = 4
"""Neighbouring versions aren't more different in size than this."""
_WINDOWS, _WINDOW_BYTES, _MIN_FOUND = 16, 32, 8
"""Of so many windows of so many bytes, so many must stand in a lineage's last version, or it isn't tried."""
MAX_KEPT_BYTES = 64 << 20
"""How much of versions is kept in memory, to build the next ones from."""
LEVEL = 9
"""zstd level of based frames: nothing is gained by more where all but the edits is a copy."""


@dataclass(slots=True)
class Lineage:
    """The versions of one value so far, by chunk number, each with its bases."""

    tag: int
    versions: list[int] = field(default_factory=list)
    bases: list[tuple[int, ...]] = field(default_factory=list)
    last: bytes = b""
    """The last version, to tell whether another chunk is the next; empty where it is too large to keep."""

    def next_bases(self) -> list[int]:
        """Return the places of the versions that the next one may stand on, the best first."""
        place = len(self.versions)
        if not place:
            return []
        skip = [place & (place - 1)] if place.bit_count() <= chunkrow.MAX_DEPTH else []
        return [*skip, *([place - 1] if skip != [place - 1] else [])]

    def add(self, number: int, bases: tuple[int, ...], blob: bytes) -> None:
        """Take a chunk in as the next version."""
        self.versions.append(number)
        self.bases.append(bases)
        self.last = blob if len(blob) <= MAX_GUESSED_BYTES else b""


class Lineages:
    """The lineages of a thread, as far as its chunks were looked at. Not thread-safe."""

    def __init__(self) -> None:
        self.of: dict[int, Lineage] = {}
        self.recent: deque[Lineage] = deque(maxlen=MAX_LINEAGES)

    def find(self, tag: int, blob: bytes, before: Sequence[int]) -> Lineage | None:
        """Return where a chunk belongs: by the bases that it stands on, else by its looks."""
        for base in before:
            if base in self.of:
                return self.of[base]
        if len(blob) > MAX_GUESSED_BYTES:
            return None
        last_first = reversed(self.recent)
        return next((found for found in last_first if found.tag == tag and _alike(found.last, blob)), None)

    def add(self, lineage: Lineage | None, tag: int, number: int, bases: tuple[int, ...], blob: bytes) -> None:
        """Take a chunk in, as the first of a lineage where there is none."""
        if lineage is None:
            lineage = Lineage(tag)
        elif lineage in self.recent:
            self.recent.remove(lineage)
        lineage.add(number, bases, blob)
        self.of[number] = lineage
        self.recent.append(lineage)


def _alike(last: bytes, blob: bytes) -> bool:
    """Tell by a glance whether a version may be the one before."""
    if not last or not len(last) / MAX_SIZE_RATIO <= len(blob) <= len(last) * MAX_SIZE_RATIO:
        return False
    step = max(1, (len(blob) - _WINDOW_BYTES) // _WINDOWS)
    windows = [blob[start : start + _WINDOW_BYTES] for start in range(1, step * _WINDOWS, step)]
    return sum(window in last for window in windows) >= _MIN_FOUND


@dataclass(frozen=True, slots=True)
class Change:
    """A row as it was seen, and those that take its place."""

    seen: Row
    last: int
    made: tuple[tuple[int, bytes], ...]
    more_bytes: int
    collected: int
    """The header's when the row was seen: bases are there as long as nothing was collected."""


def plan(
    view: View,
    header: rows.Header,
    after: int,
    until: int,
    named: Collection[int],
    lineages: Lineages,
    means: Means,
) -> Change | None:
    """Plan the next row behind a number whose chunks stand on others than they should; None where none does.

    `named`: the chunks that records and writes name. Rows up to the one planned are taken into `lineages`, which know
    those before. Raises CorruptionError.
    """
    kept = 0
    for key, sealed, last in _large(view, after):
        if last >= until:
            return None
        row = view.open_chunks(key, sealed)
        whole, based = dict(row.whole), dict(row.based)
        for place, number in enumerate(row.numbers):
            if number not in named:
                if number in based:  # it goes when nothing stands on it, or stays as it is
                    continue
            elif number in row.based or len(row.whole[number]) > chunkrow.MIN_BASED_BYTES:
                blob = view.blob(SERIES, number)
                kept += len(blob)
                if kept > MAX_KEPT_BYTES:
                    view.forget()
                    kept = 0
                made = _place(view, lineages, row.tags[place], number, blob, row.based.get(number))
                whole.pop(number, None)
                based.pop(number, None)
                if made is None:
                    whole[number] = blob
                else:
                    based[number] = made
        if {number: found.bases for number, found in based.items()} == {
            number: found.bases for number, found in row.based.items()
        }:
            continue
        moved = row._replace(whole=whole, based=based)
        parts = split(moved, -(-moved.plain_bytes // MAX_PACK_BYTES) or 1)
        stored = tuple((part.numbers[-1], means.encoded(part)) for part in parts)
        return Change((key, sealed), last, stored, moved.plain_bytes - row.plain_bytes, header.collected)
    return None


def has_edited(view: View) -> bool:
    """Tell whether a thread has chunks that may stand on others. Raises CorruptionError."""
    return next(_large(view, 0), None) is not None


def _large(view: View, after: int) -> Iterator[tuple[bytes, bytes, int]]:
    """Iterate over the rows behind a number that hold a based chunk, or may hold a large one."""
    prefix = keys.chunks(view.thread, SERIES)
    for key, sealed in view.tx.scan(keys.chunk(view.thread, SERIES, after) + b"\0", keys.end_of(prefix)):
        last = int.from_bytes(key[-keys.NUMBER_BYTES :], "big")
        head = chunkrow.decode_head(unseal(key, sealed), last)
        if head.based or plain_size(head.body) > chunkrow.MIN_BASED_BYTES:
            yield key, sealed, last


def _place(
    view: View, lineages: Lineages, tag: int, number: int, blob: bytes, before: chunkrow.Based | None
) -> chunkrow.Based | None:
    """Return a chunk as its difference from the version that it should stand on; None where it should be whole."""
    lineage = lineages.find(tag, blob, before.bases if before else ())
    made = None if lineage is None else _based(view, lineage, blob, before)
    # what is no small change of the version before begins a lineage of its own
    lineages.add(lineage if made else None, tag, number, made.bases if made else (), blob)
    return made


def _based(view: View, lineage: Lineage, blob: bytes, before: chunkrow.Based | None) -> chunkrow.Based | None:
    for place in lineage.next_bases():
        base, behind = lineage.versions[place], lineage.bases[place]
        if before is not None and before.bases == (base, *behind):
            return before
        made = chunkrow.make_based(blob, base, view.blob(SERIES, base), behind, LEVEL)
        if made is not None:
            return made
    return None


def apply(tx: WriteTransaction, thread: int, change: Change, means: Means) -> int | None:
    """Put new rows in place of one; return the header's `collected` then, or None where something isn't as it was."""
    header = rows.load_header(tx, thread)
    key, sealed = change.seen
    if header is None or header.collected != change.collected or tx.get(key) != sealed:
        return None
    if not dictionaries.is_in_use(tx, means.dictionary):
        return None
    tx.delete(key)
    for last, row in change.made:
        rows.put(tx, keys.chunk(thread, SERIES, last), row)
        if last > header.packed_up_to[SERIES]:
            header.loose_rows[SERIES] += 1
    if change.last > header.packed_up_to[SERIES]:
        header.loose_rows[SERIES] -= 1
        header.loose_bytes[SERIES] += change.more_bytes
    header.collected += 1  # heads in memory know these chunks' bases
    rows.store_header(tx, thread, header)
    return header.collected
