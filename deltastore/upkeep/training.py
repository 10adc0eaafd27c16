"""Training: what dictionary would shorten the small rows of a store, and by how much.

Looks at rows of threads spread over the store. `plan` reads and decides, `apply` puts the dictionary to use,
`remove_unneeded` clears what is out of use. Imports marking, and log and below. The invariant: a dictionary of the kind
"shape" holds no text that somebody wrote (see `codec.shape`), and none is put to use that doesn't pay.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import ormsgpack

from deltastore.codec import recordpack
from deltastore.codec import records as rec
from deltastore.codec.dictionary import MAX_SHORTENED_BYTES, Dictionary, train
from deltastore.codec.primitives import PACK_LEVEL, compress, unseal
from deltastore.codec.shape import shape_of, short_texts
from deltastore.errors import CorruptionError
from deltastore.log import dictionaries, keys, names, rows
from deltastore.log.listing import ThreadRow, readable_threads
from deltastore.log.reading import View
from deltastore.storage.port import ReadTransaction
from deltastore.store import Store
from deltastore.upkeep import marking

MIN_THREADS = 8
"""With fewer threads there is nothing to tell what is common from what is somebody's own."""
MAX_THREADS = 500
MAX_THREAD_BYTES = 16 * 1024
"""Plain bytes looked at of one thread: small rows are what a dictionary is for."""
COMMON_SHARE = 0.1
"""A short text is common if it stands in this share of the threads, and in `MIN_THREADS` of them."""
SIZES = {dictionaries.SHAPE: 8 * 1024, dictionaries.CONTENT: 64 * 1024}
"""Of a dictionary, in bytes: more gains little, and each process that reads loads it."""
MIN_SAVING = 0.05
"""What share of the bytes of small rows a dictionary must save to be put to use."""


@dataclass(frozen=True, slots=True)
class Training:
    """A dictionary to be put to use (`content` None: none), and why."""

    kind: str
    content: bytes | None
    reason: str


@dataclass(frozen=True, slots=True)
class _Sample:
    """What a row holds, and what a dictionary may learn from it."""

    plain: bytes
    lesson: bytes


def plan(store: Store, kind: str) -> Training:
    """Train a dictionary on a store, and decide whether it pays. Damaged threads teach nothing."""
    threads = [row for row in readable_threads(store.log.storage) if isinstance(row, ThreadRow)]
    if len(threads) < MIN_THREADS:
        return Training(kind, None, f"no dictionary: {len(threads)} threads, of at least {MIN_THREADS}")
    step = max(1, len(threads) // MAX_THREADS)
    with store.log.storage.read() as tx:
        seen = [_learnt(tx, row) for row in threads[::step]]
    common: set[str] = set()
    if kind == dictionaries.SHAPE:
        texts_of = [{text for parts, _ in thread for part in parts for text in short_texts(part)} for thread in seen]
        counted = Counter(text for texts in texts_of for text in texts)
        least = max(MIN_THREADS, COMMON_SHARE * len(seen))
        common = {text for text, count in counted.items() if count >= least}
    samples = [
        _Sample(plain, b"".join(shape_of(part, common) for part in parts) if kind == dictionaries.SHAPE else plain)
        for thread in seen
        for parts, plain in thread
    ]
    return _decide(kind, samples)


def _learnt(tx: ReadTransaction, row: ThreadRow) -> list[tuple[list[bytes], bytes]]:
    try:
        return list(_rows_of(tx, row))
    except CorruptionError:  # compaction tells of it
        return []


def _rows_of(tx: ReadTransaction, row: ThreadRow) -> Iterator[tuple[list[bytes], bytes]]:
    """Iterate over a thread's small rows: the parts that are msgpack, and all that is compressed together."""
    view = View(tx, row.number, row.name)
    needed = marking.mark(view)
    left = MAX_THREAD_BYTES
    for series in range(rec.SERIES):
        prefix = keys.chunks(view.thread, series)
        for key, sealed in tx.scan(prefix, keys.end_of(prefix)):
            blobs = [blob for number, blob in view.open_chunks(key, sealed).whole.items() if number in needed[series]]
            plain = b"".join((bytes(blob[0] for blob in blobs), *(blob[1:] for blob in blobs)))
            if blobs and len(plain) <= MAX_SHORTENED_BYTES:
                yield [blob[1:] for blob in blobs], plain
                left -= len(plain)
            if left <= 0:
                break
    for namespace in rows.load_namespaces(tx, view.thread):
        for found in view.record_rows(namespace.number):
            if found.row.packed:
                plain = recordpack.encode(found.row.ulids, found.row.records, found.row.writes)
            else:
                plain = ormsgpack.packb(rec.fields_of(found.row.records[0]))
            if len(plain) <= MAX_SHORTENED_BYTES:
                yield [plain], plain
                left -= len(plain)
            if left <= -MAX_THREAD_BYTES:
                return


def _decide(kind: str, samples: list[_Sample]) -> Training:
    """Train on one half of the samples, and try the outcome on the other."""
    lessons = [sample.lesson for sample in samples[::2] if sample.lesson]
    content = train(lessons, SIZES[kind])
    if content is None:
        return Training(kind, None, f"no dictionary: {len(lessons)} rows are too few to learn from")
    tried = Dictionary(0, content)
    without = with_ = 0
    for sample in samples[1::2]:
        own = len(compress(sample.plain, PACK_LEVEL))
        without += own
        with_ += min(own, len(tried.compress(sample.plain, PACK_LEVEL)))
    saving = 1 - with_ / without if without else 0
    if saving < MIN_SAVING:
        return Training(
            kind, None, f"no dictionary: it would save {saving:.1%} of small rows, of {MIN_SAVING:.0%} at least"
        )
    return Training(kind, content, f"a dictionary of {len(content):,} bytes saves {saving:.0%} of small rows")


def apply(store: Store, training: Training) -> None:
    """Put a dictionary to use for new rows, or none; what was in use before stays for the rows that need it."""
    if training.content is None and kind_in_use(store) is None:
        return
    now_ms = store.log.now_ms()
    names.in_write(
        store.log.storage,
        (),
        lambda tx: dictionaries.replace_by(tx, training.kind, training.content, now_ms),
    )


def kind_in_use(store: Store) -> str | None:
    """Return the kind of the dictionary for new rows, or None. Raises CorruptionError."""
    with store.log.storage.read() as tx:
        return next((stored.kind for stored in dictionaries.all_of(tx) if stored.in_use), None)


def remove_unneeded(store: Store) -> int:
    """Remove dictionaries that are out of use and that no row needs; return how many. Raises CorruptionError."""
    with store.log.storage.read() as tx:
        waiting = [stored for stored in dictionaries.all_of(tx) if not stored.in_use]
        if not waiting:
            return 0
        # those of threads that are being filled or removed included
        rows_of_threads = tx.scan(keys.thread(1), b"\xff" * keys.THREAD_BYTES)
        needed = {number for key, row in rows_of_threads for number in dictionaries.needed_by(key, unseal(key, row))}
    gone = [stored for stored in waiting if stored.number not in needed]
    return names.in_write(store.log.storage, (), lambda tx: dictionaries.remove(tx, gone)) if gone else 0
