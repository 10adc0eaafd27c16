"""Puts that expect a checkpoint to be the latest: of two writers with one view of a thread, one is refused."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from deltastore import Checkpoint, ConflictError, InvalidIdError, InvalidInputError, Store, Thread
from tests.conftest import OpenStore
from tests.raw import Interrupted, interrupted, rows_of

Put = Callable[..., Checkpoint]


@pytest.fixture(params=["append", "put_state"])
def put(request: pytest.FixtureRequest) -> Put:
    """Either way to put `{"n": …}` into thread `t`."""

    def put(store: Store, value: Any, **options: Any) -> Checkpoint:
        made: Checkpoint = getattr(store.thread("t"), request.param)({"n": value}, **options)
        return made

    return put


def ids(thread: Thread) -> list[str]:
    return [checkpoint.id for checkpoint in thread.history()]


class TestExpectedParent:
    def test_a_put_on_what_it_expects_is_stored(self, store: Store, put: Put) -> None:
        first = put(store, 1, expected_parent="")
        second = put(store, 2, expected_parent=first)
        third = put(store, 3, expected_parent=second.id)
        assert ids(store.thread("t")) == [third.id, second.id, first.id]
        assert third.parent_id == second.id

    def test_a_stale_put_names_both_and_writes_nothing(self, store: Store, put: Put) -> None:
        first = put(store, 1)
        second = put(store, 2)
        before = rows_of(store.log.storage)
        with pytest.raises(
            ConflictError, match=f"expected checkpoint '{first.id}', found checkpoint '{second.id}'.*read"
        ):
            put(store, 3, expected_parent=first)
        assert rows_of(store.log.storage) == before
        assert store.thread("t").state() == {"n": 2}

    def test_a_thread_expected_to_be_new(self, store: Store, put: Put) -> None:
        made = put(store, 1)
        with pytest.raises(ConflictError, match=f"expected none to be there yet, found checkpoint '{made.id}'"):
            put(store, 2, expected_parent="")

    def test_a_thread_expected_to_be_there(self, store: Store, put: Put) -> None:
        made = put(store, 1)
        store.delete("t")
        with pytest.raises(ConflictError, match=f"expected checkpoint '{made.id}', found no checkpoint"):
            put(store, 2, expected_parent=made)
        assert list(store.threads()) == []

    def test_the_latest_is_expected_also_of_a_put_elsewhere(self, store: Store, put: Put) -> None:
        first = put(store, 1)
        second = put(store, 2)
        branch = put(store, 3, at=first, expected_parent=second)
        assert branch.parent_id == first.id
        with pytest.raises(ConflictError):
            put(store, 4, at=first, expected_parent=second)

    def test_once_the_latest_is_deleted_the_one_before_it_is(self, store: Store, put: Put) -> None:
        first = put(store, 1)
        second = put(store, 2)
        store.thread("t").delete(second)
        with pytest.raises(ConflictError):
            put(store, 3, expected_parent=second)
        assert put(store, 3, expected_parent=first).parent_id == first.id

    def test_namespaces_are_fenced_each_for_itself(self, store: Store) -> None:
        first = store.thread("t").append({"n": 1})
        sub = store.thread("t", namespace="sub")
        made = sub.append({"n": 1}, expected_parent="")
        store.thread("t").append({"n": 2}, expected_parent=first)
        sub.append({"n": 2}, expected_parent=made)

    def test_what_is_no_checkpoint_of_the_thread(self, store: Store, put: Put) -> None:
        put(store, 1)
        other = store.thread("other").append({"n": 1})
        with pytest.raises(InvalidInputError, match="belongs to thread 'other'"):
            put(store, 2, expected_parent=other)
        with pytest.raises(ConflictError, match="expected checkpoint 'nonsense'"):
            put(store, 2, expected_parent="nonsense")
        for wrong in (0, False, b"", []):
            with pytest.raises(InvalidIdError):
                put(store, 2, expected_parent=wrong)

    @pytest.mark.parametrize("frequency", [1, 3, 50])
    def test_of_two_writers_exactly_one_wins_each_round(self, open_store: OpenStore, frequency: int, put: Put) -> None:
        store = open_store(snapshot_frequency=frequency)
        barrier = threading.Barrier(2)
        rounds = 30
        won: list[list[int]] = [[], []]
        errors: list[BaseException] = []

        def race(writer: int) -> None:
            try:
                for number in range(rounds):
                    latest = store.thread("t").latest()
                    barrier.wait()  # both have read the same
                    try:
                        put(store, [writer, number], expected_parent=latest or "")
                        won[writer].append(number)
                    except ConflictError:
                        pass
                    barrier.wait()
            except BaseException as error:  # noqa: BLE001 - shown by the assertion below
                errors.append(error)
                barrier.abort()

        writers = [threading.Thread(target=race, args=(writer,)) for writer in (0, 1)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        assert errors == []
        assert sorted(won[0] + won[1]) == list(range(rounds))
        history = list(store.thread("t").history())
        assert [checkpoint.parent_id for checkpoint in history] == [*(ids(store.thread("t"))[1:]), None]
        assert len(history) == rounds


class TestBetweenPrepareAndApply:
    @pytest.fixture(params=["read", "remembered"])
    def storage(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Interrupted:
        """A write is prepared by a snapshot, or by what its handle remembers."""
        return interrupted(request.param, monkeypatch)

    @pytest.fixture
    def store(self, storage: Interrupted) -> Store:
        store = Store(storage, snapshot_frequency=2)
        store.thread("warm").append({"n": 1})
        return store

    def test_a_put_in_between(self, storage: Interrupted, store: Store, put: Put) -> None:
        first = put(store, 1)
        storage.after_snapshot = [lambda: put(store, 2)]
        with pytest.raises(ConflictError):
            put(store, 3, expected_parent=first)
        assert store.thread("t").state() == {"n": 2}

    def test_the_thread_made_in_between(self, storage: Interrupted, store: Store, put: Put) -> None:
        storage.after_snapshot = [lambda: put(store, 1)]
        with pytest.raises(ConflictError):
            put(store, 2, expected_parent="")
        assert store.thread("t").state() == {"n": 1}

    def test_what_was_expected_comes_to_be_in_between(self, storage: Interrupted, store: Store, put: Put) -> None:
        first = put(store, 1)
        second = put(store, 2)
        storage.after_snapshot = [lambda: store.thread("t").delete(second)]
        made = put(store, 3, expected_parent=first)  # prepared on the second one, then again
        assert made.parent_id == first.id

    def test_a_put_that_the_storage_asks_to_run_again(self, storage: Interrupted, store: Store, put: Put) -> None:
        first = put(store, 1)
        storage.retries = 1
        assert put(store, 2, expected_parent=first).parent_id == first.id
        assert storage.retries == 0
