"""kill -9 at every call that a compaction or a shrinking makes of LMDB or of the file system: nothing is changed.

What death at each call leaves is looked at always; with `--profile ci` or `deep` a child is really killed at each.
A state that was looked at already is recognised by its rows and files, and not looked at again.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

import deltastore
from deltastore import Store, check
from deltastore.codec import chunkrow
from deltastore.codec.primitives import unseal
from deltastore.log import keys
from deltastore.log.listing import readable_threads
from deltastore.upkeep.compaction import compact
from deltastore.upkeep.shrinking import shrink
from tests.raw import everything, rows_of
from tests.upkeep import both_fronts, test_dictionaries, test_rebasing
from tests.upkeep.stopping import STORE, Operation, Stops, in_child

Tell = Callable[[Store], object]


def _make_both(path: Path) -> Tell:
    both_fronts.make(path)
    return both_fronts.told


def _make_versions(path: Path) -> Tell:
    """Make many threads for a dictionary to be trained on, and versions of documents to be re-based."""
    with deltastore.open(path, sync="none") as store:
        test_dictionaries.fill(store, threads=9, steps=2)
        test_rebasing.put_versions(store, 9)
    return everything


def compacted(store: Store) -> None:
    compact(store, erase=True, level=1)


OPERATIONS: dict[str, tuple[Callable[[Path], Tell], Operation]] = {
    "compact": (_make_both, compacted),
    "compact with a dictionary": (_make_versions, compacted),
    "shrink": (_make_both, shrink),
}


def files(path: Path) -> list[str]:
    return sorted(str(found.relative_to(path)) for found in path.rglob("*"))


@pytest.mark.parametrize("name", OPERATIONS)
def test_killed_anywhere_nothing_is_changed(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    make, operation = OPERATIONS[name]
    site = tmp_path / "site"
    site.mkdir()
    tell = make(site / STORE)
    with deltastore.open(site / STORE, sync="none") as store:
        expected = tell(store)
    seen: set[object] = set()
    whole: set[int] = set()  # rows that check and the model agree with
    shared: set[object] = set()  # files that two processes at once agree on
    finals: set[int] = set()  # rows that running it again leaves as they are
    stops = Stops(site, operation, tmp_path, profile=request.config.getoption("--profile"))
    for stop in stops:
        path = stop.site / STORE
        left = (path / "CURRENT").read_text(), *files(path)
        with deltastore.open(path, sync="none") as store:
            state = (left, _rows(store))
            if state in seen:
                continue
            seen.add(state)
            _look(store, tell, expected, whole)
            if left not in shared:
                shared.add(left)
                assert in_child(lambda path=path: _agree(path, tell, expected)) == 0
            operation(store)
            _look(store, tell, expected, whole)
            if operation is shrink:
                assert [found.name for found in path.glob("env-*")] == [(path / "CURRENT").read_text().strip()]
            elif (final := _rows(store)) not in finals:
                report = check(store)
                assert (report.garbage_chunks, report.queued_threads) == (0, 0)
                operation(store)
                assert _rows(store) == final
                finals.add(final)
    print(f"{name}: {stops}, {len(seen)} states")
    assert len(seen) >= 5


def _rows(store: Store) -> int:
    return hash(tuple(rows_of(store.log.storage).items()))


def _look(store: Store, tell: Tell, expected: object, whole: set[int]) -> None:
    found = _rows(store)
    if found not in whole:
        report = check(store)
        assert report.ok, report.problems
        assert tell(store) == expected
        whole.add(found)


def _agree(path: Path, tell: Tell, expected: object) -> None:
    with deltastore.open(path, sync="none") as store:
        assert tell(store) == expected


def test_the_store_with_versions_trains_a_dictionary_and_is_based_anew(tmp_path: Path) -> None:
    _make_versions(tmp_path / STORE)
    with deltastore.open(tmp_path / STORE, sync="none") as store:
        (number,) = {row.number for row in readable_threads(store.log.storage) if row.name == "t"}
        before = _bases(store, number)
        compacted(store)
        assert test_dictionaries.needed(store)
        assert max(before) == 8
        assert 0 < max(_bases(store, number)) < 8


def _bases(store: Store, thread: int) -> list[int]:
    """Return how many others each chunk of a thread stands on, where it isn't whole."""
    prefix = keys.chunks(thread, 0)
    out: list[int] = []
    for key, sealed in rows_of(store.log.storage).items():
        if key.startswith(prefix):
            head = chunkrow.decode_head(unseal(key, sealed), int.from_bytes(key[-keys.NUMBER_BYTES :], "big"))
            out += [len(based.bases) for based in head.based.values()]
    return out
