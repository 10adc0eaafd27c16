"""What THREAD and THREAD@CHECKPOINT name, in an open store. Reads only; imports log and below.

The invariant: what a listing shows can be given back, whatever characters are in it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from deltastore.cli.text import escaped, unescaped
from deltastore.errors import CheckpointNotFoundError, InvalidIdError, ThreadNotFoundError
from deltastore.log import finding, rows
from deltastore.store import Store, check_name


@dataclass(frozen=True, slots=True)
class Found:
    """A thread, a namespace of it, and a checkpoint there; the latest is meant without id."""

    thread: str
    namespace: str
    id: str | None

    @property
    def shown(self) -> str:
        """The place as people write it."""
        return escaped(self.thread) if self.id is None else f"{escaped(self.thread)}@{escaped(self.id)}"


def find_thread(store: Store, text: str) -> str:
    """Return the name of a thread, given it or as it is shown. Raises ThreadNotFoundError, InvalidIdError."""
    for name in _readings(text):
        if _exists(store, name):
            return name
    for before, _ in _splits(text):
        if any(_exists(store, name) for name in _readings(before)):
            raise ThreadNotFoundError(
                f"no thread is named {text!r}, but one is named {before!r}; "
                "this takes a thread alone, without a checkpoint"
            )
    raise ThreadNotFoundError(f"no thread is named {text!r}; see deltastore threads")


def find_place(store: Store, text: str, namespace: str | None) -> Found:
    """Return what THREAD or THREAD@CHECKPOINT names, looking for the checkpoint in all namespaces unless one is given.

    A thread of the whole name comes first, for it couldn't be named otherwise; else the last @ that a checkpoint's id
    or tag follows. Raises ThreadNotFoundError, CheckpointNotFoundError, InvalidIdError.
    """
    for name in _readings(text):
        if _exists(store, name):
            return Found(name, _default_namespace(store, name) if namespace is None else namespace, None)
    thread: str | None = None
    for before, after in _splits(text):
        for name in _readings(before):
            if not _exists(store, name):
                continue
            thread = thread or name
            wanted = [namespace] if namespace is not None else namespaces(store, name)
            for where in wanted:
                for id_ in _readings(after):
                    found = _checkpoint(store, name, where, id_)
                    if found is not None:
                        return Found(name, where, found)
    if thread is None:
        raise ThreadNotFoundError(f"no thread is named {text!r}; see deltastore threads")
    raise CheckpointNotFoundError(f"thread {thread!r} has no checkpoint or tag as in {text!r}; see deltastore log")


def namespaces(store: Store, thread: str) -> list[str]:
    """Return a thread's namespaces of either API, the root's first."""
    found = [name for front in (rows.NATIVE, rows.LANGGRAPH) for name in store.log.namespaces(thread, front)]
    return sorted(found, key=lambda name: name != "")


def _default_namespace(store: Store, thread: str) -> str:
    return next(iter(namespaces(store, thread)), "")


def _readings(text: str) -> Iterator[str]:
    yield text
    meant = unescaped(text) if "\\" in text else None
    if meant:
        yield meant


def _splits(text: str) -> Iterator[tuple[str, str]]:
    place = text.rfind("@")
    while place > 0:
        yield text[:place], text[place + 1 :]
        place = text.rfind("@", 0, place)


def _exists(store: Store, name: str) -> bool:
    with store.log.storage.read() as tx:
        return finding.find_thread(tx, check_name(name, "thread")) is not None


def _checkpoint(store: Store, thread: str, namespace: str, text: str) -> str | None:
    """Return the id of the checkpoint with an id or a tag."""
    if not text:
        return None
    try:
        entry = store.log.entry(thread, namespace, text)
    except InvalidIdError:  # a tag may be longer than any id
        entry = None
    return text if entry is not None else store.log.keeping.tags(thread, namespace).get(text)
