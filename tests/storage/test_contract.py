"""What every storage promises, run against each: a new storage joins `STORAGES`."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltastore.errors import ChecksumError, ClosedError, InvalidInputError, StorageError
from deltastore.log.names import in_write
from deltastore.storage import MAX_KEY_BYTES, RESERVED_PREFIX, Storage, WriteTransaction
from deltastore.storage.lmdb import LmdbStorage
from deltastore.storage.memory import MemoryStorage
from deltastore.storage.postgres.storage import PostgresStorage

STORAGES: dict[str, Callable[[Path, Callable[[], str]], Storage]] = {
    "memory": lambda path, url: MemoryStorage(),
    "lmdb": lambda path, url: LmdbStorage(path / "store", sync="none"),
    "postgres": lambda path, url: PostgresStorage(url()),
    "postgres-serializable": lambda path, url: PostgresStorage(url() + "&locking=serializable"),
}
COUNTERS_IN_ROWS = ("memory", "lmdb")
EVERYTHING = (b"", b"\xff" * 8)


@pytest.fixture(params=STORAGES)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    storage = STORAGES[request.param](tmp_path, lambda: request.getfixturevalue("postgres_url"))
    yield storage
    storage.close()


@pytest.fixture
def with_counter_rows(request: pytest.FixtureRequest) -> None:
    if request.node.callspec.params["storage"] not in COUNTERS_IN_ROWS:
        pytest.skip("this storage keeps counters elsewhere")


def fill(storage: Storage, *keys: bytes) -> None:
    with storage.write() as transaction:
        for key in keys:
            transaction.put(key, b"value of " + key)


def rows(storage: Storage) -> dict[bytes, bytes]:
    with storage.read() as transaction:
        return dict(transaction.scan(*EVERYTHING))


class TestReading:
    def test_get_gives_the_value_or_none(self, storage: Storage) -> None:
        fill(storage, b"a", b"b")
        with storage.read() as transaction:
            assert transaction.get(b"a") == b"value of a"
            assert transaction.get(b"c") is None
            assert type(transaction.get(b"a")) is bytes

    def test_get_many_keeps_order_and_repeats(self, storage: Storage) -> None:
        fill(storage, b"a", b"b")
        with storage.read() as transaction:
            found = transaction.get_many([b"b", b"x", b"a", b"b"])
        assert found == [b"value of b", None, b"value of a", b"value of b"]

    def test_an_empty_value_is_a_value(self, storage: Storage) -> None:
        with storage.write() as transaction:
            transaction.put(b"a", b"")
        with storage.read() as transaction:
            assert transaction.get(b"a") == b""
            assert transaction.seek_many([(b"a", b"b")]) == [(b"a", b"")]

    @pytest.mark.parametrize(
        ("lower", "upper", "expected"),
        [
            (b"", b"\xff", [b"a", b"b", b"b\0", b"d"]),
            (b"b", b"d", [b"b", b"b\0"]),
            (b"b", b"b", []),
            (b"d", b"b", []),
            (b"c", b"\xff" * 600, [b"d"]),
            (b"e", b"f", []),
            (b"", b"a", []),
            (b"", b"", []),
        ],
    )
    def test_scan_holds_lower_and_not_upper(
        self, storage: Storage, lower: bytes, upper: bytes, expected: list[bytes]
    ) -> None:
        fill(storage, b"d", b"b", b"a", b"b\0")
        with storage.read() as transaction:
            assert [key for key, _ in transaction.scan(lower, upper)] == expected
            assert [key for key, _ in transaction.scan(lower, upper, reverse=True)] == expected[::-1]
            first = transaction.seek_many([(lower, upper)])[0]
            assert (first and first[0]) == (expected[0] if expected else None)
            lengths = [len(key) + len(b"value of " + key) for key in expected]
            assert transaction.measure(lower, upper) == (len(expected), sum(lengths))

    def test_an_empty_storage_has_no_rows(self, storage: Storage) -> None:
        with storage.read() as transaction:
            assert list(transaction.scan(*EVERYTHING)) == []
            assert list(transaction.scan(*EVERYTHING, reverse=True)) == []
            assert transaction.seek_many([EVERYTHING]) == [None]
            assert transaction.measure(*EVERYTHING) == (0, 0)

    def test_scans_may_be_interleaved_and_dropped(self, storage: Storage) -> None:
        fill(storage, b"a", b"b", b"c")
        with storage.read() as transaction:
            up, down = transaction.scan(*EVERYTHING), transaction.scan(*EVERYTHING, reverse=True)
            assert [next(up)[0], next(down)[0], next(up)[0], next(down)[0]] == [b"a", b"c", b"b", b"b"]

    def test_a_transaction_is_of_no_use_after_its_block(self, storage: Storage) -> None:
        fill(storage, b"a", b"b")
        with storage.read() as transaction:
            scan = transaction.scan(*EVERYTHING)
            next(scan)
        with pytest.raises(StorageError):
            transaction.get(b"a")
        with pytest.raises(StorageError):
            transaction.measure(*EVERYTHING)
        with pytest.raises(StorageError):
            next(scan)

    def test_the_empty_key_is_refused(self, storage: Storage) -> None:
        with storage.read() as transaction, pytest.raises(InvalidInputError):
            transaction.get(b"")


class TestWriting:
    def test_a_transaction_sees_its_own_writes(self, storage: Storage) -> None:
        fill(storage, b"a", b"b")
        with storage.write() as transaction:
            transaction.put(b"c", b"3")
            assert transaction.delete(b"a")
            assert not transaction.delete(b"a")
            assert transaction.get_many([b"a", b"c"]) == [None, b"3"]
            assert [key for key, _ in transaction.scan(*EVERYTHING)] == [b"b", b"c"]
            assert transaction.measure(*EVERYTHING) == (2, 1 + len(b"value of b") + 1 + 1)

    def test_nothing_is_written_when_the_block_fails(self, storage: Storage) -> None:
        fill(storage, b"a")
        before = rows(storage)

        def fail() -> None:
            with storage.write() as transaction:
                transaction.put(b"b", b"")
                transaction.delete(b"a")
                transaction.mint(b"counter")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert rows(storage) == before
        fill(storage, b"c")  # and the turn was given back
        assert sorted(rows(storage)) == [b"a", b"c"]

    @pytest.mark.parametrize("limit", [None, 0, 1, 2, 5])
    def test_delete_range_takes_the_first_of_them(self, storage: Storage, limit: int | None) -> None:
        fill(storage, b"a", b"b1", b"b2", b"b3", b"c")
        with storage.write() as transaction:
            gone = transaction.delete_range(b"b", b"c", limit=limit)
        doomed = [b"b1", b"b2", b"b3"][:limit]
        assert gone == len(doomed)
        assert sorted(rows(storage)) == sorted({b"a", b"b1", b"b2", b"b3", b"c"} - set(doomed))

    def test_delete_range_to_the_end_of_the_storage(self, storage: Storage) -> None:
        fill(storage, b"a", b"b", b"c")
        with storage.write() as transaction:
            assert transaction.delete_range(b"b", b"\xff") == 2
            assert transaction.delete_range(b"b", b"\xff") == 0
        assert sorted(rows(storage)) == [b"a"]

    def test_the_longest_key_is_kept_and_a_longer_one_refused(self, storage: Storage) -> None:
        longest = b"k" * MAX_KEY_BYTES
        with storage.write() as transaction:
            transaction.put(longest, b"v")
            for key in (longest + b"k", b""):
                with pytest.raises(InvalidInputError):
                    transaction.put(key, b"v")
                with pytest.raises(InvalidInputError):
                    transaction.delete(key)
        assert rows(storage) == {longest: b"v"}

    def test_reserved_keys_are_refused(self, storage: Storage) -> None:
        with storage.write() as transaction:
            for key in (RESERVED_PREFIX, RESERVED_PREFIX + b"moved"):
                with pytest.raises(InvalidInputError):
                    transaction.put(key, b"")
                with pytest.raises(InvalidInputError):
                    transaction.delete(key)
                with pytest.raises(InvalidInputError):
                    transaction.mint(key)
            transaction.put(RESERVED_PREFIX[:-1], b"before")
            transaction.put(RESERVED_PREFIX[:-1] + b'"', b"after")
        assert list(rows(storage).values()) == [b"before", b"after"]
        with storage.read() as transaction:
            assert transaction.measure(b"", b"\xff")[0] == 2

    def test_a_large_value_comes_back(self, storage: Storage) -> None:
        large = bytes(range(256)) * 20_000
        with storage.write() as transaction:
            transaction.put(b"a", large)
        assert rows(storage) == {b"a": large}
        with storage.read() as transaction:
            assert transaction.measure(b"a", b"b") == (1, 1 + len(large))

    def test_a_write_within_a_write_is_refused(self, storage: Storage) -> None:
        with storage.write() as outer:
            outer.put(b"a", b"1")
            with pytest.raises(StorageError), storage.write():
                pass
        assert rows(storage) == {b"a": b"1"}


class TestMinting:
    def test_numbers_start_at_one_and_go_up(self, storage: Storage) -> None:
        with storage.write() as transaction:
            assert [transaction.mint(b"n"), transaction.mint(b"n", 10), transaction.mint(b"n")] == [1, 2, 12]
            assert transaction.mint(b"other") == 1
        with storage.write() as transaction:
            assert transaction.following(b"n") == 13
            assert transaction.mint(b"n") == 13
        with storage.read() as reader:
            assert [reader.following(b"n"), reader.following(b"none")] == [14, 1]

    def test_a_count_below_one_is_refused(self, storage: Storage) -> None:
        with storage.write() as transaction, pytest.raises(InvalidInputError):
            transaction.mint(b"n", 0)

    @pytest.mark.parametrize("damage", [b"", b"\0" * 16, b"\0" * 15, b"\0" * 17])
    def test_a_damaged_counter_is_named(self, storage: Storage, with_counter_rows: None, damage: bytes) -> None:
        with storage.write() as transaction:
            transaction.put(b"my-counter", damage)
            with pytest.raises(ChecksumError, match="my-counter"):
                transaction.mint(b"my-counter")

    def test_a_counter_under_another_key_is_damage(self, storage: Storage, with_counter_rows: None) -> None:
        with storage.write() as transaction:
            transaction.mint(b"n")
            transaction.put(b"m", transaction.get(b"n") or b"")
            with pytest.raises(ChecksumError):
                transaction.mint(b"m")


class TestIsolation:
    def test_a_reader_stays_in_its_moment(self, storage: Storage) -> None:
        fill(storage, b"a", b"b")
        with storage.read() as old:
            scan = old.scan(*EVERYTHING)
            assert next(scan)[0] == b"a"
            with storage.write() as writer:
                writer.put(b"a", b"new")
                writer.put(b"c", b"new")
                writer.delete(b"b")
                with storage.read() as meanwhile:
                    assert meanwhile.get(b"c") is None
            assert old.get_many([b"a", b"b", b"c"]) == [b"value of a", b"value of b", None]
            assert old.measure(*EVERYTHING) == (2, 2 * (1 + len(b"value of a")))
            assert [key for key, _ in scan] == [b"b"]
            with storage.read() as new:
                assert dict(new.scan(*EVERYTHING)) == {b"a": b"new", b"c": b"new"}

    def test_threads_take_turns_and_lose_nothing(self, storage: Storage) -> None:
        failures: list[BaseException] = []

        def put_two(transaction: WriteTransaction) -> None:
            first = transaction.mint(b"n", 2)
            transaction.put(b"row%d" % first, b"")
            transaction.put(b"row%d" % (first + 1), b"")

        def count() -> None:
            try:
                for _ in range(25):
                    in_write(storage, (), put_two)
                    with storage.read() as reader:
                        assert len(list(reader.scan(b"row", b"rox"))) % 2 == 0
            except BaseException as failure:  # noqa: BLE001 - shown by the assertion below
                failures.append(failure)

        threads = [threading.Thread(target=count) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert len([key for key in rows(storage) if key.startswith(b"row")]) == 8 * 25 * 2


class TestClosing:
    def test_a_closed_storage_says_so(self, storage: Storage) -> None:
        fill(storage, b"a")
        storage.close()
        storage.close()
        with pytest.raises(ClosedError), storage.read():
            pass
        with pytest.raises(ClosedError), storage.write():
            pass
        with pytest.raises(ClosedError):
            storage.info()

    def test_a_transaction_made_before_closing_can_not_begin_after_it(self, storage: Storage) -> None:
        transaction = storage.read()
        storage.close()
        with pytest.raises(ClosedError), transaction:
            pass


def test_info_tells_sizes(storage: Storage) -> None:
    fill(storage, b"a")
    info = storage.info()
    assert info.location == storage.location
    assert info.used_bytes > 0
    assert info.readers == 0


KEYS = st.binary(min_size=1, max_size=3).map(lambda key: bytes(byte % 4 for byte in key))
BOUNDS = st.one_of(st.just(b""), KEYS, st.just(b"\xff"))
OPERATIONS = st.one_of(
    st.tuples(st.just("put"), KEYS, st.binary(max_size=8) | st.just(b"v" * 3000)),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("delete_range"), BOUNDS, BOUNDS, st.none() | st.integers(0, 3)),
    st.tuples(st.just("mint"), st.integers(1, 5)),
    st.tuples(st.just("look"), BOUNDS, BOUNDS),
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(transactions=st.lists(st.tuples(st.booleans(), st.lists(OPERATIONS, max_size=12)), max_size=6))
def test_a_storage_is_a_sorted_dict(storage: Storage, transactions: list[tuple[bool, list[tuple]]]) -> None:
    counter = b"\x09counter"
    with storage.write() as transaction:
        transaction.delete_range(*EVERYTHING)
        minted = transaction.mint(counter) + 1
    model: dict[bytes, bytes] = {}
    for commits, operations in transactions:
        mine, mine_minted = dict(model), minted
        with contextlib.suppress(ZeroDivisionError), storage.write() as transaction:
            for name, *arguments in operations:
                if name == "mint":
                    assert transaction.mint(counter, *arguments) == mine_minted
                    mine_minted += arguments[0]
                else:
                    apply(transaction, mine, name, arguments)
            if not commits:
                raise ZeroDivisionError
        if commits:
            model, minted = mine, mine_minted
        with storage.read() as reader:
            assert [row for row in reader.scan(*EVERYTHING) if row[0] != counter] == sorted(model.items())


def apply(transaction, model: dict[bytes, bytes], name: str, arguments: list) -> None:
    if name == "put":
        transaction.put(*arguments)
        model[arguments[0]] = arguments[1]
    elif name == "delete":
        assert transaction.delete(*arguments) == (model.pop(arguments[0], None) is not None)
    else:
        lower, upper, *limit = arguments
        upper = min(upper, b"\x09")  # the counter isn't in the model
        inside = sorted(row for row in model.items() if lower <= row[0] < upper)
        if name == "delete_range":
            doomed = inside[: limit[0]]
            assert transaction.delete_range(lower, upper, limit=limit[0]) == len(doomed)
            for key, _ in doomed:
                del model[key]
        else:
            assert list(transaction.scan(lower, upper)) == inside
            assert list(transaction.scan(lower, upper, reverse=True)) == inside[::-1]
            assert transaction.seek_many([(lower, upper)] * 2) == [inside[0] if inside else None] * 2
            assert transaction.measure(lower, upper) == (len(inside), sum(len(k) + len(v) for k, v in inside))
            assert transaction.get_many([key for key, _ in inside]) == [value for _, value in inside]
