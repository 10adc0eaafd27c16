"""A store copied to a PostgreSQL server and back: the same rows, however often it was cut short."""

import random
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

import deltastore
from deltastore import Store, StorePathError, UnfinishedCopyError, check, copy_store, plan_copy
from deltastore.cli import main
from deltastore.log import keys
from deltastore.opening import open_storage
from deltastore.storage.memory import MemoryStorage
from deltastore.storage.port import Storage
from tests.raw import rows_of
from tests.storage.watching import Killed, Watched
from tests.upkeep.copied import Rows, in_memory, moved, rows_and_bytes
from tests.upkeep.many_threads import set_clock, told

CALLS = 1_200
"""About the storage calls of a whole copy."""
KILLS = 8


def without_counters(rows: Rows) -> Rows:
    """Return rows as any storage keeps them: counters are its own."""
    return {key: row for key, row in rows.items() if not key.startswith(keys.COUNTERS)}


def killing(number: int) -> Callable[[object], None]:
    """Return what kills at a storage call."""
    left = number

    def before(_: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise Killed

    return before


@pytest.mark.usefixtures("small_steps")
def test_a_store_goes_there_and_back(original_rows: Rows, postgres_url: str, tmp_path: Path) -> None:
    source = Store(in_memory(original_rows))
    set_clock(source)
    copy_store(source, postgres_url, finish=False)
    with pytest.raises(UnfinishedCopyError):
        deltastore.open(postgres_url)
    assert plan_copy(source, postgres_url).resumes
    report = copy_store(source, postgres_url)
    assert (report.rows, report.bytes) == rows_and_bytes(moved(original_rows))
    with deltastore.open(postgres_url) as copied:
        set_clock(copied)
        assert without_counters(rows_of(copied.log.storage)) == without_counters(moved(original_rows))
        assert told(copied) == told(source)
        assert check(copied).ok
        copied.thread("new").append({"m": ["first"]})
        assert check(copied).ok
        copy_store(copied, tmp_path / "back.ds")
        with deltastore.open(tmp_path / "back.ds") as back:
            set_clock(back)
            assert without_counters(rows_of(back.log.storage)) == without_counters(rows_of(copied.log.storage))
            assert told(back) == told(copied)
            back.thread("newer").append({"m": ["first"]})
            assert check(back).ok
    with pytest.raises(StorePathError):
        copy_store(source, postgres_url)


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("side", ["source", "destination"])
def test_one_that_is_cut_short_goes_on(original_rows: Rows, postgres_url: str, side: str) -> None:
    expected = without_counters(moved(original_rows))
    with closing(open_storage(postgres_url)) as server:
        if side == "source":
            copy_store(Store(in_memory(original_rows)), server)
        for stop in random.Random(3).sample(range(1, CALLS), KILLS):
            destination: Storage = server
            if side == "destination":
                with server.write() as tx:
                    tx.delete_range(b"", b"\xff" * 8)
                source = Store(in_memory(original_rows))
                with suppress(Killed):
                    copy_store(source, Watched(server, killing(stop)))
            else:
                destination, source = MemoryStorage(), Store(server)
                source.log.storage = Watched(server, killing(stop))
                with suppress(Killed):
                    copy_store(source, destination)
                source.log.storage = server
            if keys.FORMAT not in rows_of(destination):
                copy_store(source, destination)
            assert without_counters(rows_of(destination)) == expected


def test_many_threads_are_copied_by_the_command(
    postgres_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with deltastore.open(tmp_path / "runs.ds", sync="none") as store:
        for number in range(300):
            store.thread(f"t{number}").append({"m": [f"text {number}" * 30]})
        store.thread("large").append({"m": [random.Random(1).randbytes(9_000_000)]})
    for place, target in ((tmp_path / "runs.ds", postgres_url), (postgres_url, tmp_path / "back.ds")):
        assert main(["copy", str(place), str(target)]) == 0
        assert "301 threads" in capsys.readouterr().out
    assert main(["check", str(tmp_path / "back.ds")]) == 0
    with deltastore.open(tmp_path / "runs.ds") as source, deltastore.open(tmp_path / "back.ds") as back:
        assert without_counters(rows_of(source.log.storage)) == without_counters(rows_of(back.log.storage))
