"""The server is killed, as a crash of its machine would end it: nothing that was acknowledged is lost."""

import threading
from collections.abc import Iterator

import pytest

import deltastore
from deltastore import CommitUnknownError, Store, UnavailableError, check
from tests import postgres_server
from tests.postgres_server import PostgresServer

WRITERS, KILLS, PUTS_BETWEEN = 4, 3, 6


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of the test's own, as it is installed: it is to survive."""
    if not postgres_server.is_installed():
        pytest.skip("PostgreSQL isn't installed: there is no initdb on PATH or below /usr/lib/postgresql")
    with postgres_server.running() as server:
        yield server


class Writer:
    """Appends numbers to a thread, and knows of each whether it was acknowledged, refused, or neither."""

    def __init__(self, store: Store, name: str) -> None:
        self.thread = store.thread(name)
        self.acknowledged: list[int] = []
        self.unknown: list[int] = []
        self.progress = threading.Condition()
        self.over = False
        self.failure: BaseException | None = None
        self.running = threading.Thread(target=self._run)
        self.running.start()

    def _run(self) -> None:
        try:
            for number in range(1_000_000):
                if self.over:
                    return
                try:
                    self.thread.append({"numbers": [number]})
                except CommitUnknownError:
                    self.unknown.append(number)
                except UnavailableError:
                    pass  # it says that nothing was written
                else:
                    with self.progress:
                        self.acknowledged.append(number)
                        self.progress.notify()
        except BaseException as failure:  # noqa: BLE001 - shown by whoever waits
            self.failure = failure

    def wait_for(self, count: int) -> None:
        with self.progress:
            assert self.progress.wait_for(lambda: len(self.acknowledged) >= count or self.failure, 120)
        assert self.failure is None

    def end(self) -> None:
        self.over = True
        self.running.join()
        assert self.failure is None


def test_what_was_acknowledged_is_there_once_and_nothing_else(server: PostgresServer) -> None:
    with deltastore.open(server.url) as store:
        writers = [Writer(store, f"t{number}") for number in range(WRITERS)]
        try:
            for _ in range(KILLS):
                for writer in writers:
                    writer.wait_for(len(writer.acknowledged) + PUTS_BETWEEN)
                server.kill()
                server.start()
            for writer in writers:
                writer.wait_for(len(writer.acknowledged) + PUTS_BETWEEN)
        finally:
            for writer in writers:
                writer.end()
    with deltastore.open(server.url) as store:
        report = check(store)
        assert report.ok, report.problems
        for writer in writers:
            found = store.thread(writer.thread.name).state()["numbers"]
            assert found == sorted(set(found))
            assert set(writer.acknowledged) <= set(found) <= {*writer.acknowledged, *writer.unknown}
