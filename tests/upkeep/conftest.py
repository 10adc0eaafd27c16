"""Fixtures of the tests of copied stores."""

import pytest

import deltastore
from deltastore import Retention
from deltastore.upkeep import copying, copying_rows, copying_threads
from tests.raw import rows_of
from tests.upkeep.copied import Original, Rows
from tests.upkeep.many_threads import make


@pytest.fixture(scope="session")
def original_rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """The rows of a store of both APIs, with packs, forks, tags, rules, remnants, and a thread in the queue."""
    path = tmp_path_factory.mktemp("copying") / "store.ds"
    make(path)
    with deltastore.open(path) as store:
        store.retention = Retention(keep_last=5)
        store.thread("n").retention = Retention()
        return Original(rows_of(store.log.storage))


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let transactions, pages and moments end after a few rows."""
    monkeypatch.setattr(copying_rows, "MAX_BATCH_ROWS", 7)
    monkeypatch.setattr(copying_threads, "PAGE", 2)
    monkeypatch.setattr(copying, "MOMENT_BYTES", 500)
    monkeypatch.setattr(copying, "FEW_THREADS", 0)
