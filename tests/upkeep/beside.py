"""Processes that read and write a store while another one compacts and shrinks it; each runs until its input ends.

A writer notes what was acknowledged in a file, before its next put. All print a line for each line they are given, and
fail loudly; nothing waits for a clock.
"""

import hashlib
import json
import os
import random
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltastore
from deltastore import Store

ROOT = Path(__file__).parents[2]


def start(role: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from tests.upkeep import beside; beside.main()", role, *map(str, arguments)]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.fspath(ROOT)},
    )


def ask(process: subprocess.Popen[str], line: str = "go on") -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    process.communicate()
    assert process.returncode == 0


def main() -> None:
    role, path, *rest = sys.argv[1:]
    {"writer": writer, "reader": reader, "idle": idle, "opener": opener, "lister": lister}[role](path, *rest)


def digest(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=12).hexdigest()


def turns() -> Iterator[bool]:
    """Go on until the input ends; True where a line came, which is answered when the turn is over."""
    while True:
        ready, _, _ = select.select([sys.stdin], [], [], 0)
        if ready and not os.read(0, 1 << 10):
            return
        yield bool(ready)
        if ready:
            print("done", flush=True)


def writer(path: str, log: str, seed: str) -> None:
    chance = random.Random(int(seed))
    store = deltastore.open(path, sync="none", snapshot_frequency=5)
    with Path(log).open("a") as noted:
        for asked in turns():
            put(store, chance, noted)
            if asked:
                put(store, chance, noted)


def put(store: Store, chance: random.Random, noted: Any) -> None:
    name = f"t{chance.randrange(4)}"
    thread = store.thread(name)
    if chance.random() < 0.7:
        made = thread.append({"messages": [chance.randrange(10**9), "x" * chance.randrange(300)]})
    else:
        document = "".join(f"line {n} {chance.randrange(3)}\n" for n in range(800))
        made = thread.put_state({"messages": [chance.random()], "doc": document})
    noted.write(json.dumps([name, made.id, digest(thread.state(at=made))]) + "\n")
    noted.flush()


def acknowledged(log: Path) -> list[tuple[str, str, str]]:
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    return [tuple(json.loads(line)) for line in lines if line.endswith("\n")]


def compare(store: Store, log: str, count: int | None) -> None:
    """Compare what was acknowledged, the last ones and some others, or all, with what is read."""
    found = acknowledged(Path(log))
    if count is not None:
        found = [*found[-count:], *random.sample(found, min(count, len(found)))]
    for name, id_, expected in found:
        assert digest(store.thread(name).state(at=id_)) == expected, (name, id_)


def reader(path: str, log: str) -> None:
    store = deltastore.open(path, sync="none")
    for _ in turns():
        compare(store, log, 4)


def idle(path: str, log: str) -> None:
    """Only hold a handle, and look again when asked: first with a read, or first with a write."""
    readers, writers = deltastore.open(path, sync="none"), deltastore.open(path, sync="none")
    compare(readers, log, 4)
    for _ in sys.stdin:
        compare(readers, log, 4)
        made = writers.thread("idle").append({"n": [1]})
        assert readers.thread("idle").state(at=made)["n"][-1] == 1
        assert readers.info().file_bytes
        print("done", flush=True)


def opener(path: str, log: str) -> None:
    for _ in turns():
        with deltastore.open(path, sync="none") as store:
            assert [info.name for info in store.threads(limit=1)]
            assert store.info().file_bytes
            compare(store, log, 1)


def lister(path: str, log: str) -> None:
    """Keep a moment open: a read transaction half read, and lists half listed, when others shrink the store."""
    store = deltastore.open(path, sync="none")
    for _ in sys.stdin:
        with store.log.storage.read() as tx:
            rows = tx.scan(b"", b"\xff" * 8)
            expected = sum(1 for _ in tx.scan(b"", b"\xff" * 8)) - 1
            next(rows)
            listed, history = store.threads(), store.thread("t0").history()
            first, newest = next(listed), next(history)
            print("open", flush=True)
            assert sys.stdin.readline()
            assert sum(1 for _ in rows) == expected
        assert first.name not in [info.name for info in listed]
        assert newest.id not in [found.id for found in history]
        compare(store, log, 4)
        print("done", flush=True)
