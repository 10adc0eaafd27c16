"""A small store with all that a compaction meets, in both fronts, and all that it holds, told."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import deltastore
from deltastore import Store
from deltastore.codec import chunkrow, recordrow
from deltastore.codec import records as rec
from deltastore.codec.primitives import unseal
from deltastore.langgraph import DeltaSaver
from deltastore.log import deleting, keys, names, policy, rows
from deltastore.log.dictionaries import Dictionaries
from deltastore.log.reading import View
from tests.langgraph.deleting import agent, runs
from tests.raw import rows_of

NATIVE = ("n", "docs")
DELTA_CHANNELS = ["log", "messages", "facts"]


@contextmanager
def small_packs() -> Iterator[None]:
    """Let puts pack a few rows each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy, "MIN_LOOSE_ROWS", 4)
        patch.setattr(policy, "MAX_PACK_RECORDS", 4)
        yield


def document(edits: int) -> str:
    chance = random.Random(7)
    lines = [f"{number} {chance.randbytes(20).hex()}" for number in range(300)]
    for edit in range(edits):
        lines[edit * 17 % 300] = f"edited {edit}"
    return "\n".join(lines)


def fill(store: Store, scale: int = 1) -> None:
    """Put packs, loose rows, based chunks, remnants, dead chunks, superseded writes, tags, a queued thread."""
    with small_packs():
        thread = store.thread("n")
        made = [thread.append({"messages": [{"nth": n, "text": f"{n} " * 20}], "n": n}) for n in range(9 * scale)]
        for checkpoint in made[2:7:2]:
            thread.put_writes(checkpoint, {"messages": ["pending"], "n": checkpoint.id}, task=f"task {checkpoint.id}")
        thread.append({"messages": ["branch"]}, at=made[3])
        thread.delete(made[5])
        thread.tag("kept", made[4])
        docs = store.thread("docs")
        edits = [docs.put_state({"doc": document(n), "other": f"{n}" * 300}) for n in range(5 * scale)]
        docs.delete(edits[1])
        docs.delete(edits[2])
        saver = DeltaSaver(store)
        graph = agent(saver, steps=3)
        runs(graph, "g", range(3 * scale))
        saver.delete_for_runs(["g-1"])
        config = {"configurable": {"thread_id": "g", "checkpoint_ns": ""}}
        latest = saver.get_tuple(config)
        assert latest is not None
        for text in ("first", "second"):
            saver.put_writes(latest.config, [("__error__", text * 40)], "task")
        saver.tag(latest.config, "kept")
        store.thread("gone").append({"m": ["gone"]})
        names.in_write(store.log.storage, (), lambda tx: deleting.delete_thread(tx, "gone", 0))


def told(store: Store) -> dict[str, str]:
    """Return all that a store holds: states, parents, metadata, writes, tags, tuples and histories."""
    out: dict[str, str] = {}
    for name in NATIVE:
        thread = store.thread(name)
        out[f"{name} tags"] = repr(thread.tags())
        for found in thread.history():
            what = (thread.state(at=found), found.metadata, found.parent_id, found.created_at, thread.writes(found))
            out[f"{name} {found.id}"] = repr(what)
    saver = DeltaSaver(store)
    config: Any = {"configurable": {"thread_id": "g", "checkpoint_ns": ""}}
    out["g tags"] = repr(saver.tags(config))
    for found in saver.list(config):
        key = found.config["configurable"]["checkpoint_id"]
        assert repr(saver.get_tuple(found.config)) == repr(found)
        out[f"g {key}"] = repr(found)
        out[f"g {key} history"] = repr(saver.get_delta_channel_history(config=found.config, channels=DELTA_CHANNELS))
    return out


def make(path: Path, scale: int = 1) -> dict[str, str]:
    """Make such a store, and return what it holds."""
    with deltastore.open(path, sync="none", snapshot_frequency=4) as store:
        fill(store, scale)
        return told(store)


def plain_rows(store: Store) -> Iterator[bytes]:
    """Iterate over all that rows hold, decompressed: chunks against their bases, records, writes, all others."""
    stored = rows_of(store.log.storage)
    with store.log.storage.read() as tx:
        for key, sealed in stored.items():
            thread, kind = int.from_bytes(key[: keys.THREAD_BYTES], "big"), key[keys.THREAD_BYTES : 7]
            yield key
            yield sealed  # a dictionary stands in its row as it is
            if thread and kind == b"c":
                view, series = View(tx, thread, ""), key[7]
                head = chunkrow.decode_head(unseal(key, sealed), int.from_bytes(key[-keys.NUMBER_BYTES :], "big"))
                for number in head.numbers:
                    yield view.blob(series, number)
            elif thread and kind == b"r":
                row = recordrow.decode_row(unseal(key, sealed), key[-16:], Dictionaries(tx))
                for record in row.records:
                    yield repr(rec.fields_of(record)).encode()
                for writes in row.writes.values():
                    yield from (repr(rows.decode_tasks(key, written)).encode() for written in writes.values())
            elif thread and kind == b"w":
                yield repr(rows.decode_tasks(key, unseal(key, sealed))).encode()
