"""An environment filled from ordered rows is complete and full of rows, or isn't there."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deltastore.errors import InvalidInputError, StorageError, StorePathError
from deltastore.storage import Row, environment, filling
from deltastore.storage.filling import UNFINISHED, Filled, fill, prepare_empty
from deltastore.storage.lmdb import LmdbStorage

EVERYTHING = (b"", b"\xff" * 8)


def rows(count: int, size: int = 100) -> list[Row]:
    return [(number.to_bytes(6, "big") + b"k", bytes([number % 251]) * size) for number in range(1, count + 1)]


def stored(root: Path) -> list[Row]:
    storage = LmdbStorage(root)
    try:
        with storage.read() as tx:
            return list(tx.scan(*EVERYTHING))
    finally:
        storage.close()


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "store.ds"
    path.mkdir()
    return path


@pytest.mark.parametrize("count", [0, 1, 5000])
def test_what_is_filled_opens_as_a_store(root: Path, count: int) -> None:
    given = rows(count)
    assert fill(root / "env-1", iter(given)) == Filled(count, count * 107)
    assert names(root) == ["env-1"]
    assert stored(root) == given
    assert names(root) == ["CURRENT", "env-1"]


def test_pages_are_full(root: Path, tmp_path: Path) -> None:
    given = rows(5000)
    fill(root / "env-1", given)
    grown = LmdbStorage(tmp_path / "grown.ds", sync="none")
    for row in sorted(given, key=lambda row: row[1]):  # not in the order of keys
        with grown.write() as tx:
            tx.put(*row)
    filled = LmdbStorage(root)
    plain = sum(len(key) + len(value) for key, value in given)
    assert filled.info().used_bytes < plain * 1.2 < grown.info().used_bytes
    assert filled.info().file_bytes < plain * 1.3
    filled.close()
    grown.close()


def test_many_transactions_make_one_environment(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling, "MAX_BATCH_BYTES", 1000)
    given = rows(500, 300)
    fill(root / "env-1", given)
    assert stored(root) == given


def test_the_map_grows_on_the_way(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "RESERVED_MAP_BYTES", 1 << 18)
    monkeypatch.setattr(filling, "MAX_BATCH_BYTES", 1 << 16)
    given = rows(3000, 1000)
    fill(root / "env-1", given)
    assert stored(root) == given


@pytest.mark.parametrize("wrong", [[(b"b", b""), (b"a", b"")], [(b"a", b"1"), (b"a", b"2")]])
def test_rows_out_of_order_leave_nothing(root: Path, wrong: list[Row]) -> None:
    with pytest.raises(InvalidInputError, match="ascending"):
        fill(root / "env-1", wrong)
    assert names(root) == []


def test_a_source_that_fails_leaves_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling, "MAX_BATCH_BYTES", 1000)

    def failing() -> Iterator[Row]:
        yield from rows(100)
        assert names(root) == ["env-1" + UNFINISHED]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fill(root / "env-1", failing())
    assert names(root) == []
    fill(root / "env-1", rows(3))
    assert stored(root) == rows(3)


def test_lost_rows_are_noticed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append = filling._append
    monkeypatch.setattr(filling, "_append", lambda shared, batch: append(shared, batch[:-1]))
    with pytest.raises(StorageError, match="holds 2 rows where 3"):
        fill(root / "env-1", rows(3))
    assert names(root) == []


def test_two_that_fill_the_same_don_t_meet(root: Path) -> None:
    def meeting() -> Iterator[Row]:
        with pytest.raises(StorePathError, match="can't be filled"):
            fill(root / "env-1", rows(1))
        yield from rows(2)

    fill(root / "env-1", meeting())
    assert stored(root) == rows(2)


def test_what_others_made_meanwhile_stays(root: Path) -> None:
    def overtaken() -> Iterator[Row]:
        (root / "env-1").mkdir()
        (root / "env-1" / "data.mdb").write_bytes(b"theirs")
        yield from rows(2)

    with pytest.raises(StorePathError, match="meanwhile"):
        fill(root / "env-1", overtaken())
    assert names(root) == ["env-1"]
    assert (root / "env-1" / "data.mdb").read_bytes() == b"theirs"


def test_only_an_empty_directory_is_prepared(tmp_path: Path) -> None:
    assert prepare_empty(tmp_path / "new")
    assert not prepare_empty(tmp_path / "new")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorePathError, match="expected a directory"):
        prepare_empty(tmp_path / "file")
    with pytest.raises(StorePathError, match="parent"):
        prepare_empty(tmp_path / "missing" / "store")
    with pytest.raises(StorePathError, match="holds file, new"):
        prepare_empty(tmp_path)
