"""Stores of formats that were promised open for ever; others are refused, naming both versions."""

import json
import shutil
from pathlib import Path
from typing import Any

import ormsgpack
import pytest

import deltastore
from deltastore import FormatError, Retention, check
from deltastore.log import keys, rows
from deltastore.log.format import FORMAT_VERSION
from tests.formats.telling import REDUCERS, tell
from tests.raw import rows_of

FORMATS = Path(__file__).with_name("formats")
PROMISED = sorted(path.name for path in FORMATS.iterdir() if path.name.isdecimal())
CHANNELS: dict[str, str] = {"messages": "upsert", "facts": "merge", "log": "append", "last": "replace", "sum": "sum"}


@pytest.fixture(params=PROMISED)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a store of a promised format."""
    path = tmp_path / request.param
    shutil.copytree(FORMATS / request.param, path)
    return path


def opened(path: Path) -> Any:
    return deltastore.open(path / "store.ds", channels=CHANNELS, reducers=REDUCERS)


def test_this_format_is_promised() -> None:
    assert str(FORMAT_VERSION) in PROMISED


def test_everything_reads_as_when_it_was_put(old: Path) -> None:
    expected = json.loads((old / "expected.json").read_text())
    with opened(old) as store:
        found = json.loads(json.dumps(tell(store)))
        assert found.keys() == expected.keys()
        for name, thread in expected["threads"].items():
            assert found["threads"][name] == thread, name
        assert found == expected
        assert check(store).ok


def test_it_is_of_all_kinds_of_rows(old: Path) -> None:
    with opened(old) as store:
        found = rows_of(store.log.storage)
    assert {key[6:7] for key in found if key.startswith(keys.STORE)} >= set(map(bytes, zip(b"FHNCKD", strict=True)))
    assert {key[6:7] for key in found if not key.startswith(keys.STORE)} == set(
        map(bytes, zip(b"hknriwtc", strict=True))
    )


def test_it_goes_on_from_there(old: Path) -> None:
    expected = json.loads((old / "expected.json").read_text())
    with opened(old) as store:
        thread = store.thread("small 3")
        before = thread.state()
        thread.append({"messages": [{"id": "9", "role": "user", "content": "years later"}]})
        assert thread.state()["messages"][:-1] == before["messages"]
        thread.delete(thread.latest().id)  # type: ignore[union-attr]
        deltastore.compact(store, level=1)
        deltastore.shrink(store)
    with opened(old) as store:
        assert json.loads(json.dumps(tell(store))) == expected
        deltastore.apply_retention(store, Retention(keep_last=1))
        deltastore.compact(store, level=1, erase=True, dictionary="none")
        assert check(store).ok


def test_a_dump_of_it_loads(old: Path, tmp_path: Path) -> None:
    expected = json.loads((old / "expected.json").read_text())
    with opened(old) as store, deltastore.open(tmp_path / "new.ds", channels=CHANNELS, reducers=REDUCERS) as new:
        deltastore.dump(store, tmp_path / "dump")
        deltastore.load(new, tmp_path / "dump")
        found = json.loads(json.dumps(tell(new)))["threads"]
    assert {name: thread["namespaces"] for name, thread in found.items()} == {
        name: thread["namespaces"] for name, thread in expected["threads"].items()
    }


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (
            [0, b"u" * 16, {}],
            "has format version 0; this release reads version 1. Nothing was changed; dump it with the",
        ),
        (
            [2, b"u" * 16, {}, "more"],
            "has format version 2; this release reads version 1. Nothing was changed; open it w",
        ),
        (
            [1, b"u" * 16, {"features": ["threaded trees"]}],
            "uses threaded trees, which this release doesn't know. Nothi",
        ),
    ],
)
def test_others_are_refused_and_stay_as_they_are(tmp_path: Path, row: list[Any], told: str) -> None:
    path = tmp_path / "store.ds"
    with deltastore.open(path) as store:
        store.thread("t").append({"m": [1]})
        with store.log.storage.write() as tx:
            rows.put(tx, keys.FORMAT, ormsgpack.packb(row))
    before = (path / "env-1" / "data.mdb").read_bytes()
    with pytest.raises(FormatError, match=f"{path} {told}"):
        deltastore.open(path)
    assert (path / "env-1" / "data.mdb").read_bytes() == before
