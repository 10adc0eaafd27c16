"""Damage to stores, and all that a store gives, part by part, so that it can be told what a repair changed."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from deltastore import CheckpointNotFoundError, DeltastoreError, Reducer, Store
from deltastore.codec.primitives import seal
from deltastore.langgraph import DeltaSaver
from deltastore.log import keys, rows
from deltastore.storage import Storage
from deltastore.storage.memory import MemoryStorage
from tests.raw import put_raw, rows_of

Place = tuple[str, str, str]
"""A thread, a namespace, a checkpoint's id."""
GONE = "gone"

Open = Callable[[Storage], Store]


@dataclass(frozen=True)
class Read:
    """What a checkpoint gives: each part told, or the error that it raises; `GONE`: it isn't there."""

    state: str
    writes: frozenset[str]
    history: str

    @property
    def is_whole(self) -> bool:
        return not self.state.startswith(("raised", GONE))


MISSING = Read(GONE, frozenset(), GONE)


def copy_of(found: dict[bytes, bytes]) -> MemoryStorage:
    """Return a storage with these rows."""
    storage = MemoryStorage()
    with storage.write() as tx:
        for key, row in found.items():
            tx.put(key, row)
    return storage


def opener(**options: Any) -> Open:
    return lambda storage: Store(storage, **options)


def places(store: Store) -> dict[Place, int]:
    """Return all listed checkpoints, each with the front that it belongs to. The store must be whole."""
    out: dict[Place, int] = {}
    for found in store.log.all_threads():
        with store.log.storage.read() as tx:
            namespaces = rows.load_namespaces(tx, found.number)
        for namespace in namespaces:
            name = keys.decode_name(namespace.name)
            if namespace.front == rows.NATIVE:
                ids: Iterable[str] = (entry.id for entry in store.thread(found.name, namespace=name).history())
            else:
                config: Any = {"configurable": {"thread_id": found.name, "checkpoint_ns": name}}
                listed = DeltaSaver(store).list(config)
                ids = (
                    entry.config["configurable"]["checkpoint_id"]
                    for entry in listed
                    if entry.config["configurable"]["checkpoint_ns"] == name
                )
            for id_ in ids:
                assert (found.name, name, id_) not in out
                out[found.name, name, id_] = namespace.front
    return out


def read(store: Store, place: Place, front: int, channels: Iterable[str]) -> Read:
    """Read one checkpoint in all its parts."""
    try:
        return _native(store, place) if front == rows.NATIVE else _graph(store, place, channels)
    except (CheckpointNotFoundError, KeyError):
        return MISSING
    except DeltastoreError as error:
        return Read(f"raised {error.code}", frozenset(), f"raised {error.code}")


def _native(store: Store, place: Place) -> Read:
    name, namespace, id_ = place
    thread = store.thread(name, namespace=namespace)
    found = thread.checkpoint(id_)
    state = thread.state(at=id_)
    return Read(
        repr((state, found.metadata, found.parent_id, found.created_at)),
        frozenset(map(repr, thread.writes(id_))),
        "",
    )


def _graph(store: Store, place: Place, channels: Iterable[str]) -> Read:
    name, namespace, id_ = place
    saver = DeltaSaver(store)
    config: Any = {"configurable": {"thread_id": name, "checkpoint_ns": namespace, "checkpoint_id": id_}}
    found = saver.get_tuple(config)
    if found is None:
        return MISSING
    try:
        history = repr(saver.get_delta_channel_history(config=config, channels=list(channels)))
    except DeltastoreError as error:
        history = f"raised {error.code}"
    return Read(
        repr((found.checkpoint, found.metadata, found.parent_config)),
        frozenset(map(repr, found.pending_writes or ())),
        history,
    )


# --- damage


def damage(storage: Storage, chance: random.Random, count: int, kinds: bytes = b"") -> list[str]:
    """Damage random rows: flip bytes, cut, remove, swap with another one, empty. Return what was done.

    Empty ones may have a right checksum, but for names, which any bytes are.
    """
    done: list[str] = []
    for _ in range(count):
        found = rows_of(storage)
        choices = [key for key in found if key != keys.FORMAT and (not kinds or key[6:7] in kinds)]
        if not choices:
            return done
        by_kind: dict[tuple[bool, bytes], list[bytes]] = {}
        for key in choices:
            by_kind.setdefault((key.startswith(keys.STORE), key[6:7]), []).append(key)
        key = chance.choice(by_kind[chance.choice(sorted(by_kind))])
        what = chance.choice(["flip", "flip", "remove", "remove", "cut", "swap", "zero"])
        row = found[key]
        if what == "flip" and row:
            place = chance.randrange(len(row))
            put_raw(storage, key, row[:place] + bytes((row[place] ^ 1 << chance.randrange(8),)) + row[place + 1 :])
        elif what == "remove":
            put_raw(storage, key, None)
        elif what == "cut":
            put_raw(storage, key, row[: chance.randrange(len(row) or 1)])
        elif what == "zero":
            put_raw(
                storage, key, seal(key, b"") if chance.random() < 0.3 and key[6:7] not in b"CN" else bytes(len(row))
            )
        else:
            other = chance.choice(choices)
            put_raw(storage, key, found[other])
            put_raw(storage, other, row)
            what = f"swap with {other.hex()}"
        done.append(f"{what} {key[:6].hex()} {key[6:7]!r} {key[7:].hex()}")
    return done


SUM = Reducer("sum", 1, lambda value, write: [value[0] + write[0], *value[1:], write], lambda: [0])
