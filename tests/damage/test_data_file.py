"""A data file damaged or cut short: typed errors or the right values; and where the engine crashes, check tells.

Reads happen in children, and how these end is counted and printed; docs/reliability.md gives the figures. The seed of
a run is `--hypothesis-seed`.
"""

import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import deltastore
from deltastore import CorruptionError, DeltastoreError, check
from deltastore.storage import datafile
from deltastore.storage.lmdb import LmdbStorage
from tests.damage.files import GONE, PAGE, RIGHT, TYPED, WRONG, Ended, Whole, damage, in_child, look, whole
from tests.upkeep import both_fronts

TRIALS = {"quick": 25, "ci": 3_000, "deep": 50_000}
DATA = Path("env-1", "data.mdb")
ROOT = range(128, 136)
"""Where the number of the root stands in a page that says where everything is."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Whole, bytes]:
    """A store on LMDB, what it gives, and its data file as it was some commits before."""
    path = tmp_path_factory.mktemp("whole") / "store.ds"
    with deltastore.open(path, sync="none", snapshot_frequency=4) as store:
        both_fronts.fill(store)
        older = (path / DATA).read_bytes()
        thread = store.thread("n")
        for number in range(6):
            thread.append({"n": number})
    return path, whole(path), older


@pytest.fixture
def store_of(made: tuple[Path, Whole, bytes], tmp_path: Path) -> Callable[[bytes], Path]:
    """Make a store with this data file."""

    def make(data: bytes) -> Path:
        path = tmp_path / "store.ds"
        if not path.exists():
            shutil.copytree(made[0], path)
        (path / DATA).write_bytes(data)
        (path / "env-1" / "lock.mdb").unlink(missing_ok=True)
        return path

    return make


def worst(ended: Ended) -> str:
    if ended.signal:
        return ended.how
    kinds = {told.partition(":")[0] for told in ended.told.values()}
    return next(kind for kind in (WRONG, GONE, TYPED, RIGHT) if kind in kinds)


def checked(path: Path) -> str:
    try:
        report = check(path)
    except DeltastoreError as error:
        return f"raised {error.code}"
    return "ok" if report.ok else "pages" if report.file_damaged else "rows"


def test_any_place_of_the_file(made, store_of, request: pytest.FixtureRequest) -> None:
    _, before, older = made
    seed = request.config.getoption("--hypothesis-seed")
    reads: Counter[tuple[str, str]] = Counter()
    checks: Counter[str] = Counter()
    for number in range(TRIALS[request.config.getoption("--profile")]):
        what, data = damage(before.data, random.Random(f"{seed} {number}"), older=older)
        path = store_of(data)
        ended = in_child(lambda path=path: look(path, before))
        how = worst(ended)
        assert how != WRONG, (number, what, {key: told for key, told in ended.told.items() if told.startswith(WRONG)})
        reads[what, how] += 1
        verdict = in_child(lambda path=path: checked(path))
        assert not verdict.signal, (number, what, verdict)
        checks[verdict.told] += 1
        if how not in (RIGHT, TYPED):
            assert verdict.told != "ok", (number, what, how)
    for (what, how), times in sorted(reads.items()):
        print(f"{what}: {how} {times}")
    print("reads:", dict(Counter(how for (_, how), times in reads.items() for _ in range(times))))
    print("checks:", dict(checks))


def test_a_file_cut_anywhere_is_refused_or_whole(made, store_of) -> None:
    _, before, _ = made
    for length in range(0, len(before.data), PAGE // 2):
        path = store_of(before.data[:length])
        ended = in_child(lambda path=path: look(path, before))
        assert worst(ended) in (RIGHT, TYPED), (length, ended)
        if length < 2 * PAGE:
            assert worst(ended) == TYPED
            with pytest.raises(CorruptionError, match=r"data\.mdb is "):
                deltastore.open(path, create=False)


def test_bits_of_the_pages_that_say_where_everything_is(made, store_of, request: pytest.FixtureRequest) -> None:
    """Never a crash, and never an older commit in place of the newest. Every 9th bit by default.

    But where the number of the root leads to that of an earlier commit, for pages don't tell which commit they are of.
    There `check` tells.
    """
    _, before, _ = made
    every = 9 if request.config.getoption("--profile") == "quick" else 1
    path = store_of(before.data)
    with deltastore.open(path, create=False) as store:
        latest = repr(store.thread("n").latest())

    def flips() -> dict[str, int]:
        found: Counter[str] = Counter()
        for start in (0, PAGE):
            for bit in range(0, 152 * 8, every):
                data = bytearray(before.data)
                data[start + bit // 8] ^= 1 << bit % 8
                path = store_of(bytes(data))
                try:
                    with deltastore.open(path, create=False, sync="none") as store:
                        same = repr(store.thread("n").latest()) == latest
                        assert same or (bit // 8 in ROOT and not check(store).ok), (start, bit)
                    found["right" if same else "older"] += 1
                except DeltastoreError:
                    found["typed"] += 1
        return found

    ended = in_child(flips)
    assert not ended.signal, ended
    assert ended.told["typed"] > 700 // every, ended


def test_what_commits_leave_is_never_called_damaged(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Also where the last pages were never written, for they are free: LMDB leaves them out."""
    profile = request.config.getoption("--profile")  # by default the same each time, for all kinds must come up
    chance = random.Random(1 if profile == "quick" else request.config.getoption("--hypothesis-seed"))
    path = tmp_path / "store.ds"
    storage = LmdbStorage(path, sync="none")
    short = 0
    for _ in range(TRIALS[request.config.getoption("--profile")] * 8):
        with storage.write() as tx:
            for _ in range(chance.choice([1, 3, 30, 300])):
                key = b"k" + chance.randbytes(chance.choice([1, 8, 30, 200]))
                tx.put(key, bytes(chance.choice([0, 100, 1500, 3000, 9000, 100_000])))
            for _ in range(chance.choice([0, 1, 100, 1000])):
                tx.delete_range(b"k" + chance.randbytes(2), b"l", limit=1)
        assert storage.damaged_places() == []
        datafile.check_openable(path / DATA)
        short += (path / DATA).stat().st_size < (storage.shared.env.info()["last_pgno"] + 1) * PAGE
    assert short
    storage.close()


def test_every_page_zeroed_is_told(made, store_of) -> None:
    _, before, _ = made
    path = store_of(before.data)
    storage = LmdbStorage(path, sync="none")
    used = 0
    with storage.read() as tx:
        for number in range(2, len(before.data) // PAGE):
            data = bytearray(before.data)
            data[number * PAGE : (number + 1) * PAGE] = bytes(PAGE)
            (path / DATA).write_bytes(data)
            found = datafile.damaged_places(path / DATA, tx._txn.id())
            assert found is not None
            used += bool(found)
        (path / DATA).write_bytes(before.data)
        stat = tx._txn.stat()
        assert used >= stat["branch_pages"] + stat["leaf_pages"]
    storage.close()
