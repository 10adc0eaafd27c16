"""Forking: the journal of one run's place as the journal of another run's first place.

Imports journal and the store. The invariant: only what was done is taken along; what failed or is in doubt stays with
the run that it happened to.
"""

from collections.abc import Sequence

from deltastore.agent import journal as jn
from deltastore.store import Thread
from deltastore.terms import PendingWrite


def copy_journal(writes: Sequence[PendingWrite], thread: Thread, checkpoint_id: str) -> None:
    """Keep the completed calls of a journal for another run's checkpoint. Raises as `Thread.put_writes`."""
    entries = jn.read(writes)
    done = {key for key, entry in entries.items() if entry.last.state == jn.DONE and entry.kind != jn.PAUSE}
    tasks: dict[str, list[tuple[str, object]]] = {}
    for write in writes:
        if write.task.partition("/")[0] in done:
            tasks.setdefault(write.task, []).append((write.channel, write.value))
    for task, kept in tasks.items():
        thread.put_writes(checkpoint_id, kept, task=task)
