"""An input/output error, or no room, at each call of LMDB and of the file system: typed, and nothing is left half.

The error is raised in place of the call, in a forked child; the same handle must then read what was there before or
what came after, and write again. By default at a few calls of each operation; with `--profile ci` at each that
writes and some that read, with `deep` at each.
"""

import errno
import io
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest

import deltastore
from deltastore import DeltastoreError, Retention, Store, check
from tests.damage.files import in_child
from tests.upkeep import both_fronts
from tests.upkeep.both_fronts import small_packs, told
from tests.upkeep.stopping import FILE_CALLS, counted

EVERY = {"quick": 400, "ci": 7, "deep": 1}
"""Of the calls that read."""
QUICK = 2
"""Calls of an operation that fail by default, spread over all."""


def beside(store: Store) -> Path:
    """Return a path for another store that isn't there yet."""
    path = Path(store.info().location)
    return path.with_name(f"beside-{len(list(path.parent.glob('beside-*')))}")


def put(store: Store) -> None:
    with small_packs():
        made = store.thread("n").append({"messages": ["new"], "unheard of": 1})
        store.thread("n").put_writes(made, {"messages": ["w"]})


def backup(store: Store) -> None:
    deltastore.backup(store, beside(store))


def load(store: Store) -> None:
    out = io.BytesIO()
    deltastore.dump(store, out, threads=["docs"])
    out.seek(0)
    deltastore.load(store, out, rename={"docs": "loaded"})


def reopen(store: Store) -> None:
    """Open a second handle, made anew, beside the first."""
    with deltastore.open(beside(store)) as other:
        other.thread("t").append({"n": 1})


OPERATIONS: dict[str, Callable[[Store], object]] = {
    "put": put,
    "delete": lambda store: store.thread("n").delete(list(store.thread("n").history())[3]),
    "delete thread": lambda store: store.delete("docs"),
    "collect": lambda store: store.collect(),
    "copy": lambda store: store.copy("docs", "copied"),
    "retain": lambda store: deltastore.apply_retention(store, Retention(keep_last=3)),
    "compact": lambda store: deltastore.compact(store, erase=True, level=1),
    "shrink": deltastore.shrink,
    "backup": backup,
    "load": load,
    "check": check,
    "read": told,
    "make": reopen,
}


def failure(call: str, number: int) -> Exception:
    """Return what a call raises whose device fails; of each kind in turn."""
    code = (errno.EIO, errno.ENOSPC)[number % 2]
    if call in FILE_CALLS:
        return OSError(code, "a failing device")
    error = lmdb.Error("mdb: a failing device")
    error.code = code  # type: ignore[attr-defined]
    return error


def failed_at(path: Path, operation: Callable[[Store], object], number: int) -> dict[str, Any]:
    """Run an operation whose call of this number fails; look at the store through the same handle."""
    left: list[int] = []

    def count(call: str) -> None:
        if left:
            left[0] -= 1
            if left[0] == 0:
                raise failure(call, number)

    counted(count)
    store = deltastore.open(path, sync="none")
    before = told(store)
    left.append(number)
    try:
        operation(store)
        raised = ""
    except DeltastoreError as error:
        raised = error.code
    except BaseException as error:  # noqa: BLE001 - that is what is looked for
        raised = f"untyped {error!r} {traceback.format_exc()[-1500:]}"
    left.clear()
    found: dict[str, Any] = {"raised": raised}
    after = told(store) if "docs" in [info.name for info in store.threads()] else before
    found["kept"] = sum(after.get(key) == value for key, value in before.items()) / len(before)
    found["problems"] = [problem.what for problem in check(store).problems]
    if raised in ("storage", "store-full"):
        operation(store)
    store.thread("n").append({"messages": ["after"]})
    found["problems"] += [problem.what for problem in check(store).problems]
    store.close()
    return found


WRITING = {"write begin", "put", "delete", "commit", "putmulti", "sync", *FILE_CALLS}


def calls_of(path: Path, operation: Callable[[Store], object]) -> list[str]:
    """Return the calls that an operation makes of a copy of a store, once the store is open."""
    copy = path.with_name("dry.ds")
    shutil.copytree(path, copy)

    def work() -> dict[str, Any]:
        made: list[str] = []
        counted(made.append)
        store = deltastore.open(copy, sync="none")
        made.clear()
        operation(store)
        return {"calls": list(made)}

    ended = in_child(work)
    shutil.rmtree(copy)
    for other in path.parent.glob("beside-*"):
        shutil.rmtree(other)
    return list(ended.told["calls"])


def places(calls: list[str], every: int) -> list[int]:
    """Return the numbers of all calls that write, and of each `every`th that reads."""
    return [number for number, call in enumerate(calls, 1) if call in WRITING or number % every == 0]


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_failing_call_is_a_typed_error(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    operation = OPERATIONS[name]
    original = tmp_path / "original.ds"
    both_fronts.make(original)
    calls = calls_of(original, operation)
    profile = request.config.getoption("--profile")
    numbers = places(calls, EVERY[profile])
    if profile == "quick":
        numbers = numbers[:: -(-len(numbers) // QUICK) or 1] + numbers[-1:]
    codes: dict[str, int] = {}
    for number in numbers:
        path = tmp_path / "store.ds"
        shutil.copytree(original, path)
        ended = in_child(lambda path=path, number=number: failed_at(path, operation, number))
        for found in (path, *tmp_path.glob("beside-*")):
            shutil.rmtree(found)
        where = (name, number, calls[number - 1], ended)
        assert not ended.signal, where
        assert not ended.told["raised"].startswith("untyped"), where
        assert ended.told["problems"] == [], where
        codes[ended.told["raised"]] = codes.get(ended.told["raised"], 0) + 1
        if name not in ("delete", "retain", "put"):
            assert ended.told["kept"] == 1, where
    print(f"{name}: {len(calls)} calls, {len(numbers)} of them failing, {codes}")
