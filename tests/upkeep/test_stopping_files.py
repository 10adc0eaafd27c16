"""kill -9 at every call that makes a store, a backup, a copy or a dump, or that loads one: all is there, or none.

A new store is there or made by the next opening; a backup opens complete or not at all, and so does a copy, which is
gone on with; each thread of a dump is loaded whole or not there, and a dump that isn't complete says so. Nothing of
what is copied changes.
"""

from pathlib import Path

import pytest

import deltastore
from deltastore import (
    ChecksumError,
    FormatError,
    InvalidInputError,
    Store,
    StorePathError,
    UnfinishedCopyError,
    check,
    copy_store,
)
from deltastore.log import copying
from deltastore.opening import open_storage
from deltastore.storage import filling
from deltastore.upkeep import copying_rows
from deltastore.upkeep.backup import backup
from deltastore.upkeep.dumping import dump
from deltastore.upkeep.loading import load
from tests.raw import rows_of
from tests.upkeep.copied import moved
from tests.upkeep.many_threads import Told, make, set_clock, told
from tests.upkeep.stopping import STORE, Stops

COPY = "copy.ds"
DUMP = "all.dump"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site with a store of both APIs."""
    site = tmp_path_factory.mktemp("stopping")
    make(site / STORE)
    return site


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "MAX_COPIED_ROWS", 20)
    monkeypatch.setattr(filling, "MAX_BATCH_ROWS", 50)
    monkeypatch.setattr(copying_rows, "MAX_BATCH_ROWS", 30)


@pytest.fixture
def profile(request: pytest.FixtureRequest) -> str:
    found: str = request.config.getoption("--profile")
    return found


def whole(path: Path) -> tuple[dict[bytes, bytes], Told]:
    with deltastore.open(path, sync="none", create=False) as store:
        set_clock(store)
        report = check(store)
        assert report.ok, report.problems
        return rows_of(store.log.storage), told(store)


def make_fresh(site: Path) -> None:
    deltastore.open(site / STORE, snapshot_frequency=3).close()


def test_killed_while_it_is_made_a_store_is_made_by_the_next_opening(tmp_path: Path, profile: str) -> None:
    (tmp_path / "site").mkdir()
    stops = Stops(tmp_path / "site", make_fresh, tmp_path, profile=profile, begin=lambda site: site)
    made: list[bool] = []
    for stop in stops:
        path = stop.site / STORE
        try:
            deltastore.open(path, create=False).close()
            made.append(True)
        except StorePathError:
            made.append(False)
        with deltastore.open(path, sync="none") as store:
            store.thread("t").append({"m": ["first"]})
            report = check(store)
            assert report.ok, report.problems
        assert sorted(found.name for found in path.iterdir()) == ["CURRENT", "env-1"]
        with deltastore.open(path, sync="none", create=False) as store:
            assert store.thread("t").state() == {"m": ["first"]}
    print(stops)
    assert set(made) == {False, True}


def make_backup(store: Store) -> None:
    backup(store, Path(store.log.storage.location).with_name(COPY))


def test_killed_while_it_is_made_a_backup_opens_complete_or_not_at_all(
    original: Path, tmp_path: Path, profile: str
) -> None:
    expected = whole(original / STORE)
    stops = Stops(original, make_backup, tmp_path, profile=profile)
    opened: list[bool] = []
    for stop in stops:
        assert whole(stop.site / STORE) == expected
        copy = stop.site / COPY
        try:
            assert whole(copy) == expected
            opened.append(True)
        except StorePathError:
            opened.append(False)
        if not opened[-1] and copy.exists() and any(copy.iterdir()):
            try:  # without create=False a complete one without CURRENT is found as well
                deltastore.open(copy, sync="none").close()
                assert whole(copy) == expected
            except StorePathError:
                assert [found.name for found in copy.iterdir()] == ["env-1.filling"]
    print(stops)
    assert set(opened) == {False, True}


def make_copy(store: Store) -> None:
    copy_store(store, Path(store.log.storage.location).with_name(COPY))


def test_killed_while_it_is_made_a_copy_opens_as_nothing_and_is_gone_on_with(
    original: Path, tmp_path: Path, profile: str
) -> None:
    rows, told_of = whole(original / STORE)
    expected = (moved(rows), told_of)
    stops = Stops(original, make_copy, tmp_path, profile=profile)
    ends: set[str] = set()
    for place, stop in enumerate(stops):
        assert whole(stop.site / STORE) == (rows, told_of)
        copy = stop.site / COPY
        if not (copy / "CURRENT").exists():
            ends.add("none")
        elif not _rows_at(copy):  # the place was made, and nothing was written there yet
            ends.add("empty")
        else:
            try:
                assert whole(copy) == expected
                ends.add("finished")
                continue
            except UnfinishedCopyError:
                ends.add("unfinished")
        if profile == "quick" and place % 3:
            continue
        with deltastore.open(stop.site / STORE, sync="none") as store:
            make_copy(store)
        assert whole(copy) == expected
    print(stops)
    assert ends == {"none", "empty", "unfinished", "finished"}


def _rows_at(path: Path) -> dict[bytes, bytes]:
    storage = open_storage(path, sync="none")
    found = rows_of(storage)
    storage.close()
    return found


def make_dump(store: Store) -> None:
    dump(store, Path(store.log.storage.location).with_name(DUMP))


def test_killed_while_it_is_made_a_dump_is_complete_or_says_that_it_is_not(
    original: Path, tmp_path: Path, profile: str
) -> None:
    expected = whole(original / STORE)
    stops = Stops(original, make_dump, tmp_path, profile=profile)
    complete: list[bool] = []
    for stop in stops:
        assert whole(stop.site / STORE) == expected
        with deltastore.open(":memory:") as store:
            try:
                load(store, stop.site / DUMP)
                complete.append(True)
                assert told(store) == expected[1]
            except (ChecksumError, FormatError, InvalidInputError):  # cut, empty, missing
                complete.append(False)
                assert told(store).items() <= expected[1].items()
    print(stops)
    assert set(complete) == {False, True}


def load_dump(store: Store) -> None:
    set_clock(store)
    load(store, Path(store.log.storage.location).with_name(DUMP), skip_existing=True)


def test_killed_while_it_is_loaded_each_thread_is_there_whole_or_not_at_all(
    original: Path, tmp_path: Path, profile: str
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    with deltastore.open(original / STORE, sync="none") as store:
        expected = told(store)
        dump(store, site / DUMP)
    deltastore.open(site / STORE).close()
    stops = Stops(site, load_dump, tmp_path, profile=profile)
    loaded: set[int] = set()
    for place, stop in enumerate(stops):
        _, found = whole(stop.site / STORE)
        assert found.items() <= expected.items(), stop
        loaded.add(len(found))
        if profile == "quick" and place % 4:
            continue
        with deltastore.open(stop.site / STORE, sync="none") as store:
            load_dump(store)
            assert told(store) == expected
            set_clock(store, -1)  # what was under way isn't any more
            store.collect()
            report = check(store)
            assert report.ok, report.problems
            assert report.queued_threads == 0
    print(stops)
    assert loaded == set(range(len(expected) + 1))
