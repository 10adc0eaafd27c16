"""Damage to the data file itself, and children that read all of a store after it, for the engine may crash on it."""

import faulthandler
import json
import os
import random
import resource
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deltastore
from deltastore import CheckpointNotFoundError, DeltastoreError, Store, ThreadNotFoundError
from deltastore.langgraph import DeltaSaver
from deltastore.upkeep.statistics import measure
from tests.upkeep.both_fronts import DELTA_CHANNELS, NATIVE

PAGE = 4096
GRAPH: Any = {"configurable": {"thread_id": "g", "checkpoint_ns": ""}}

RIGHT, TYPED, GONE, WRONG = "right", "typed", "gone", "wrong"
"""What a read gives: what was put; an error of ours; less than was put, without an error; anything else."""

_TIMEOUT_SECONDS = 60
_MEMORY_BYTES = 8 << 30


# --- reading


def reads(store: Store, ids: dict[str, list[str]]) -> dict[str, Callable[[], Any]]:
    """Return each read of a store by name; those of one checkpoint give a text, those of many a list of texts."""
    saver = DeltaSaver(store)
    out: dict[str, Callable[[], Any]] = {
        # without counts: a page of an earlier commit in place of another one gives those of that commit
        "threads": lambda: [repr((found.name, found.created_at, found.metadata)) for found in store.threads()],
        "graph threads": lambda: [repr((found.name, found.created_at)) for found in saver.threads()],
        # without writes: they are read one by one below
        "list": lambda: [repr(found[:4]) for found in saver.list(GRAPH)],
        "g latest tuple": lambda: repr((found := saver.get_tuple(GRAPH)) and found[:4]),
        "graph tags": lambda: sorted(map(repr, saver.tags(GRAPH).items())),
        "graph forks": lambda: [repr(found) for found in saver.forks(GRAPH)],
    }
    for name in NATIVE:
        thread = store.thread(name)
        out |= {
            f"{name} history": lambda thread=thread: [repr(found) for found in thread.history()],
            f"{name} latest": lambda thread=thread: repr(thread.latest()),
            f"{name} latest state": lambda thread=thread: repr(thread.state()),
            f"{name} tags": lambda thread=thread: sorted(map(repr, thread.tags().items())),
            f"{name} forks": lambda thread=thread: [repr(found) for found in thread.forks()],
        }
        for id_ in ids[name]:
            out[f"{name} {id_} state"] = lambda thread=thread, id_=id_: repr(thread.state(at=id_))
            out[f"{name} {id_} writes"] = lambda thread=thread, id_=id_: [repr(found) for found in thread.writes(id_)]
            out[f"{name} {id_}"] = lambda thread=thread, id_=id_: repr(thread.checkpoint(id_))
    for id_ in ids["g"]:
        config: Any = {"configurable": {**GRAPH["configurable"], "checkpoint_id": id_}}
        out[f"g {id_} tuple"] = lambda config=config: repr((found := saver.get_tuple(config)) and found[:4])
        out[f"g {id_} writes"] = lambda config=config: [
            repr(write) for write in getattr(saver.get_tuple(config), "pending_writes", ())
        ]
        out[f"g {id_} history"] = lambda config=config: [
            repr((channel, part, one))
            for channel, found in saver.get_delta_channel_history(config=config, channels=DELTA_CHANNELS).items()
            for part, parts in found.items()
            for one in (parts if part == "writes" else [parts])
        ]
    return out


def ids_of(store: Store) -> dict[str, list[str]]:
    """Return the ids of a whole store's checkpoints, by thread."""
    out = {name: [found.id for found in store.thread(name).history()] for name in NATIVE}
    return out | {"g": [found.config["configurable"]["checkpoint_id"] for found in DeltaSaver(store).list(GRAPH)]}


def earlier(expected: dict[str, Any], name: str) -> set[str]:
    """Return what a read of the latest checkpoint gives where later ones are gone."""
    if "latest" not in name:
        return set()
    thread, _, _ = name.partition(" latest")
    return {
        value for known, value in expected.items() if known.startswith(f"{thread} ") and not isinstance(value, list)
    }


def outcome(read: Callable[[], Any], expected: Any, less: Collection[str] = ()) -> str:
    """Run a read, and tell what it gives."""
    try:
        found = read()
    except (CheckpointNotFoundError, ThreadNotFoundError):
        return GONE
    except DeltastoreError:
        return TYPED
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
        return f"{WRONG}: {type(error).__name__}: {error} {traceback.format_exc()}"
    if found == expected:
        return RIGHT
    if found in ("None", "{}") or (isinstance(found, str) and found in less):
        return GONE
    if isinstance(found, list) and not Counter(found) - Counter(expected):
        return GONE
    return f"{WRONG}: {str(found)[:2000]} in place of {str(expected)[:2000]}"


@dataclass(frozen=True)
class Whole:
    """A store before any damage: its data file, and what each read of it gives."""

    data: bytes
    ids: dict[str, list[str]]
    expected: dict[str, Any]


def whole(path: Path) -> Whole:
    with deltastore.open(path, sync="none") as store:
        ids = ids_of(store)
        expected = {name: read() for name, read in reads(store, ids).items()}
    return Whole((path / "env-1" / "data.mdb").read_bytes(), ids, expected)


def look(path: Path, before: Whole) -> dict[str, str]:
    """Open a store and read all of it; return what each read gives. To be run in a child."""
    try:
        store = deltastore.open(path, sync="none", create=False)
    except DeltastoreError:
        return {"open": TYPED}
    with store:
        expected = before.expected
        out = {
            name: outcome(read, expected[name], earlier(expected, name))
            for name, read in reads(store, before.ids).items()
        }
        # of a damaged store these are numbers of what is there
        out["stats"] = outcome(lambda: measure(store) and None, None)
        out["info"] = outcome(lambda: store.info() and None, None)
    return out


# --- children


@dataclass(frozen=True)
class Ended:
    """How a child ended: what it told, or the signal that it died by."""

    told: Any
    signal: int

    @property
    def how(self) -> str:
        return signal.Signals(self.signal).name if self.signal else "told"


def in_child(work: Callable[[], Any]) -> Ended:
    """Run work in a forked child, of bounded time and memory; return what it gives, or how it died."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read_end)
            # LMDB tells what it aborts for, pytest where; and a core of each would fill the disk
            faulthandler.disable()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_CPU, (_TIMEOUT_SECONDS, _TIMEOUT_SECONDS))
            with os.fdopen(write_end, "w") as file:
                json.dump(work(), file)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(write_end)
    with os.fdopen(read_end) as file:
        told = file.read()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code <= 0, f"a child failed: {told}"
    return Ended(json.loads(told) if code == 0 else None, -code)


# --- damage


def kind_of(data: bytes, number: int) -> str:
    """Name the kind of a page: by its flags, or as part of an overflow run."""
    flags = int.from_bytes(data[number * PAGE + 10 : number * PAGE + 12], "little")
    if number < 2:
        return "meta"
    if int.from_bytes(data[number * PAGE : number * PAGE + 8], "little") == number:
        return {0x01: "branch", 0x02: "leaf", 0x04: "overflow"}.get(flags, "other")
    return "other"


def pages(data: bytes) -> dict[str, list[int]]:
    out: dict[str, list[int]] = {}
    for number in range(len(data) // PAGE):
        out.setdefault(kind_of(data, number), []).append(number)
    return out


def flip(data: bytearray, chance: random.Random, place: int) -> None:
    data[place] ^= 1 << chance.randrange(8)


DAMAGES = ["flip", "flip head", "zero", "swap", "copy", "noise", "old"]


def damage(data: bytes, chance: random.Random, *, older: bytes = b"") -> tuple[str, bytes]:
    """Damage one place of a data file, of a page of any kind alike; return what was done, and the file."""
    out = bytearray(data)
    if chance.random() < 0.15:
        length = chance.choice(
            [0, chance.randrange(2 * PAGE), chance.randrange(len(data)), chance.randrange(len(data) // PAGE) * PAGE]
        )
        return "cut", bytes(out[:length])
    by_kind = pages(data)
    kind = chance.choice(sorted(by_kind))
    number = chance.choice(by_kind[kind])
    start = number * PAGE
    what = chance.choice(DAMAGES)
    if what == "flip":
        flip(out, chance, start + chance.randrange(PAGE))
    elif what == "flip head":
        flip(out, chance, start + chance.randrange(160 if kind == "meta" else 64))
    elif what == "zero":
        length = chance.choice([8, 512, PAGE])
        place = chance.randrange(0, PAGE, length)
        out[start + place : start + place + length] = bytes(length)
    elif what in ("swap", "copy"):
        other = chance.randrange(len(data) // PAGE) * PAGE
        out[start : start + PAGE] = data[other : other + PAGE]
        if what == "swap":
            out[other : other + PAGE] = data[start : start + PAGE]
    elif what == "noise":
        length = chance.choice([1, 8, 512])
        place = chance.randrange(0, PAGE, length)
        out[start + place : start + place + length] = chance.randbytes(length)
    elif older[start : start + PAGE]:
        out[start : start + PAGE] = older[start : start + PAGE]
    return f"{what} {kind}", bytes(out)
