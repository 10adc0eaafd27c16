"""Power cuts: what each sync mode promises, on every kind of file that a disk may be left with.

`full`: every put that returned is there; the one under way wholly or not at all. `meta`: the same, but the last that
returned may be missing. `none`: nothing is promised; what was seen is printed.
"""

import os
import random
import shutil
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import deltastore
from deltastore import CorruptionError, ulid
from deltastore.storage import engine
from deltastore.storage.port import SyncMode
from tests import power_cuts
from tests.power_cuts import (
    META_PAGES,
    OUTCOMES,
    PAGE,
    SECTOR,
    Commit,
    Recording,
    changed,
    outcome,
    page,
    torn,
    with_pages,
)
from tests.raw import rows_of
from tests.upkeep.both_fronts import small_packs
from tests.upkeep.stopping import ended, in_child, started

SEED = 20261129
STEPS = 30
IMAGES = {"quick": 30, "ci": 2_000, "deep": 20_000}
"""Files that each profile tries, of each mode."""


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("power") / "begun.ds"
    deltastore.open(root, snapshot_frequency=5).close()
    return root


def recorded(root: Path, mode: SyncMode, begun: Path) -> Recording:
    with small_packs(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(ulid, "os", SimpleNamespace(urandom=lambda count: b"\7" * count))
        return power_cuts.record(root, mode, power_cuts.steps(SEED, STEPS), begun)


@pytest.fixture(scope="module")
def commits(begun: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Commit]:
    root = tmp_path_factory.mktemp("power") / "full.ds"
    return power_cuts.commits_of(recorded(root, "full", begun), root)


@pytest.fixture(scope="module")
def without_records(begun: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Commit]:
    """Commits with `meta`, which writes none."""
    root = tmp_path_factory.mktemp("power") / "meta.ds"
    return power_cuts.commits_of(recorded(root, "meta", begun), root)


def test_all_modes_write_the_same_pages_but_for_the_records(
    commits: list[Commit], without_records: list[Commit], begun: Path, tmp_path: Path
) -> None:
    files = [commit.file for commit in without_records]
    assert recorded(tmp_path / "none.ds", "none", begun).files == files

    def bare(file: bytes) -> bytes:
        return with_pages(file, {n: page(file, n)[:SECTOR].ljust(PAGE, b"\0") for n in range(META_PAGES)})

    assert [bare(commit.file) for commit in commits] == list(map(bare, files))
    assert all(power_cuts.records(file) == power_cuts.records(files[0]) for file in files)


def test_a_commit_changes_one_sector_of_one_meta_page_in_turns(commits: list[Commit]) -> None:
    """What the files below rest on, watched. What stands behind the other meta page's first sector is its record."""
    metas: list[int] = []
    with_record = 0
    for before, after in pairwise(commits):
        meta = power_cuts.meta_page(before.file, after.file)
        metas.append(meta)
        assert power_cuts.records(before.file)[meta] == power_cuts.records(after.file)[meta]
        has_record = power_cuts.has_record(before.file, after.file)
        assert has_record == (after.flushed != after.file)  # else it was flushed after the commit too
        with_record += has_record
        assert any(number >= META_PAGES for number in changed(before.file, after.file))
    assert all(one != other for one, other in pairwise(metas))
    reused = sum(
        number * PAGE < len(before.file)
        for before, after in pairwise(commits)
        for number in changed(before.file, after.file)
        if number >= META_PAGES
    )
    print(f"{len(commits)} commits, {with_record} with a record, {reused} pages used again")
    assert reused > len(commits)
    assert 0 < with_record < len(commits) - 1


def test_a_commit_writes_to_no_page_of_the_last_two(commits: list[Commit], tmp_path: Path) -> None:
    """With the meta pages of two commits ago the file holds what it held then, whatever was written to it since."""

    def read_all() -> None:
        for number in range(len(commits) - 2):
            earlier, later = commits[number], commits[number + 2]
            root = tmp_path / f"{number}.ds"
            power_cuts.write_store(root, with_pages(later.file, {n: page(earlier.file, n) for n in range(META_PAGES)}))
            with deltastore.open(root, sync="none") as store:
                assert rows_of(store.log.storage) == earlier.rows, number

    assert in_child(read_all) == 0


# Uniform over all commits and pages; the seed is Hypothesis's, which prints it with a failure.
chances = st.randoms(use_true_random=True)


def written(chance: random.Random, before: bytes, after: bytes, numbers: list[int]) -> bytes:
    """Return the file before, with some sectors of these pages as they are after."""
    pages: dict[int, bytes] = {}
    for number in numbers:
        mask = chance.choice([0, 255, chance.randrange(256)])
        pages[number] = torn(page(before, number), page(after, number), mask)
    return with_pages(before, {number: content for number, content in pages.items() if chance.random() < 0.8})


def images(request: pytest.FixtureRequest) -> settings:
    return settings(
        max_examples=IMAGES[request.config.getoption("--profile")],
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def test_full_keeps_every_commit_that_returned(
    commits: list[Commit], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seen: Counter[str] = Counter()

    @images(request)
    @given(chances)
    def cut(chance: random.Random) -> None:
        now = chance.randrange(len(commits) - 1)
        before, after = commits[now], commits[now + 1]
        # What its first flush takes along, whatever of it was there before: the name of the last commit too.
        first = power_cuts.without_its_name(before.file, after.file)
        if chance.random() < 0.5:
            stage = "under way"
            file = written(chance, before.flushed, first, changed(before.flushed, first))
            allowed = [before.key, after.key]  # the latter where its record is whole
        else:
            stage = "returned"
            file, allowed = after.flushed, [after.key]
            if chance.random() < 0.3:  # the system may flush at any time
                file = after.file
        found = outcome(tmp_path / "image.ds", file, allowed, go_on=True)
        assert found == OUTCOMES[power_cuts.FINE], f"commit {now}, {stage}"
        seen[f"{stage}, {'its name lost' if file == after.flushed != after.file else 'and so on'}"] += 1

    cut()
    print(f"full: {dict(seen)}")


def test_meta_loses_no_more_than_the_last_commit_that_returned(
    without_records: list[Commit], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seen: Counter[str] = Counter()

    @images(request)
    @given(chances)
    def cut(chance: random.Random) -> None:
        now = chance.randrange(1, len(without_records) - 1)
        earlier, last, after = without_records[now - 1 : now + 2]
        meta = power_cuts.meta_page(earlier.file, last.file)
        is_lost = chance.random() < 0.6
        # The last commit's pages were flushed before its meta page was written, which the next flush takes along.
        file = with_pages(last.file, {meta: page(earlier.file, meta)}) if is_lost else last.file
        if chance.random() < 0.8:  # the next one was under way
            numbers = [number for number in changed(last.file, after.file) if number >= META_PAGES]
            file = written(chance, file, with_pages(file, {n: page(after.file, n) for n in numbers}), numbers)
        expected = earlier if is_lost else last
        found = outcome(tmp_path / "image.ds", file, [expected.key], go_on=True)
        assert found == OUTCOMES[power_cuts.FINE], f"commit {now}, the last one lost: {is_lost}"
        seen["the last one lost" if is_lost else "nothing lost"] += 1

    cut()
    print(f"meta: {dict(seen)}")


def test_none_promises_nothing(without_records: list[Commit], tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Of up to eight commits since a flush, each page is there as any of them left it; what comes of it is counted.

    That some of it isn't fine shows as well that the images above would tell a wrong order of writing.
    """
    seen: Counter[str] = Counter()
    known = [commit.key for commit in without_records]

    @images(request)
    @given(chances)
    def cut(chance: random.Random) -> None:
        flushed = chance.randrange(len(without_records) - 1)
        since = without_records[flushed : flushed + 1 + chance.randint(1, 8)]
        numbers = {number for one, other in pairwise(since) for number in changed(one.file, other.file)}
        pages = {number: page(chance.choice(since).file, number) for number in sorted(numbers)}
        found = outcome(tmp_path / "image.ds", with_pages(since[0].file, pages), known, go_on=False)
        seen[found] += 1
        assert found != OUTCOMES[power_cuts.OTHER]

    cut()
    print(f"none: {dict(seen)}")
    assert seen.total() > seen[OUTCOMES[power_cuts.FINE]]


@pytest.mark.parametrize("current", [None, b"", b"env-1\n"])
def test_a_store_cut_off_while_it_was_made_is_made_by_the_next_opening(current: bytes | None, tmp_path: Path) -> None:
    """Before `CURRENT` is there any sectors of the first two pages may be, and the file may be shorter."""
    (tmp_path / "fresh").mkdir()
    engine.open_environment(tmp_path / "fresh", 1 << 20, "none", forked=False).close()
    whole = (tmp_path / "fresh" / power_cuts.DATA_FILE.name).read_bytes()
    assert len(whole) == META_PAGES * PAGE
    root = tmp_path / "store.ds"
    for first in (True, False):
        for second in (True, False):
            pages = (whole[:PAGE] if first else bytes(PAGE)) + (whole[PAGE:] if second else bytes(PAGE))
            for length in (0, SECTOR, PAGE, PAGE + SECTOR, META_PAGES * PAGE):
                (root / power_cuts.DATA_FILE.parent).mkdir(parents=True)
                (root / power_cuts.DATA_FILE).write_bytes(pages[:length])
                if current is not None:
                    (root / "CURRENT.tmp").write_bytes(current)
                with deltastore.open(root, sync="none") as store:
                    store.thread("t").append({"m": ["first"]})
                    assert deltastore.check(store).ok
                with deltastore.open(root, sync="none", create=False) as store:
                    assert store.thread("t").state() == {"m": ["first"]}
                shutil.rmtree(root)


def test_damaged_data_that_nothing_names_stays(commits: list[Commit], tmp_path: Path) -> None:
    root = tmp_path / "store.ds"
    file = bytes(META_PAGES * PAGE) + commits[-1].file[META_PAGES * PAGE :]
    power_cuts.write_store(root, file)
    (root / "CURRENT").unlink()
    with pytest.raises(CorruptionError, match="restore the store from a backup"):
        deltastore.open(root)
    assert (root / power_cuts.DATA_FILE).read_bytes() == file


def test_processes_that_make_the_same_store_anew_end_with_one(tmp_path: Path) -> None:
    root = tmp_path / "store.ds"
    power_cuts.write_store(root, bytes(META_PAGES * PAGE))
    (root / "CURRENT").unlink()
    ready, go = os.pipe()

    def append(name: str) -> None:
        os.read(ready, 1)  # all begin when the pipe is closed
        with deltastore.open(root, sync="none") as store:
            store.thread(name).append({"m": [name]})

    names = [f"process {number}" for number in range(4)]
    children = [started(lambda name=name: append(name), closing=go) for name in names]
    os.close(go)
    assert [ended(child) for child in children] == [0] * len(names)
    os.close(ready)
    with deltastore.open(root) as store:
        assert sorted(info.name for info in store.threads()) == names
        assert deltastore.check(store).ok
