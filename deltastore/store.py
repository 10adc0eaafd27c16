"""Store and Thread: what users of the native API hold.

Imports diffing, terms, log and below. The invariant: values handed out are fresh objects and values handed in are
encoded before the call returns, so changing either later changes nothing stored; reading creates nothing.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from deltastore.codec.blobs import STRICT_REMOVAL, Cut, assemble, cut, encode_whole
from deltastore.codec.strict import STRICT
from deltastore.errors import (
    CheckpointNotFoundError,
    ClosedError,
    EncodeError,
    InvalidIdError,
    InvalidInputError,
    ThreadNotFoundError,
)
from deltastore.log import keys, rows
from deltastore.log.answering import Entry
from deltastore.log.engine import Log
from deltastore.log.heads import DEFAULT_CACHE_BYTES
from deltastore.log.intents import FoldWrite, WholeState, Writes
from deltastore.log.pending import PutWrites
from deltastore.log.putting import At, Put
from deltastore.reducers import Reducer, default_for
from deltastore.storage.port import Storage
from deltastore.terms import (
    DEFAULT_DEPTH,
    Checkpoint,
    PendingWrite,
    ThreadInfo,
    check_limit,
    thread_info,
    when,
)

if TYPE_CHECKING:
    from deltastore.diffing import Changes
    from deltastore.log.activity import StoreStats
    from deltastore.log.deleting import Collected
    from deltastore.log.forks import Fork
    from deltastore.log.listing import ThreadRow
    from deltastore.log.retention import Retention
    from deltastore.storage.info import StorageInfo

PAGE = 64
"""Checkpoints that history reads at a time: no transaction is held while the caller looks at them."""


class Store:
    """An open store. Thread-safe; a context manager. Usable in a forked child, which opens it anew.

    >>> import deltastore
    >>> with deltastore.open(":memory:") as store:
    ...     thread = store.thread("user-42")
    ...     first = thread.append({"messages": [{"role": "user", "content": "hi"}]})
    ...     thread.append({"messages": [{"role": "assistant", "content": "hello"}]}).parent_id == first.id
    ...     len(thread.state()["messages"]), len(thread.state(at=first)["messages"])
    True
    (2, 1)
    """

    def __init__(
        self,
        storage: Storage,
        *,
        snapshot_frequency: int | None = None,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        reducers: Iterable[Reducer] = (),
        channels: Mapping[str, str] | None = None,
    ) -> None:
        """Open a store over any storage; `deltastore.open` finds the storage for a path."""
        self.log = Log(storage, snapshot_frequency=snapshot_frequency, cache_bytes=cache_bytes, reducers=reducers)
        self._closed = False
        self.configured = {
            check_name(channel, "channel"): self.log.registry.number(reducer)
            for channel, reducer in (channels or {}).items()
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<deltastore.Store {self.log.storage.location}>"

    def close(self) -> None:
        """Close the store; closing twice is harmless, later use raises ClosedError."""
        self._closed = True
        self.log.close()

    def thread(self, name: str, *, namespace: str = "") -> "Thread":
        """Return a thread by name.

        Nothing is created before its first checkpoint. Raises InvalidIdError, ClosedError.
        """
        if self._closed:
            raise ClosedError(f"{self.log.storage.location} was closed; open it again")
        return Thread(self, check_name(name, "thread"), check_name(namespace, "namespace", empty=True))

    def threads(self, *, limit: int | None = None, before: str | None = None) -> Iterator[ThreadInfo]:
        """Iterate over the threads that have checkpoints, the newest created first; `before`: only older than this one.

        Lazy; holds no transaction, and reads no values. Raises ThreadNotFoundError, InvalidInputError. A damaged thread
        raises ChecksumError or BrokenChainError, naming it, when it is reached; `before` lists those after it.
        """
        check_limit(limit)

        def described(row: "ThreadRow") -> Mapping[str, Any]:
            return {} if row.metadata is None else STRICT.decode(row.metadata)

        name = None if before is None else check_name(before, "thread")
        found = self.log.threads(rows.NATIVE, described, before=name, limit=limit)
        return (thread_info(row, metadata, size) for row, metadata, size in found)

    def delete(self, name: str) -> bool:
        """Delete a thread with all its checkpoints; tell whether there was one.

        Its bytes go with the next compaction.
        """
        return self.log.keeping.delete_thread(check_name(name, "thread"))

    def copy(self, source: str, target: str) -> "Thread":
        """Copy a thread under a new name. Raises ThreadNotFoundError, ThreadExistsError."""
        self.log.keeping.copy_thread(check_name(source, "thread"), check_name(target, "thread"))
        return self.thread(target)

    def collect(self) -> "Collected":
        """Remove what an interrupted deletion or copy left behind. Deletions call it themselves."""
        return self.log.keeping.collect()

    @property
    def retention(self) -> "Retention | None":
        """What `apply_retention` keeps of threads that have no rules of their own; None: everything.

        Stored with the store, for all its handles; nothing goes before somebody calls `apply_retention`.
        """
        return self.log.keeping.retention()

    @retention.setter
    def retention(self, rules: "Retention | None") -> None:
        self.log.keeping.set_retention(rules)

    def stats(self) -> "StoreStats":
        """Return what this handle did since it was opened, and how full the store is. Reads no payloads."""
        from deltastore.log.activity import StoreStats  # seldom asked for

        return StoreStats(self.log.activity(), self.info())

    def info(self) -> "StorageInfo":
        """Return sizes, without reading payloads."""
        return self.log.storage.info()


class Thread:
    """A thread of a store, in one namespace. Thread-safe; holds no state, so any number may exist for one thread."""

    def __init__(self, store: Store, name: str, namespace: str) -> None:
        self._store = store
        self._log = store.log
        self.name = name
        self.namespace = namespace

    def __repr__(self) -> str:
        return f"<deltastore.Thread {self.name!r} of {self._log.storage.location}>"

    # --- writing

    def append(
        self,
        writes: Mapping[str, Any],
        *,
        at: "Checkpoint | str | None" = None,
        metadata: Mapping[str, Any] | None = None,
        expected_parent: "Checkpoint | str | None" = None,
    ) -> Checkpoint:
        """Put a checkpoint whose channels are the parent's with these writes folded in by each channel's reducer.

        The parent is the latest checkpoint, or `at`: putting after an older one begins a branch. A channel that `open`
        gave no reducer takes one by its first write: a list is appended to, a dict merged into, anything else replaced.
        Durable on return.

        `expected_parent`: the checkpoint that must be the namespace's latest when this is written, `""` for none yet;
        if it isn't, another writer was faster: ConflictError, and nothing is written.

        Raises EncodeError, CheckpointNotFoundError, ReducerMismatchError, FrontMismatchError, ConflictError,
        ContentionError.
        """
        described = _describe(metadata)
        cuts = self._cuts(writes)
        folds = tuple(
            FoldWrite(number, self._store.configured.get(name), default_for(writes[name]), value)
            for (name, value), number in zip(cuts.items(), self._numbers(cuts), strict=True)
        )
        return self._put(Writes(folds), at, described, expected_parent)

    def put_state(
        self,
        state: Mapping[str, Any],
        *,
        at: "Checkpoint | str | None" = None,
        metadata: Mapping[str, Any] | None = None,
        expected_parent: "Checkpoint | str | None" = None,
    ) -> Checkpoint:
        """Put a checkpoint whose state is exactly this; the store finds what changed. Raises as `append` does."""
        cuts = self._cuts(state, self.last_cuts())
        return self.put_cuts(cuts, at=at, metadata=metadata, expected_parent=expected_parent)

    def last_cuts(self) -> Callable[[str], Cut | None]:
        """Return what gives a channel of some late checkpoint, taken apart, where this handle happens to hold that.

        The next value is taken apart faster with it. Nothing is read.
        """
        head = self._log.cached_head(self.name, self.namespace)

        def of_channel(name: str) -> Cut | None:
            number = None if head is None else self._log.names.known(keys.CHANNEL, name)
            return None if head is None or number is None else head.cut(number)

        return of_channel

    def put_cuts(
        self,
        cuts: Mapping[str, Cut],
        *,
        at: "Checkpoint | str | None" = None,
        metadata: Mapping[str, Any] | None = None,
        expected_parent: "Checkpoint | str | None" = None,
    ) -> Checkpoint:
        """Do as `put_state` does, with values that were taken apart into blobs of the strict codec already."""
        described = _describe(metadata)
        for name, value in cuts.items():
            if any(blob[0] == STRICT_REMOVAL for blob in value.blobs):
                raise EncodeError(
                    f"channel {name!r}: a Remove stands in a whole value; it belongs into a write to an upsert channel",
                    channel=name,
                )
        by_number = dict(zip(self._numbers(cuts), cuts.values(), strict=True))
        configured = {
            number: self._store.configured[name]
            for name, number in zip(cuts, by_number, strict=True)
            if name in self._store.configured
        }
        return self._put(WholeState(by_number, configured), at, described, expected_parent)

    def put_writes(
        self, at: "Checkpoint | str", writes: Mapping[str, Any] | Iterable[tuple[str, Any]], *, task: str = ""
    ) -> None:
        """Keep the writes of a task for a checkpoint, until a later checkpoint takes them up.

        They change no state. Of one task the first write in each place stays, so a retried task can put them again.
        Raises EncodeError, CheckpointNotFoundError, FrontMismatchError, ContentionError.
        """
        pairs: list[Any] = list(writes.items() if isinstance(writes, Mapping) else writes)
        for pair in pairs:
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise InvalidInputError(
                    f"a {type(pair).__name__} among the writes; expected pairs of a channel and its value"
                )
        cuts = [(idx, check_name(name, "channel"), cut(value, STRICT, name)) for idx, (name, value) in enumerate(pairs)]
        id_ = self._id(at)
        now = self._log.now_ms()
        self._log.put_writes(
            PutWrites(
                self.name, self.namespace, rows.NATIVE, id_, check_name(task, "task", empty=True), "", now, cuts, True
            )
        )

    def delete(self, at: "Checkpoint | str") -> None:
        """Delete a checkpoint with its pending writes and tags; its children read as before.

        Raises CheckpointNotFoundError.
        """
        self._log.keeping.delete_checkpoint(self.name, self.namespace, self._id(at))

    def tag(self, name: str, at: "Checkpoint | str | None" = None) -> str:
        """Give a checkpoint, the latest or `at`, a name that keeps it from being pruned; return its id.

        A name stands for one checkpoint: giving it again moves it. Works for checkpoints of either API.
        Raises ThreadNotFoundError, CheckpointNotFoundError.
        """
        id_ = None if at is None else self._id(at)
        return self._log.keeping.tag(self.name, self.namespace, id_, check_name(name, "tag"))

    def untag(self, name: str) -> bool:
        """Take a name away; tell whether it was given."""
        return self._log.keeping.untag(self.name, self.namespace, check_name(name, "tag"))

    def tags(self) -> dict[str, str]:
        """Return the names given to checkpoints, each with its checkpoint's id."""
        return self._log.keeping.tags(self.name, self.namespace)

    @property
    def retention(self) -> "Retention | None":
        """This thread's own rules, for all its namespaces, in place of the store's; None where it has none.

        `Retention()` keeps all of the thread, whatever the store's rules say. Copies take them along. Raises
        ThreadNotFoundError.
        """
        return self._log.keeping.retention(self.name)

    @retention.setter
    def retention(self, rules: "Retention | None") -> None:
        self._log.keeping.set_retention(rules, self.name)

    # --- reading

    def state(self, at: "Checkpoint | str | None" = None, *, channels: Collection[str] | None = None) -> dict[str, Any]:
        """Return the state of the latest checkpoint, or of `at`; only these channels if given.

        Raises ThreadNotFoundError, CheckpointNotFoundError, BrokenChainError, ReducerMismatchError.
        """
        check_several(channels, "channels")
        id_ = None if at is None else self._id(at)
        reading = self._log.read(self.name, self.namespace, id_, channels=channels)
        if reading is None:
            raise self._missing(id_)
        return reading.values(STRICT)

    def latest(self) -> Checkpoint | None:
        """Return the latest checkpoint, or None where the thread has none."""
        return next(self.history(limit=1), None)

    def checkpoint(self, id_: str) -> Checkpoint:
        """Return a checkpoint by id. Raises CheckpointNotFoundError."""
        entry = self._log.entry(self.name, self.namespace, self._id(id_))
        if entry is None:
            raise self._missing(id_)
        return self._checkpoint(entry)

    def history(self, *, limit: int | None = None, before: "Checkpoint | str | None" = None) -> Iterator[Checkpoint]:
        """Iterate over the checkpoints, the newest first, without reading their values.

        Lazy; holds no transaction while the caller has the iterator. All branches are listed; `parent_id` tells
        them apart.
        """
        check_limit(limit)
        return self._history(limit, None if before is None else self._id(before))

    def _history(self, limit: int | None, before: str | None) -> Iterator[Checkpoint]:
        left = limit
        while left is None or left > 0:
            size = PAGE if left is None else min(PAGE, left)
            page = self._log.page(self.name, self.namespace, before, size)
            for entry in page:
                yield self._checkpoint(entry)
            if len(page) < size:
                return
            before = page[-1].id
            if left is not None:
                left -= len(page)

    def forks(self) -> "list[Fork]":
        """Return where this namespace, of either API, branched: roots first, then by the parent's id.

        Reads no values.
        """
        return self._log.forks(self.name, self.namespace)

    def writes(self, at: "Checkpoint | str", *, task: str | None = None) -> list[PendingWrite]:
        """Return the pending writes of a checkpoint, or of one of its tasks, ordered by task and place.

        Raises CheckpointNotFoundError.
        """
        id_ = self._id(at)
        if self._log.entry(self.name, self.namespace, id_) is None:
            raise self._missing(id_)
        return [
            PendingWrite(write.task, write.channel, assemble(write.kind, write.blobs, STRICT))
            for write in self._log.writes(self.name, self.namespace, id_, task=task)
        ]

    def diff(self, old: "Checkpoint | str", new: "Checkpoint | str", *, depth: int = DEFAULT_DEPTH) -> "Changes":
        """Return what differs between two checkpoints' states, from the old one to the new one; see `diff_values`.

        Decodes what they don't share. `depth`: the longest path into a value, its channel included; what differs
        deeper counts as changed as a whole. Raises as `state` does.
        """
        ids = [self._id(old), self._id(new)]
        found = self._log.read_many(self.name, [(self.namespace, id_) for id_ in ids])
        for id_, reading in zip(ids, found, strict=True):
            if reading is None:
                raise self._missing(id_)
        before, after = [reading for reading in found if reading is not None]
        from deltastore.diffing import diff_readings  # most programs never compare

        return diff_readings(before, after, STRICT, depth=depth)

    # --- helpers

    def _put(
        self,
        intent: Writes | WholeState,
        at: "Checkpoint | str | None",
        described: bytes,
        expected: "Checkpoint | str | None",
    ) -> Checkpoint:
        now = self._log.now_ms()
        stored = self._log.put(
            Put(
                thread=self.name,
                namespace=self.namespace,
                front=rows.NATIVE,
                id=None,
                parent=At.LATEST if at is None else self._id(at),
                must_exist=True,
                time_ms=now,
                root=None,
                frame=None,
                metadata=described,
                intent=intent,
                codec=STRICT,
                expected=expected if expected is None or expected == "" else self._id(expected),
            )
        )
        return Checkpoint(stored.id, self.name, self.namespace, stored.parent_id, when(now), STRICT.decode(described))

    def _cuts(self, values: Mapping[str, Any], before: Callable[[str], Cut | None] = lambda _: None) -> dict[str, Cut]:
        if not isinstance(values, Mapping):
            raise InvalidInputError(f"expected a mapping of channels to values, not {type(values).__name__}")
        return {check_name(name, "channel"): cut(value, STRICT, name, before(name)) for name, value in values.items()}

    def _numbers(self, names: Iterable[str]) -> list[int]:
        return self._log.names.numbers(keys.CHANNEL, names)

    def _id(self, at: "Checkpoint | str") -> str:
        if isinstance(at, Checkpoint):
            if (at.thread, at.namespace) != (self.name, self.namespace):
                raise InvalidInputError(
                    f"checkpoint {at.id} belongs to thread {at.thread!r}, namespace {at.namespace!r}; "
                    f"this is thread {self.name!r}, namespace {self.namespace!r}"
                )
            return at.id
        keys.encode_id(at)
        return at

    def _missing(self, id_: str | None) -> ThreadNotFoundError | CheckpointNotFoundError:
        if id_ is None or self.latest() is None:
            return ThreadNotFoundError(
                f"no thread {self.name!r} has checkpoints here; append one first, or see store.threads()"
            )
        return CheckpointNotFoundError(f"thread {self.name!r} has no checkpoint {id_!r}; see its history()")

    def _checkpoint(self, entry: Entry) -> Checkpoint:
        metadata = STRICT.decode(entry.record.metadata)
        return Checkpoint(entry.id, self.name, self.namespace, entry.parent_id, when(entry.record.time_ms), metadata)


def check_open(store: Store) -> None:
    """Refuse what is no open store, as its path. Raises InvalidInputError."""
    if not isinstance(store, Store):
        raise InvalidInputError(
            f"a {type(store).__name__} ({store!r}) in place of a store; expected an open one, as deltastore.open(path)"
        )


def check_several(names: Iterable[str] | None, what: str) -> None:
    """Refuse a text in place of names, for it is a collection of its letters. Raises InvalidInputError."""
    if isinstance(names, str):
        raise InvalidInputError(f"{what} {names!r}; expected a collection of names, as [{names!r}]")


def check_name(name: str, what: str, *, empty: bool = False) -> str:
    """Return a name of a thread, namespace, channel or task; any text up to 64 KiB. Raises InvalidIdError."""
    if not isinstance(name, str):
        raise InvalidIdError(
            f"a {what} id of type {type(name).__name__} ({name!r}); expected a str. Nothing is converted silently"
        )
    if not name and not empty:
        raise InvalidIdError(f"an empty {what} id, which is most often an unset variable; name the {what}")
    keys.encode_name(name)
    return name


def _describe(metadata: Mapping[str, Any] | None) -> bytes:
    """Encode metadata. Raises InvalidInputError, EncodeError."""
    if metadata is not None and not isinstance(metadata, Mapping):
        raise InvalidInputError(f"metadata of type {type(metadata).__name__}; expected a mapping or None")
    return encode_whole(dict(metadata or {}), STRICT, "metadata")
