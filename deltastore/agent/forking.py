"""Forking: the journal of one run's place as the journal of another run's first place.

Imports journal and the store. The invariant: only what was done is taken along; what failed or is in doubt stays with
the run that it happened to. And a copy that was broken off isn't taken for a whole one.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from deltastore.agent import journal as jn
from deltastore.store import Thread
from deltastore.terms import PendingWrite

_WHOLE: Final = "whole"
"""The task that tells the end of a copy."""


def copy_journal(writes: Sequence[PendingWrite], thread: Thread, checkpoint_id: str) -> None:
    """Keep the completed calls of a journal for another run's checkpoint, and at last that they are all there.

    Doing it again completes what was broken off. Raises as `Thread.put_writes`.
    """
    entries = jn.read(writes)
    done = {key for key, entry in entries.items() if entry.last.state == jn.DONE and entry.kind != jn.PAUSE}
    tasks: dict[str, list[tuple[str, object]]] = {}
    for write in writes:
        if write.task.partition("/")[0] in done:
            tasks.setdefault(write.task, []).append((write.channel, write.value))
    for task, kept in tasks.items():
        thread.put_writes(checkpoint_id, kept, task=task)
    thread.put_writes(checkpoint_id, [(_WHOLE, True)], task=_WHOLE)


def is_whole(writes: Iterable[PendingWrite]) -> bool:
    """Tell whether a journal was copied to its end."""
    return any(write.task == _WHOLE for write in writes)
