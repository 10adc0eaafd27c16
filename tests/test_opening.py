"""Opening a store that must be there."""

from pathlib import Path

import pytest

import deltastore
from deltastore import CorruptionError, StorePathError


def test_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(StorePathError, match="doesn't exist"):
        deltastore.open(tmp_path / "none", create=False)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorePathError, match="is a file"):
        deltastore.open(tmp_path / "file", create=False)
    (tmp_path / "dir").mkdir()
    with pytest.raises(StorePathError, match="holds nothing"):
        deltastore.open(tmp_path / "dir", create=False)
    for name in "edcba":
        (tmp_path / "dir" / name).touch()
    with pytest.raises(StorePathError, match="holds a, b, c, …"):
        deltastore.open(tmp_path / "dir", create=False)
    assert len(list((tmp_path / "dir").iterdir())) == 5


def test_a_store_that_lost_its_name_file_is_damaged(tmp_path: Path) -> None:
    deltastore.open(tmp_path / "s").close()
    (tmp_path / "s" / "env-1").rename(tmp_path / "s" / "env-2")
    (tmp_path / "s" / "CURRENT").unlink()
    with pytest.raises(CorruptionError, match="env-2"):
        deltastore.open(tmp_path / "s", create=False)


def test_a_store_that_is_there_is_opened(tmp_path: Path) -> None:
    with deltastore.open(tmp_path / "s") as store:
        store.thread("t").append({"n": 1})
    with deltastore.open(tmp_path / "s", create=False) as store:
        assert store.thread("t").state() == {"n": 1}
    with deltastore.open(":memory:", create=False) as store:
        assert list(store.threads()) == []
