"""What a power cut may leave of a store's data file, made of what the file was after each commit.

The order of writing, which `test_power_cuts.py` watches: with `full` a record of what is about to change is written
after the first sector of the meta page of the commit before, where it has room; LMDB's commit writes its data pages,
which are never pages that the last two commits use; flushes the file (`full` and `meta`); writes 120 bytes within the
first sector of the other meta page, they take turns; with `full`, where there was no room for a record, the file is
flushed once more. The disk, as assumed here: what was flushed is there; of what was written since, any sectors are
there and others not, in any order; a sector of 512 bytes is there whole or not at all.
"""

import faulthandler
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import deltastore
from deltastore import DeltastoreError, Store, check
from deltastore.langgraph import DeltaSaver
from deltastore.storage import engine
from deltastore.storage.port import SyncMode
from tests.langgraph.deleting import put, say
from tests.raw import rows_of
from tests.upkeep.many_threads import Told, set_clock, told
from tests.upkeep.stopping import Environment, in_child

PAGE, SECTOR, META_PAGES = 4096, 512, 2
DATA_FILE = Path("env-1", "data.mdb")

Step = Callable[[Store], object]


def page(file: bytes, number: int) -> bytes:
    """Return a page of a file; zeros where it ends before."""
    return file[number * PAGE : (number + 1) * PAGE].ljust(PAGE, b"\0")


def changed(before: bytes, after: bytes) -> list[int]:
    """Return the pages in which two states of a file differ."""
    return [number for number in range(len(after) // PAGE) if page(before, number) != page(after, number)]


def with_pages(file: bytes, pages: Mapping[int, bytes]) -> bytes:
    """Return a file with other pages, long enough for them."""
    out = bytearray(file)
    for number, content in pages.items():
        out.extend(bytes(max(0, (number + 1) * PAGE - len(out))))
        out[number * PAGE : (number + 1) * PAGE] = content
    return bytes(out)


def torn(before: bytes, after: bytes, mask: int) -> bytes:
    """Return a page of which the sectors in the mask were written, and the others not."""
    return b"".join(
        (after if mask >> number & 1 else before)[number * SECTOR : (number + 1) * SECTOR]
        for number in range(PAGE // SECTOR)
    )


def meta_page(before: bytes, after: bytes) -> int:
    """Return the number of the page that names a commit."""
    (found,) = [number for number in range(META_PAGES) if page(before, number)[:SECTOR] != page(after, number)[:SECTOR]]
    return found


def records(file: bytes) -> list[bytes]:
    """Return what stands in the two places for records."""
    return [page(file, number)[SECTOR:] for number in range(META_PAGES)]


def has_record(before: bytes, after: bytes) -> bool:
    """Tell whether a commit wrote a record, which begins with its number."""
    place = 1 - meta_page(before, after)
    return records(before)[place] != records(after)[place] and any(records(after)[place][:8])


@dataclass(frozen=True)
class Commit:
    """One commit of the workload: the file after it, its rows, and what the store tells then.

    `flushed`: what of the file is there for certain once the commit returned. All of it but the meta page's first
    sector, or all of it where it was flushed after the commit too.
    """

    file: bytes
    flushed: bytes
    rows: dict[bytes, bytes]
    told: Told

    @property
    def key(self) -> int:
        return hash(tuple(self.rows.items()))


def steps(seed: int, count: int) -> list[Step]:
    """Return a mix of puts, writes, forks, deletions, copies and compactions, in both APIs."""
    chance = random.Random(seed)
    out: list[Step] = []
    parent: str | None = None

    def text() -> str:
        return chance.randbytes(chance.choice([20, 400, 6000])).hex()

    for number in range(count):
        what = chance.choice("aaaasssswwdfpct") if number > 4 else "as"[number % 2]
        if what == "a":
            writes = {"messages": [text()], "n": number}
            out.append(lambda store, writes=writes: store.thread("n").append(writes))
        elif what == "s":
            id_, value = f"{number:03}", text()
            out.append(lambda store, i=id_, p=parent, v=value: put(DeltaSaver(store), i, p, thread="g", value=v))
            parent = id_
        elif what == "w":
            id_, value = parent or "", text()
            out.append(lambda store, i=id_, v=value: say(DeltaSaver(store), i, v, thread="g"))
        elif what == "d":
            place = chance.randrange(3)
            out.append(lambda store, place=place: store.thread("n").delete(list(store.thread("n").history())[place]))
        elif what == "f":
            value = text()
            out.append(
                lambda store, value=value: store.thread("n").append(
                    {"messages": [value]}, at=list(store.thread("n").history())[-1]
                )
            )
        elif what == "p":
            out.append(lambda store: DeltaSaver(store).prune(["g"]))
        elif what == "c":
            out.append(lambda store: deltastore.compact(store, erase=True, level=1))
        else:
            name = f"copy {number % 2}"
            out.append(lambda store, name=name: store.delete(name) or store.copy("n", name))
    return out


@dataclass(frozen=True)
class Recording:
    """The file after each commit, whether it was flushed then, the number of the step it was noted in, and what the
    store told after each step.
    """

    files: list[bytes]
    flushed: list[bool]
    steps: list[int]
    told: list[Told]


def record(root: Path, mode: SyncMode, work: Sequence[Step], begun: Path) -> Recording:
    """Do the steps on a copy of a store. A file is noted before the next write transaction, and at the end."""
    files: list[bytes] = []
    flushed: list[bool] = []
    told_after: list[Told] = []
    steps_of: list[int] = []
    was_flushed = True

    def note() -> None:
        found = (root / DATA_FILE).read_bytes()
        if not files or found != files[-1]:
            files.append(found)
            flushed.append(was_flushed)
            steps_of.append(len(told_after))

    def called(call: str) -> None:
        nonlocal was_flushed
        if call == "write begin":
            note()
        elif call in ("commit", "sync"):
            was_flushed = call == "sync"

    write_store(root, (begun / DATA_FILE).read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        inner = engine.open_environment
        patch.setattr(
            engine,
            "open_environment",
            lambda *a, **o: Environment(inner(*a, **o), called),
        )
        with deltastore.open(root, sync=mode) as store:
            set_clock(store)
            told_after.append(told(store))
            for step in work:
                step(store)
                told_after.append(told(store))
            note()
    return Recording(files, flushed, steps_of, told_after)


def commits_of(recording: Recording, root: Path) -> list[Commit]:
    """Return the commits of a recording; each opens as the store was before or after the step that it belongs to."""
    out: list[Commit] = []
    told_after = recording.told
    files = recording.files
    for number, (file, was_flushed, step_number) in enumerate(
        zip(files, recording.flushed, recording.steps, strict=True)
    ):
        copy = root.with_name(f"{root.name} {number}")
        write_store(copy, file)
        with deltastore.open(copy, sync="none") as store:
            set_clock(store)
            certain = file if was_flushed or not number else without_its_name(files[number - 1], file)
            found = Commit(file, certain, rows_of(store.log.storage), told(store))
        # noted before the next commit of a step: as the step before left it, or as this one does
        assert found.told in told_after[max(0, step_number - 1) : step_number + 1]
        out.append(found)
    assert out[-1].told == told_after[-1]
    return out


def without_its_name(before: bytes, after: bytes) -> bytes:
    """Return the file after a commit, but for the sector that names it, which is as it was before."""
    meta = meta_page(before, after)
    return with_pages(after, {meta: page(before, meta)[:SECTOR] + page(after, meta)[SECTOR:]})


def write_store(root: Path, file: bytes) -> None:
    """Make the directory of a store whose data file is this."""
    (root / DATA_FILE.parent).mkdir(parents=True, exist_ok=True)
    (root / "CURRENT").write_text("env-1\n")
    (root / DATA_FILE).write_bytes(file)
    (root / DATA_FILE.parent / "lock.mdb").unlink(missing_ok=True)


FINE, TYPED, REPORTED, WRONG, OTHER = 0, 10, 11, 12, 13
OUTCOMES = {
    FINE: "a commit's content",
    TYPED: "typed error",
    REPORTED: "reported by check",
    WRONG: "silently wrong",
    OTHER: "another error",
}


def outcome(root: Path, file: bytes, allowed: Sequence[int], *, go_on: bool) -> str:
    """Open such a file in a child, for damage can end a process; tell what came of it.

    `allowed`: the keys of the commits that its rows may be. `go_on`: put to it too, and look again.
    """
    write_store(root, file)

    def work() -> None:
        faulthandler.disable()  # it may end by a signal, and shall do so without a word
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os._exit(_look(root, set(allowed), go_on))

    code = in_child(work)
    return OUTCOMES.get(code, f"ended by signal {-code}")


def _look(root: Path, allowed: set[int], go_on: bool) -> int:
    try:
        with deltastore.open(root, sync="none") as store:
            set_clock(store)
            report = check(store)
            if not report.ok:
                return REPORTED
            told(store)
            if hash(tuple(rows_of(store.log.storage).items())) not in allowed:
                return WRONG
            if go_on:
                for number in range(3):  # pages that are taken for free get written
                    thread = store.thread("goes on")
                    thread.append({"messages": ["goes on" * 2000]})
                    if len(thread.state()["messages"]) != number + 1:
                        return WRONG
                if not check(store).ok:
                    return REPORTED
            return FINE
    except DeltastoreError:
        return TYPED
    except Exception:  # noqa: BLE001 - it is what the test asks about
        return OTHER
