"""Forking: the journal of one run's place as the journal of another run's first place.

Imports journal, fingerprints and the store. The invariant: only what was done is taken along; what failed or is in
doubt stays with the run that it happened to.
"""

from collections.abc import Iterable

from deltastore.agent import journal as jn
from deltastore.agent.fingerprints import Position, fingerprint
from deltastore.store import Thread
from deltastore.terms import PendingWrite


def copy_journal(writes: Iterable[PendingWrite], thread: Thread, checkpoint_id: str) -> None:
    """Keep the completed calls of a journal for another run's checkpoint. Raises as `Thread.put_writes`."""
    for entry in jn.read(writes).values():
        last = entry.last
        if last.state != jn.DONE or entry.kind == jn.PAUSE:
            continue
        position = Position(thread.name, checkpoint_id, entry.step_index, entry.node_name)
        key = fingerprint(position, entry.kind, entry.name, entry.arguments, entry.occurrence)
        attempt = last._replace(number=0, since=0)
        output = last.output if entry.kind != jn.TOOL else {**last.output, "id": key}
        moved = entry._replace(key=key)
        end = jn.end_writes(entry.kind, jn.DONE, last.facts, output)
        if entry.tokens:
            thread.put_writes(checkpoint_id, [(jn.TOKENS, list(entry.tokens))], task=jn.tokens_task(key, 0))
        thread.put_writes(checkpoint_id, [*jn.start_writes(moved, attempt), *end[2:]], task=key)
