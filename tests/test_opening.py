"""Opening a store that must be there."""

from pathlib import Path
from typing import Any

import pytest

import deltastore
from deltastore import CorruptionError, InvalidInputError, StorePathError


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


@pytest.mark.parametrize(
    ("path", "error", "text"),
    [
        ("", StorePathError, "unset variable"),
        ("file:x", StorePathError, "postgresql://"),
        ("mysql://a/b", StorePathError, "postgresql://"),
        ("~nobody/x.ds", StorePathError, "expanduser"),
        (None, InvalidInputError, "NoneType"),
        (5, InvalidInputError, "int"),
        (b"x.ds", InvalidInputError, "bytes"),
    ],
)
def test_what_is_no_path_makes_nothing(
    path: Any, error: type[Exception], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for create in (True, False):
        with pytest.raises(error, match=text):
            deltastore.open(path, create=create)
    with pytest.raises(error, match=text):
        deltastore.check(path)
    assert list(tmp_path.iterdir()) == []


def test_the_current_directory_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    deltastore.open(Path()).close()
    deltastore.open(".", create=False).close()


@pytest.mark.parametrize("sizes", [{"cache_bytes": "a"}, {"cache_bytes": -1}, {"max_bytes": "5M"}])
def test_what_is_no_size_makes_nothing(sizes: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=f"{next(iter(sizes))} is .*; expected a number of bytes"):
        deltastore.open(tmp_path / "s", **sizes)
    assert list(tmp_path.iterdir()) == []
