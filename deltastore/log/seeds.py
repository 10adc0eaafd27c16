"""What the snapshots of a put sum up: the value that a channel last had, its seed, and the writes since.

A snapshot's chunks are found again among these. They are a saving and no need: where an ancestor was never stored, or
its writes came late, less is found again and nothing is wrong. Imports reading, finding and heads. The invariant: every
number named is below the transaction's next chunk, and no user object is decoded.
"""

from collections.abc import Iterable, Iterator

from deltastore.codec.records import OPAQUE, SNAPSHOTS, Record, Value
from deltastore.log import finding, rows
from deltastore.log.heads import Head, Sum
from deltastore.log.reading import View


class Seeds:
    """The seeds of one put, of which `head` is the parent's. Lives as long as the view, and isn't thread-safe."""

    def __init__(
        self,
        view: View,
        namespace: rows.Namespace | None,
        parent_id: str | None,
        head: Head | None,
        tasks: rows.Tasks | None = None,
    ) -> None:
        """Take the parent as prepare found it: no head where it isn't stored, no id where there is none.

        `tasks`: its writes as this process remembers them; None: they are read. Others may have written more.
        """
        self.view = view
        self._namespace = namespace
        self._parent_id = parent_id
        self._head = head
        self._tasks = tasks

    def carry(self, absent: Iterable[int]) -> dict[int, Sum]:
        """Return what the child's head keeps for these channels, which it has no value of.

        That is for channels whose last value was a snapshot, as far as the parent's head has it in memory: the next
        snapshot then costs what an ordinary value costs. Others are looked for when they are needed.
        """
        out: dict[int, Sum] = {}
        for channel in absent if self._head else ():
            known = self._known(channel)
            if known is not None and known.kind in SNAPSHOTS:
                out[channel] = known._replace(writes=(*known.writes, *self._parent_writes(channel)))
        return out

    def find(self, channel: int) -> Sum:
        """Return what a snapshot of this channel sums up. Raises BrokenChainError, ChecksumError."""
        known = self._known(channel)
        if known is not None:
            return known._replace(writes=(*known.writes, *self._parent_writes(channel)))
        return self._walk(channel)

    def _known(self, channel: int) -> Sum | None:
        """Return what the parent's head holds in memory: its own value, or what it was given of earlier ones."""
        head = self._head
        if head is None:
            return None
        found = head.state.get(channel)
        if found is None or found.value is None or channel not in head.blobs:
            return head.sums.get(channel)
        return Sum(found.value.kind, found.value.spans, head.blobs[channel])

    def _parent_writes(self, channel: int) -> list[Value]:
        if self._namespace is None or self._parent_id is None:
            return []
        if self._tasks is None:
            self._tasks = finding.tasks(self.view, self._namespace, self._parent_id)
        return _written(self._tasks, channel)

    def _walk(self, channel: int) -> Sum:
        """Go up as far as records have a version and no value of the channel, and read the seed behind them."""
        seed: Value | None = None
        by_record: list[list[Value]] = []
        for namespace, ulid, record in self._ancestors():
            by_record.append(_written(finding.tasks(self.view, namespace, record.id), channel))
            if channel not in (absent for absent, _ in record.seeds):  # it has the value, or no version either
                found = self.view.state(namespace.number, ulid).get(channel)
                seed = found.value if found else None
                break
        by_record = by_record or [self._parent_writes(channel)]
        writes = tuple(write for group in reversed(by_record) for write in group)
        if seed is None:
            return Sum(OPAQUE, (), [], writes)
        return Sum(seed.kind, seed.spans, self.view.blobs(0, seed.spans), writes)

    def _ancestors(self) -> Iterator[tuple[rows.Namespace, bytes, Record]]:
        """Iterate over the parent and those before it, as far as they are stored."""
        if self._head is None or self._namespace is None:
            return
        ulid: bytes | None = self._head.ulid
        while ulid is not None:
            record = self.view.record(self._namespace.number, ulid)
            if record is None:
                return
            yield self._namespace, ulid, record
            ulid = record.parent if record.parent is not None and record.parent < ulid else None


def _written(tasks: rows.Tasks, channel: int) -> list[Value]:
    """Return a checkpoint's writes to a channel, in the order that they are folded in."""
    found = [
        (write.path, task, write.idx, write.value)
        for task, by_idx in tasks.items()
        for write in by_idx.values()
        if write.channel == channel
    ]
    return [value for *_, value in sorted(found, key=lambda item: item[:3])]
