"""`Keeping`: deletions, copies, tags and the rules of retention, of one open store.

Imports deleting, erasing, copying, tagging and retention, which a program that only puts and reads never loads. The
invariant: each call changes a thread in one transaction. Thread-safe.
"""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from deltastore.errors import CheckpointNotFoundError, FrontMismatchError
from deltastore.log import choosing, copying, deleting, erasing, finding, keys, names, retention, rows, tagging
from deltastore.log.reading import View
from deltastore.log.retention import Retention, check_rules
from deltastore.storage.port import WriteTransaction

if TYPE_CHECKING:
    from deltastore.log.engine import Log


class Keeping:
    """What decides over how long things are kept. Thread-safe."""

    def __init__(self, log: "Log") -> None:
        self._log = log

    # --- deletions

    def delete_checkpoint(self, thread: str, namespace: str, id_: str) -> None:
        """Delete a checkpoint with its pending writes. Raises ThreadNotFoundError, CheckpointNotFoundError."""
        names.in_write(self._log.storage, (), lambda tx: deleting.delete_checkpoint(tx, thread, namespace, id_))

    def delete(self, thread: str, choose: choosing.Choose) -> deleting.Outcome:
        """Delete what is chosen of a thread's LangGraph namespaces, in one transaction; an unknown thread is none.

        What others' histories need stays, hidden. Raises BrokenChainError.
        """
        with self._log.storage.read() as tx:
            chosen = deleting.choose(tx, thread, choose)
        return names.in_write(self._log.storage, (), lambda tx: deleting.delete(tx, thread, choose, chosen))

    def lacks(self, thread: str, choose: choosing.Choose) -> tuple[int, list[tuple[erasing.Lack, list[str]]]]:
        """Return what a deletion would have to keep for others, each with the names of the channels.

        First comes the moment of the thread, which `erase` asks for.
        """
        with self._log.storage.read() as tx:
            moment, found = erasing.lacks(tx, thread, choose)
            named = [
                (lack, sorted(self._log.names.name(tx, keys.CHANNEL, number) for number in lack.channels))
                for lack in found
            ]
            return moment, named

    def erase(
        self, thread: str, choose: Callable[[Collection[bytes]], choosing.Choose], folded: erasing.Folded, moment: int
    ) -> deleting.Outcome | None:
        """Delete what is chosen, and keep nothing of it; `folded` takes the place of what is lacking then.

        None: others changed the thread since the moment that it was folded at. Raises BrokenChainError.
        """
        return names.in_write(self._log.storage, (), lambda tx: erasing.erase(tx, thread, choose, folded, moment))

    # --- tags

    def tag(self, thread: str, namespace: str, id_: str | None, name: str, front: int | None = None) -> str:
        """Let a tag name a checkpoint, the latest without id; return its id. `front`: refuse another's namespace.

        Raises ThreadNotFoundError, CheckpointNotFoundError, FrontMismatchError.
        """

        def work(tx: WriteTransaction) -> str:
            number, header = deleting.require_thread(tx, thread)
            found = rows.load_namespace(tx, number, keys.encode_name(namespace))
            if found is not None and front is not None and found.front != front:
                raise FrontMismatchError(
                    f"thread {thread!r}, namespace {namespace!r} is written by the {rows.FRONT_NAMES[found.front]} "
                    "API; tag its checkpoints by that"
                )
            wanted = found.latest if found is not None and id_ is None else id_
            if found is None or wanted is None or finding.find(View(tx, number, thread), found, wanted) is None:
                raise CheckpointNotFoundError(
                    f"thread {thread!r}, namespace {namespace!r} has no checkpoint {wanted or 'at all'!r} to tag; "
                    "see its history"
                )
            tagging.put(tx, number, found.number, keys.encode_name(name), wanted)
            rows.store_header(tx, number, header)
            return wanted

        return names.in_write(self._log.storage, (), work)

    def untag(self, thread: str, namespace: str, name: str) -> bool:
        """Remove a tag; tell whether there was one."""

        def work(tx: WriteTransaction) -> bool:
            located = finding.find_namespace(tx, thread, namespace)
            if located is None or not tagging.delete(tx, located[0], located[2].number, keys.encode_name(name)):
                return False
            rows.store_header(tx, located[0], located[1])
            return True

        return names.in_write(self._log.storage, (), work)

    def tags(self, thread: str, namespace: str) -> dict[str, str]:
        """Return a namespace's tags: name → checkpoint id."""
        with self._log.storage.read() as tx:
            located = finding.find_namespace(tx, thread, namespace)
            return {} if located is None else tagging.load(tx, located[0], located[2].number)

    # --- what is kept

    def retention(self, thread: str | None = None) -> Retention | None:
        """Return the rules stored for the store, or for a thread alone; None where there are none.

        Raises ThreadNotFoundError.
        """
        with self._log.storage.read() as tx:
            return retention.load(tx, None if thread is None else deleting.require_thread(tx, thread)[0])

    def set_retention(self, rules: Retention | None, thread: str | None = None) -> None:
        """Store rules for the store, or for a thread alone; None removes them.

        Raises InvalidInputError, ThreadNotFoundError.
        """
        checked = check_rules(rules)

        def work(tx: WriteTransaction) -> None:
            if thread is None:
                retention.store(tx, None, checked)
                return
            number, header = deleting.require_thread(tx, thread)
            retention.store(tx, number, checked)
            rows.store_header(tx, number, header)

        names.in_write(self._log.storage, (), work)

    # --- threads

    def delete_thread(self, thread: str) -> bool:
        """Delete a thread, then collect its rows; tell whether there was one."""
        now_ms = self._log.now_ms()
        deleted = names.in_write(self._log.storage, (), lambda tx: deleting.delete_thread(tx, thread, now_ms))
        if deleted:
            self.collect()
        return deleted

    def collect(self) -> deleting.Collected:
        """Remove the rows of deleted threads and abandoned copies."""
        return deleting.collect(self._log.storage, self._log.now_ms())

    def copy_thread(self, source: str, target: str) -> None:
        """Copy a thread. Raises ThreadNotFoundError, ThreadExistsError."""
        copying.copy_thread(self._log.storage, source, target, self._log.now_ms())
