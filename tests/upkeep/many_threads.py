"""A small store of several threads in both fronts, with all that a deletion meets, and what each thread holds, told.

Its clock is the tests': most was put long ago, some of it so long that a thread counts as idle.
"""

from datetime import timedelta
from pathlib import Path
from typing import Any

import deltastore
from deltastore import Retention, Store
from deltastore.codec.primitives import unseal
from deltastore.langgraph import DeltaSaver
from deltastore.log import deleting, finding, keys, names, rows
from deltastore.log.reading import View
from tests.langgraph.comparing import config
from tests.langgraph.deleting import agent, put, runs, said, say
from tests.upkeep.both_fronts import DELTA_CHANNELS, small_packs

NATIVE = ("n", "idle")
GRAPHS = ("g", "h")
NOW = 1_700_000_000.0
DAY = timedelta(days=1)
RULES = Retention(keep_last=2, drop_idle=50 * DAY, stray_writes=3 * DAY)


def set_clock(store: Store, days_ago: float = 0) -> None:
    store.log._clock = lambda: NOW - days_ago * DAY.total_seconds()


def make(path: Path) -> None:
    """Put packs, forks, tags, calls, remnants, stray writes, waiting writes, idle threads, a queued one."""
    with deltastore.open(path, sync="none", snapshot_frequency=4) as store, small_packs():
        saver = DeltaSaver(store)
        set_clock(store, 100)
        store.thread("idle").append({"messages": ["old"]})
        _calls(saver, "idle calls", "123")
        set_clock(store, 10)
        _native(store)
        _calls(saver, "calls")
        graph = agent(saver, steps=1, frequency=4)
        for name in GRAPHS:
            runs(graph, name, range(3 if name == "g" else 2))
            forked = list(graph.get_state_history(config(name)))[3]
            graph.update_state(forked.config, said(9), as_node="work")
            saver.tag(forked.config, "kept")
        saver.delete_for_runs(["g-1"])
        store.thread("gone").append({"m": ["gone"]})
        names.in_write(store.log.storage, (), lambda tx: deleting.delete_thread(tx, "gone", store.log.now_ms()))


def _native(store: Store) -> None:
    thread = store.thread("n")
    made = [thread.append({"messages": [f"{n} " * 20], "n": n}) for n in range(7)]
    for checkpoint in made[2:5:2]:
        thread.put_writes(checkpoint, {"messages": ["pending"]}, task=f"task {checkpoint.id}")
    fork = thread.append({"messages": ["branch"]}, at=made[3])
    thread.put_writes(fork, {"messages": ["waits"]})
    thread.append({"messages": ["last"]}, at=made[-1])
    thread.delete(made[5])
    thread.tag("kept", made[4])


def _calls(saver: DeltaSaver, name: str, ids: str = "12345") -> None:
    """Put a line with a fork, a call at two of its checkpoints, one of them tagged in, and writes without one."""
    parent = None
    for id_ in ids:
        put(saver, id_, parent, thread=name, run=f"{name} {int(id_) // 3}", value=f"value {id_}")
        say(saver, id_, f"said {id_}", thread=name)
        parent = id_
        if id_ in "13":
            for inner in "ab":
                put(saver, inner, "a" if inner == "b" else None, thread=name, ns=f"sub:{id_}", root=id_, value=inner)
                say(saver, inner, f"said {inner}", thread=name, ns=f"sub:{id_}")
    put(saver, "2x", "2", thread=name, run=f"{name} fork")
    put(saver, "6", parent, thread=name, run=f"{name} 2")
    saver.tag(config(name, "a", "sub:3"), "kept")
    say(saver, "99", "stray", thread=name)
    say(saver, "98", "stray", thread=name, ns="lonely")


Told = dict[str, dict[str, str]]


def told(store: Store) -> Told:
    """Return all that each named thread holds: states, parents, metadata, writes, tags, tuples, histories, strays."""
    return {info.name: {"count": str(info.checkpoints)} | _told(store, info.name) for info in store.threads()}


def _told(store: Store, name: str) -> dict[str, str]:
    out: dict[str, str] = {"strays": repr(strays(store, name))}
    if name in NATIVE:
        thread = store.thread(name)
        out["tags"] = repr(thread.tags())
        for found in thread.history():
            what = (thread.state(at=found), found.metadata, found.parent_id, found.created_at, thread.writes(found))
            out[found.id] = repr(what)
        return out
    saver = DeltaSaver(store)
    for namespace in store.log.namespaces(name, rows.LANGGRAPH):
        where: Any = config(name, ns=namespace)
        out[f"{namespace} tags"] = repr(saver.tags(where))
        for one in saver.list(where):
            key = f"{namespace} {one.config['configurable']['checkpoint_id']}"
            assert repr(saver.get_tuple(one.config)) == repr(one)
            out[key] = repr(one)
            out[f"{key} history"] = repr(saver.get_delta_channel_history(config=one.config, channels=DELTA_CHANNELS))
    return out


def strays(store: Store, name: str) -> list[Any]:
    """Return the writes of a thread whose checkpoint isn't there."""
    out: list[Any] = []
    with store.log.storage.read() as tx:
        found = finding.find_thread(tx, name)
        assert found is not None
        view, prefix = View(tx, found[0], name), keys.all_writes(found[0])
        spaces = {namespace.number: namespace for namespace in rows.load_namespaces(tx, found[0])}
        for key, sealed in tx.scan(prefix, keys.end_of(prefix)):
            rest = key[len(prefix) :]
            id_ = rest[keys.NAMESPACE_BYTES + 1 : -keys.HASH_BYTES].decode()
            namespace = spaces[int.from_bytes(rest[: keys.NAMESPACE_BYTES], "big")]
            if finding.find(view, namespace, id_) is None:
                out.append((namespace.name, id_, rows.decode_tasks(key, unseal(key, sealed))))
    return out
