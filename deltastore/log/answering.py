"""`Answers`: the reads and lists of one open store.

Imports handle and the modules that read. The invariant: a read uses one short read transaction, and none while user
code runs.
"""

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from deltastore.codec import records as rec
from deltastore.errors import BrokenChainError, CheckpointNotFoundError, CorruptionError, FrontMismatchError
from deltastore.log import ahead, dictionaries, finding, keys, loading, names, rows
from deltastore.log import standing as standings
from deltastore.log.announcing import Look
from deltastore.log.handle import Handle
from deltastore.log.loading import LoadedChannel, Reading, WriteLoaded, parent_id_of
from deltastore.log.reading import View, require
from deltastore.log.standing import Standing
from deltastore.log.state import Channel
from deltastore.storage.port import ReadTransaction

if TYPE_CHECKING:
    from deltastore.log.forks import Family, Fork
    from deltastore.log.listing import ThreadRow

M = TypeVar("M")


class Entry(NamedTuple):
    """A checkpoint as listed: its record, without values."""

    ulid: bytes
    id: str
    parent_id: str | None
    namespace: str
    record: rec.Record


class Answers(Handle):
    """What an open store is asked. Thread-safe."""

    def _remember(
        self, tx: ReadTransaction, thread: str, namespace: str, located: tuple[int, rows.Header, rows.Namespace] | None
    ) -> None:
        """Let the next write here be prepared by what was just read. `located` None: there is no such thread."""
        with contextlib.suppress(CorruptionError):  # it is whoever needs a dictionary that must hear of its damage
            newest = dictionaries.newest(tx)
            number, header, found = located or (None, None, None)
            seen = None if number is None else standings.as_stored(tx, thread, namespace, number)
            self.heads.keep_standing(thread, namespace, Standing(number, header, found, newest, True, seen))

    # --- reads

    @names.again
    def read(
        self,
        thread: str,
        namespace: str,
        id_: str | None,
        *,
        channels: Collection[str] | None = None,
        with_writes: bool = False,
    ) -> Reading | None:
        """Return a checkpoint as of one moment, the latest without id; None where there is none.

        `channels` limits what is loaded; `with_writes` loads the pending writes too.
        Raises BrokenChainError, ChecksumError.
        """
        started = time.perf_counter()
        with self.storage.read() as tx:
            if tx.remote:
                ahead.read(tx, self.heads, thread, namespace, id_, with_writes=with_writes)
            located = finding.find_namespace(tx, thread, namespace)
            if located is None:
                if tx.remote and finding.find_thread(tx, thread) is None:  # at hand, the first put looks for nothing
                    self._remember(tx, thread, namespace, None)
                return None
            number, header, found = located
            view = self._view(tx, number, thread)
            wanted = id_
            if wanted is None:
                finding.check_latest(found)
                wanted = found.latest
            ulid = None if wanted is None else finding.find(view, found, wanted)
            if ulid is None:
                if id_ is None and wanted is not None:
                    raise _missing_latest(thread, wanted)
                return None
            reading = self._load(view, header, found, ulid, channels, with_writes)
            self._remember(tx, thread, namespace, located)
        self._gets.record(time.perf_counter() - started, depth=reading.record.depth + 1)
        return reading

    @names.again
    def read_many(self, thread: str, ids: Sequence[tuple[str, str]]) -> list[Reading | None]:
        """Return checkpoints with their pending writes, named by namespace and id, as of one moment.

        What they share is read once. None stands for one that isn't there. Raises as `read` does.
        """
        with self.storage.read() as tx:
            if tx.remote:
                ahead.read_many(tx, self.heads, self.registry, self._view, thread, ids)
            located = {namespace: finding.find_namespace(tx, thread, namespace) for namespace, _ in ids}
            view: View | None = None
            out: list[Reading | None] = []
            for namespace, id_ in ids:
                here = located[namespace]
                if here is None:
                    out.append(None)
                    continue
                number, header, found = here
                view = view or self._view(tx, number, thread)
                ulid = finding.find(view, found, id_)
                out.append(None if ulid is None else self._load(view, header, found, ulid, None, True))
            return out

    def _load(
        self,
        view: View,
        header: rows.Header,
        namespace: rows.Namespace,
        ulid: bytes,
        channels: Collection[str] | None,
        with_writes: bool,
    ) -> Reading:
        return loading.load(
            view,
            namespace,
            header.collected,
            ulid,
            self.heads,
            self.registry,
            wanted=channels,
            with_writes=with_writes,
        )

    @names.again
    def writes(self, thread: str, namespace: str, id_: str, *, task: str | None = None) -> list[WriteLoaded]:
        """Return the pending writes of a checkpoint id, or of one of its tasks, in the order (path, task, idx)."""
        with self.storage.read() as tx:
            if tx.remote:
                ahead.look(tx, self.heads, thread, namespace, Look(writes=1, named=(id_,)))
            located = finding.find_namespace(tx, thread, namespace)
            if located is None:
                return []
            number, _, found = located
            view = self._view(tx, number, thread)
            tasks = finding.tasks(view, found, id_) if task is None else finding.task(view, found, id_, task)
            view.bring(rows.spans_of(tasks))
            return loading.load_writes(view, self.registry, tasks)

    @names.again
    def walk(
        self, thread: str, namespace: str, id_: str | None, channels: Sequence[str]
    ) -> dict[str, tuple[LoadedChannel | None, list[WriteLoaded]]]:
        """Return, for each channel, the value of the nearest ancestor that has one, and the writes since, oldest first.

        The checkpoint's own value and writes don't count. Without id it is the latest.
        Raises BrokenChainError, ChecksumError, FrontMismatchError, CheckpointNotFoundError.
        """
        from deltastore.log import walking  # only graphs with delta channels ask for it

        with self.storage.read() as tx:
            if tx.remote:
                ahead.walk(tx, self.heads, thread, namespace, id_, channels)
            located = finding.find_namespace(tx, thread, namespace)
            if located is None:
                known = finding.find_thread(tx, thread)
                if id_ is not None and known is not None and known[1].deleted:
                    raise _deleted(thread, id_)
                return {name: (None, []) for name in channels}
            number, header, found = located
            wanted = id_
            if wanted is None:
                finding.check_latest(found)
                wanted = found.latest
            if wanted is None:
                return {name: (None, []) for name in channels}
            if found.front != rows.LANGGRAPH:
                raise FrontMismatchError(
                    f"thread {thread!r}, namespace {namespace!r} is written by the native API, "
                    "which has no such history; read it with store.thread(…)"
                )
            view = self._view(tx, number, thread)
            ulid = finding.find(view, found, wanted)
            if ulid is None and id_ is None:
                raise _missing_latest(thread, wanted)
            if ulid is None and header.deleted:  # else it reads as empty to whoever read the checkpoint before
                raise _deleted(thread, wanted)
            numbers = {name: names.find(tx, keys.CHANNEL, keys.encode_name(name)) for name in channels}
            asked = {number for number in numbers.values() if number is not None}
            walked = {} if ulid is None else walking.walk(view, found, ulid, asked)
            view.bring(walking.spans_of(walked))
            out: dict[str, tuple[LoadedChannel | None, list[WriteLoaded]]] = {}
            for name, channel in numbers.items():
                history = walked.get(channel or 0, walking.Walked())
                seed = None
                if channel is not None and history.seed is not None:
                    seed = loading.load_channel(view, channel, Channel(history.seed, 0), None)
                out[name] = (
                    seed,
                    [loading.load_write(view, self.registry, task, write) for task, write in history.writes],
                )
            return out

    # --- lists

    @names.again
    def namespaces(self, thread: str, front: int) -> list[str]:
        """Return the names of a thread's namespaces of one front, in the order they were made."""
        with self.storage.read() as tx:
            number = names.find(tx, keys.THREAD, keys.encode_name(thread))
            found = [] if number is None else rows.load_namespaces(tx, number)
        return [keys.decode_name(namespace.name) for namespace in found if namespace.front == front]

    @names.again
    def page(self, thread: str, namespace: str, before: str | None, limit: int) -> list[Entry]:
        """Return up to `limit` checkpoints with ids below `before`, the greatest id first, without values."""
        with self.storage.read() as tx:
            if tx.remote:
                ahead.page(tx, self.heads, thread, namespace, before, limit)
            located = finding.find_namespace(tx, thread, namespace)
            if located is None:
                return []
            entries = _entries(self._view(tx, located[0], thread), located[2], namespace, before, limit)
            if tx.remote:
                self._remember(tx, thread, namespace, located)
            return entries

    @names.again
    def read_page(self, thread: str, namespace: str, before: str | None, limit: int) -> list[tuple[Entry, Reading]]:
        """Return what `page` does, each with all that `read` gives and its pending writes, as of one moment."""
        with self.storage.read() as tx:
            if tx.remote:
                ahead.page(tx, self.heads, thread, namespace, before, limit, with_writes=True)
            located = finding.find_namespace(tx, thread, namespace)
            if located is None:
                return []
            number, header, found = located
            view = self._view(tx, number, thread)
            entries = _entries(view, found, namespace, before, limit)
            if tx.remote:
                self._remember(tx, thread, namespace, located)
                targets = [(found, entry.ulid) for entry in entries]
                ahead.bring(view, header.collected, targets, self.heads, self.registry, wanted=None, with_writes=True)
            return [(entry, self._load(view, header, found, entry.ulid, None, True)) for entry in entries]

    def forks(self, thread: str, namespace: str) -> "list[Fork]":
        """Return where a namespace branched. Reads records page by page; values and metadata stay as they are."""
        from deltastore.log.forks import FORKS_PAGE, find_forks  # seldom asked for

        def page(before: str | None) -> "list[Family]":
            found = self.page(thread, namespace, before, FORKS_PAGE)
            return [(entry.id, entry.parent_id) for entry in found]

        return find_forks(page)

    @names.again
    def entry(self, thread: str, namespace: str, id_: str) -> Entry | None:
        """Return one checkpoint without values, or None."""
        with self.storage.read() as tx:
            if tx.remote:
                ahead.look(tx, self.heads, thread, namespace, Look(named=(id_,)))
            located = finding.find_namespace(tx, thread, namespace)
            if located is None:
                return None
            number, _, found = located
            view = self._view(tx, number, thread)
            ulid = finding.find(view, found, id_)
            if ulid is None:
                return None
            record = require(view, found, ulid)
            return Entry(ulid, id_, parent_id_of(found.front, record), namespace, record)

    def threads(
        self, front: int, accept: "Callable[[ThreadRow], M | None]", *, before: str | None, limit: int | None
    ) -> "Iterator[tuple[ThreadRow, M, int]]":
        """Iterate over the threads that have checkpoints, the newest created first: what `listing.list_threads` gives.

        `before`: those created before this thread. Holds no transaction while the caller has the iterator.
        Raises ThreadNotFoundError at once.
        """
        from deltastore.log import listing  # an agent's run lists no threads

        number = None if before is None else listing.number_of(self.storage, before)
        return listing.list_threads(self.storage, front, accept, before=number, limit=limit)

    def all_threads(self) -> "Iterator[ThreadRow]":
        """Iterate over all threads, the newest created first, by their headers alone.

        No transaction is held while the caller has the iterator. Raises ChecksumError when it reaches a damaged one.
        """
        from deltastore.log import listing

        return listing.all_threads(self.storage)


def _entries(view: View, namespace: rows.Namespace, name: str, before: str | None, limit: int) -> list[Entry]:
    found = islice(finding.ids_down(view, namespace, before), limit)
    return [Entry(ulid, id_, parent_id_of(namespace.front, record), name, record) for id_, ulid, record in found]


def _deleted(thread: str, id_: str) -> CheckpointNotFoundError:
    return CheckpointNotFoundError(
        f"thread {thread!r} has no checkpoint {id_!r}: it was deleted, if it was ever put, and its history with it. "
        "Read the latest one again"
    )


def _missing_latest(thread: str, id_: str) -> BrokenChainError:
    return BrokenChainError(
        f"thread {thread!r}: the latest checkpoint {id_!r} is missing. "
        "Rows were lost or damaged; run check, and restore from a backup"
    )
