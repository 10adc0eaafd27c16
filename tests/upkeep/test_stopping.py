"""kill -9 at every call that a compaction or a shrinking makes of LMDB or of the file system.

Each call that writes, and by default each 5th that reads, has its own child that dies just before it; with
`--profile ci` or `deep` each call without exception. What a child leaves differs only by what was committed: a state
that was looked at already is recognised by its rows and files, and not looked at again.
"""

import shutil
from pathlib import Path

import pytest

import deltastore
from deltastore import check
from deltastore.upkeep.compaction import compact
from deltastore.upkeep.shrinking import shrink
from tests.raw import rows_of
from tests.upkeep import both_fronts
from tests.upkeep.both_fronts import told
from tests.upkeep.stopping import Operation, calls_of, in_child, killed_at, places

OPERATIONS: dict[str, Operation] = {
    "compact": lambda store: compact(store, erase=True, level=1),
    "shrink": shrink,
}


def files(path: Path) -> list[str]:
    return sorted(str(found.relative_to(path)) for found in path.rglob("*"))


@pytest.mark.parametrize("name", OPERATIONS)
def test_killed_anywhere_nothing_is_changed(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    operation, every = OPERATIONS[name], 5 if request.config.getoption("--profile") == "quick" else 1
    original = tmp_path / "original.ds"
    expected = both_fronts.make(original)
    calls = calls_of(original, operation)
    seen: set[object] = set()
    for number in places(calls, every):
        path = tmp_path / "store.ds"
        shutil.copytree(original, path)
        assert killed_at(path, operation, number) == -9, (number, calls[number - 1])
        left = (path / "CURRENT").read_text(), *files(path)
        with deltastore.open(path, sync="none") as store:
            rows = rows_of(store.log.storage)
            state = (left, hash(tuple(rows.items())))
            if state not in seen:
                seen.add(state)
                _look(store, path, expected, operation)
        shutil.rmtree(path)
    print(f"{len(calls)} calls, {len(places(calls, every))} kills, {len(seen)} states")
    assert len(seen) >= 5


def _look(store: deltastore.Store, path: Path, expected: dict[str, str], operation: Operation) -> None:
    report = check(store)
    assert report.ok, report.problems
    assert told(store) == expected
    assert in_child(lambda: _agree(path, expected)) == 0
    operation(store)
    assert told(store) == expected
    report = check(store)
    assert report.ok, report.problems
    assert report.queued_threads == 0
    if operation is shrink:
        assert [found.name for found in path.glob("env-*")] == [(path / "CURRENT").read_text().strip()]
    else:
        assert report.garbage_chunks == 0
        before = rows_of(store.log.storage)
        operation(store)
        assert rows_of(store.log.storage) == before


def _agree(path: Path, expected: dict[str, str]) -> None:
    with deltastore.open(path, sync="none") as store:
        assert told(store) == expected
