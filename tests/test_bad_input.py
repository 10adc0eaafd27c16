"""What can't be done is refused with a typed error: what was found, expected, and to be done. Nothing is written."""

import contextlib
import random
import threading
import unicodedata
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import ormsgpack
import pytest

import deltastore
from deltastore import (
    CheckpointNotFoundError,
    ChecksumError,
    ClosedError,
    CorruptionError,
    DeltastoreError,
    EncodeError,
    FormatError,
    InvalidIdError,
    InvalidInputError,
    NotFoundError,
    Reducer,
    Remove,
    Store,
    StorePathError,
    Thread,
    ThreadNotFoundError,
    check,
)
from deltastore.agent import CheckpointManager
from deltastore.codec.primitives import seal, unseal
from deltastore.log import keys, rows
from deltastore.log.format import FORMAT_VERSION
from deltastore.storage import Storage
from deltastore.storage.memory import MemoryStorage
from tests.conftest import OpenStore
from tests.raw import everything, put_raw, rows_of

ULID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


@pytest.fixture
def filled(store: Store) -> Iterator[Store]:
    """A store with one thread, unchanged when the test ends."""
    thread = store.thread("t")
    made = thread.append({"m": ["a"], "n": 1, "d": {"k": 1}, "r": "text"})
    thread.put_writes(made, {"m": ["w"]})
    before, held = rows_of(store.log.storage), everything(store)
    yield store
    assert rows_of(store.log.storage) == before
    assert everything(store) == held


class TestNotFound:
    def test_an_unknown_thread(self, filled: Store) -> None:
        thread = filled.thread("unknown")
        for call in (
            thread.state,
            lambda: thread.state(at=ULID),
            lambda: thread.checkpoint(ULID),
            lambda: thread.writes(ULID),
        ):
            with pytest.raises(
                ThreadNotFoundError, match=r"no thread 'unknown' .*append one first.*store\.threads\(\)"
            ) as found:
                call()
            assert isinstance(found.value, KeyError)
            assert found.value.code == "thread-not-found"
        with pytest.raises(ThreadNotFoundError, match=r"'unknown'.*see the store's threads"):
            thread.delete(ULID)
        with pytest.raises(ThreadNotFoundError, match=r"'unknown'"):
            filled.copy("unknown", "new")
        assert filled.delete("unknown") is False

    def test_a_put_after_an_unknown_checkpoint_makes_no_thread(self, store: Store) -> None:
        thread = store.thread("unknown")
        for id_ in (ULID, "garbage"):
            for put in (thread.append, thread.put_state):
                with pytest.raises(CheckpointNotFoundError, match=rf"'unknown' has no checkpoint '{id_}'.*history"):
                    put({"m": ["a"]}, at=id_)
            with pytest.raises(CheckpointNotFoundError, match=rf"'unknown' has no checkpoint '{id_}'.*history"):
                thread.put_writes(id_, {"m": ["a"]})
        assert list(store.threads()) == []
        assert not any(key > keys.thread(1) for key in rows_of(store.log.storage))

    @pytest.mark.parametrize(
        "id_", [ULID, ULID.lower(), "garbage", "é" * 20, "x" * 255, "\0", "0" * 26, "7" + "Z" * 25]
    )
    def test_an_unknown_checkpoint(self, filled: Store, id_: str) -> None:
        thread = filled.thread("t")
        calls: list[Callable[[], Any]] = [
            lambda: thread.state(at=id_),
            lambda: thread.checkpoint(id_),
            lambda: thread.writes(id_),
            lambda: thread.append({"m": ["b"]}, at=id_),
            lambda: thread.put_state({"m": ["b"]}, at=id_),
            lambda: thread.put_writes(id_, {"m": ["b"]}),
            lambda: thread.delete(id_),
        ]
        for call in calls:
            with pytest.raises(CheckpointNotFoundError) as found:
                call()
            assert str(found.value).startswith(f"thread 't' has no checkpoint {id_!r}")
            assert str(found.value).endswith(("see its history()", "see its history"))

    def test_a_checkpoint_of_another_thread(self, filled: Store) -> None:
        latest = filled.thread("t").latest()
        assert latest is not None
        other = filled.thread("other")
        calls: list[Callable[[], Any]] = [
            lambda: other.append({"m": ["b"]}, at=latest),
            lambda: other.put_state({}, at=latest),
            lambda: other.put_writes(latest, {"m": ["b"]}),
            lambda: other.state(at=latest),
            lambda: other.writes(latest),
            lambda: other.delete(latest),
            lambda: list(other.history(before=latest)),
        ]
        for call in calls:
            with pytest.raises(InvalidInputError, match=rf"{latest.id} belongs to thread 't'.*this is thread 'other'"):
                call()

    def test_a_deleted_checkpoint(self, store: Store) -> None:
        thread = store.thread("t")
        made = [thread.append({"m": [n]}) for n in range(3)]
        thread.delete(made[1])
        for call in (
            lambda: thread.state(at=made[1]),
            lambda: thread.delete(made[1]),
            lambda: thread.append({}, at=made[1]),
        ):
            with pytest.raises(CheckpointNotFoundError, match=made[1].id):
                call()


class Unknown:
    pass


class Text(str):
    __slots__ = ()


class TestValues:
    REFUSED: ClassVar = [
        (object(), "", "object"),
        ([1, [2, {"k": Unknown()}]], "[1][1]['k']", "Unknown"),
        ({"a": {"b": (1, 2)}}, "['a']['b']", "tuple"),
        ({"a": {1, 2}}, "['a']", "set"),
        ([Text("subclass")], "[0]", "Text"),
        (2**64, "", "int"),
        ([0, -(2**63) - 1], "[1]", "int"),
        (bytearray(b"x"), "", "bytearray"),
        ({"a": [1j]}, "['a'][0]", "complex"),
        (["ok", "\ud800"], "[1]", "str"),
        ({"k": {"\ud800": 1}}, "['k']", "dict"),
        ({("a",): 1}, "", "dict"),
        ([threading.Lock()], "[0]", "lock"),
    ]

    @pytest.mark.parametrize(
        ("value", "path", "kind"), REFUSED, ids=[f"{path or 'whole'}-{kind}" for _, path, kind in REFUSED]
    )
    def test_a_value_that_can_not_be_stored(self, filled: Store, value: Any, path: str, kind: str) -> None:
        thread = filled.thread("t")
        latest = thread.latest()
        assert latest is not None
        calls: list[Callable[[], Any]] = [
            lambda: thread.append({"m": ["fine"], "new one": 1, "bad": value}),
            lambda: thread.put_state({"new two": {"fine": 1}, "bad": value}),
            lambda: thread.put_writes(latest, [("new three", 1), ("bad", value)]),
            lambda: filled.thread("new thread").append({"bad": value}),
        ]
        for call in calls:
            with pytest.raises(EncodeError) as found:
                call()
            assert (found.value.channel, found.value.path) == ("bad", path)
            assert isinstance(found.value, ValueError)
            message = str(found.value)
            assert message.startswith(f"channel 'bad': the {kind} at bad{path} can't be stored by strict msgpack 1 (")
            assert message.endswith(
                "Nothing was written. Put a value of a supported type there, or keep it out of the state"
            )

    def test_nested_too_deep(self, filled: Store) -> None:
        value: Any = "x"
        for _ in range(5000):
            value = [value]
        with pytest.raises(EncodeError, match=r"nested deeper than 200"):
            filled.thread("t").append({"m": value})
        loop: list[Any] = []
        loop.append(loop)
        with pytest.raises(EncodeError, match=r"nested deeper than 200"):
            filled.thread("t").put_state({"m": {"k": loop}})

    def test_metadata_that_can_not_be_stored(self, filled: Store) -> None:
        thread = filled.thread("t")
        for put in (thread.append, thread.put_state):
            with pytest.raises(EncodeError) as found:
                put({"new": 1}, metadata={"a": [object()]})
            assert (found.value.channel, found.value.path) == ("metadata", "['a'][0]")
            for metadata in ([("a", 1)], "text", 5, [1]):
                with pytest.raises(
                    InvalidInputError, match=rf"metadata of type {type(metadata).__name__}; expected a mapping"
                ):
                    put({"new": 1}, metadata=metadata)  # type: ignore[arg-type]

    def test_what_is_no_mapping_of_channels(self, filled: Store) -> None:
        thread = filled.thread("t")
        for value in (None, [("m", 1)], "m", 5):
            for put in (thread.append, thread.put_state):
                with pytest.raises(
                    InvalidInputError, match=rf"expected a mapping of channels to values, not {type(value).__name__}"
                ):
                    put(value)  # type: ignore[arg-type]

    def test_writes_that_are_no_pairs(self, filled: Store) -> None:
        latest = filled.thread("t").latest()
        assert latest is not None
        for writes in ("ab", [("a", 1, 2)], [1], ["ab"]):
            with pytest.raises(InvalidInputError, match=r"among the writes; expected pairs of a channel and its value"):
                filled.thread("t").put_writes(latest, writes)  # type: ignore[arg-type]

    def test_a_remove_where_none_is_taken(self, filled: Store) -> None:
        thread = filled.thread("t")
        with pytest.raises(EncodeError, match=r"'m' has reducer 'append'; a Remove is for upsert only") as found:
            thread.append({"m": [Remove("a")]})
        assert found.value.channel == "m"
        with pytest.raises(EncodeError, match=r"'m': a Remove stands in a whole value.*upsert channel") as found:
            thread.put_state({"m": [{"id": "a"}, Remove("a")]})
        assert found.value.channel == "m"
        for value in ({"k": Remove("a")}, Remove("a"), [[Remove("a")]], {"k": [Remove("a")]}):
            with pytest.raises(EncodeError, match=r"Remove.* can't be stored by strict msgpack 1"):
                thread.append({"r": value})

    def test_the_wrong_kind_for_a_reducer(self, filled: Store) -> None:
        thread = filled.thread("t")
        for writes, message in (
            ({"m": {"k": 1}}, "'m' has reducer 'append', which takes a list; a value of type dict was written"),
            (
                {"m": "text"},
                "'m' has reducer 'append', which takes a list; a value of type str was written. .*channels=",
            ),
            ({"d": [1]}, "'d' has reducer 'merge', which takes a dict; a value of type list was written"),
            ({"d": None}, "'d' has reducer 'merge', which takes a dict; a value of type NoneType was"),
        ):
            with pytest.raises(InvalidInputError, match=message):
                thread.append(writes)

    def test_a_reducer_on_a_value_of_another_kind(self, open_store: OpenStore) -> None:
        store = open_store(channels={"m": "append", "u": "upsert"})
        thread = store.thread("t")
        thread.put_state({"m": "text", "u": {"k": 1}})
        for name, kind in (("m", "value"), ("u", "dict")):
            with pytest.raises(InvalidInputError, match=rf"'{name}' holds a {kind}; reducer .* needs a list there"):
                thread.append({name: [1]})
        assert thread.state() == {"m": "text", "u": {"k": 1}}


class TestNames:
    BAD: ClassVar = [(None, "NoneType"), (5, "int"), (True, "bool"), (b"t", "bytes"), (1.5, "float"), (("t",), "tuple")]

    @pytest.mark.parametrize(("name", "kind"), BAD)
    def test_names_that_are_no_text(self, filled: Store, name: Any, kind: str) -> None:
        thread = filled.thread("t")
        latest = thread.latest()
        assert latest is not None
        calls: list[tuple[str, Callable[[], Any]]] = [
            ("thread", lambda: filled.thread(name)),
            ("thread", lambda: filled.delete(name)),
            ("thread", lambda: filled.copy(name, "x")),
            ("thread", lambda: filled.copy("t", name)),
            ("namespace", lambda: filled.thread("t", namespace=name)),
            ("channel", lambda: thread.append({name: 1})),
            ("channel", lambda: thread.put_state({name: 1})),
            ("channel", lambda: thread.put_writes(latest, [(name, 1)])),
            ("task", lambda: thread.put_writes(latest, {"m": 1}, task=name)),
        ]
        for what, call in calls:
            with pytest.raises(InvalidIdError, match=rf"a {what} id of type {kind} .*; expected a str.*silently"):
                call()

    def test_empty_names(self, filled: Store) -> None:
        for what, call in (
            ("thread", lambda: filled.thread("")),
            ("thread", lambda: filled.delete("")),
            ("thread", lambda: filled.copy("t", "")),
            ("channel", lambda: filled.thread("t").append({"": 1})),
        ):
            with pytest.raises(InvalidIdError, match=rf"an empty {what} id.*unset variable; name the {what}"):
                call()

    def test_names_beyond_the_limit(self, filled: Store) -> None:
        too_long = "é" * 32_769
        for call in (lambda: filled.thread(too_long), lambda: filled.thread("t").append({too_long: 1})):
            with pytest.raises(InvalidIdError, match=r"a name of 65538 bytes; at most 65536 are taken"):
                call()

    @pytest.mark.parametrize("id_", ["x" * 256, "é" * 128, ""])
    def test_checkpoint_ids_beyond_the_limit(self, filled: Store, id_: str) -> None:
        thread = filled.thread("t")
        for call in (lambda: thread.state(at=id_), lambda: thread.append({}, at=id_), lambda: thread.delete(id_)):
            with pytest.raises(
                InvalidIdError, match=rf"a checkpoint id of {len(id_.encode())} bytes; expected 1 to 255"
            ):
                call()

    @pytest.mark.parametrize("id_", [5, True, b"x", ["x"]])
    def test_checkpoint_ids_that_are_no_text(self, filled: Store, id_: Any) -> None:
        thread = filled.thread("t")
        for call in (lambda: thread.state(at=id_), lambda: thread.append({}, at=id_), lambda: thread.writes(id_)):
            with pytest.raises(InvalidIdError, match=rf"a checkpoint id of type {type(id_).__name__}; expected a str"):
                call()
        with pytest.raises(InvalidIdError, match=r"NoneType"):
            thread.checkpoint(None)  # type: ignore[arg-type]
        with pytest.raises(InvalidIdError, match=r"isn't valid Unicode"):
            thread.state(at="\ud800")

    def test_no_two_names_are_mixed_up(self, store: Store) -> None:
        nfc = unicodedata.normalize("NFC", "Zoë")
        names = [
            *("a", "A", "a ", " a", "a\0", "\0a", "a\0b", "a|b", "a:b", "a/b", "a\\b", "a\nb", "..", "."),
            *(nfc, unicodedata.normalize("NFD", nfc), "😀", "😀\ufe0f", "\ud83d", "\ude00", "\ud83d\ude00", "\udc80"),
            *("0", "00", "None", "x" * 4000, "x" * 3999 + "y", "x" * 4001, "é" * 4000, "\x7f", "\u200b", "\uff41"),
        ]
        assert len(set(names)) == len(names)
        chance = random.Random(1)
        for number, name in enumerate(names):
            store.thread(name).append({"own": [name.encode("utf-8", "surrogatepass")], name: number})
            store.thread("t", namespace=name).append({"own": [number]})
        for name in chance.sample(names, len(names)):
            store.thread(name).append({"own": [b"again"]})
        assert {info.name: info.checkpoints for info in store.threads()} == {"t": len(names)} | dict.fromkeys(names, 2)
        for number, name in enumerate(names):
            thread = store.thread(name)
            assert thread.state() == {"own": [name.encode("utf-8", "surrogatepass"), b"again"], name: number}
            assert store.thread("t", namespace=name).state() == {"own": [number]}
            assert {c.thread for c in thread.history()} == {name}
            thread.put_writes(next(thread.history()), {name: 1}, task=name)
            assert [(w.task, w.channel) for w in thread.writes(next(thread.history()))] == [(name, name)]
        doomed = chance.sample(names, 10)
        for name in doomed:
            assert store.delete(name) is True
        for number, name in enumerate(names):
            if name not in doomed:
                assert store.thread(name).state()[name] == number
        assert len(list(store.threads())) == 1 + len(names) - 10


class TestArguments:
    @pytest.mark.parametrize("limit", [-1, True, "1", 1.0, b""])
    def test_a_wrong_limit(self, filled: Store, limit: Any) -> None:
        with pytest.raises(InvalidInputError, match=r"limit .*; expected None or an int from 0 on"):
            filled.thread("t").history(limit=limit)

    def test_a_wrong_before(self, filled: Store) -> None:
        with pytest.raises(InvalidIdError, match=r"not a ULID: 'garbage'; expected 26 characters"):
            list(filled.thread("t").history(before="garbage"))

    def test_channels_as_one_text(self, filled: Store) -> None:
        with pytest.raises(InvalidInputError, match=r"channels 'm'; expected a collection of names, as \['m'\]"):
            filled.thread("t").state(channels="m")

    @pytest.mark.parametrize("frequency", [0, -1, 10_001, True, "5", 2.0])
    def test_a_wrong_frequency(self, tmp_path: Path, frequency: Any) -> None:
        for path in (tmp_path / "store.ds", ":memory:"):
            with pytest.raises(InvalidInputError, match=r"snapshot_frequency .*; expected an int from 1 to 10000"):
                deltastore.open(path, snapshot_frequency=frequency)
        assert list(tmp_path.iterdir()) == []

    def test_a_reducer_that_is_not_at_hand(self, tmp_path: Path) -> None:
        mine = Reducer("mine", 1, max, int)
        with pytest.raises(
            InvalidInputError, match=r"no reducer is named 'nonsense'; at hand are replace, append, merge, upsert, mine"
        ):
            deltastore.open(tmp_path / "store.ds", reducers=[mine], channels={"m": "nonsense"})
        with pytest.raises(InvalidInputError, match=r"two reducers are named 'mine'"):
            deltastore.open(tmp_path / "store.ds", reducers=[mine, mine])
        with pytest.raises(InvalidIdError, match=r"an empty channel id"):
            deltastore.open(tmp_path / "store.ds", channels={"": "append"})
        with deltastore.open(tmp_path / "store.ds", sync="none") as store:  # what failed holds nothing: sync may change
            assert list(store.threads()) == []
        with deltastore.open(tmp_path / "store.ds", sync="full"):
            pass

    def test_a_wrong_sync_mode(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInputError, match=r"sync is 'fast'; expected 'full', 'meta' or 'none'"):
            deltastore.open(tmp_path / "store.ds", sync="fast")  # type: ignore[arg-type]


class TestPaths:
    def test_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_bytes(b"content")
        with pytest.raises(StorePathError, match=rf"{path}"):
            deltastore.open(path)
        assert path.read_bytes() == b"content"

    def test_a_path_without_parent(self, tmp_path: Path) -> None:
        path = tmp_path / "missing" / "store.ds"
        with pytest.raises(StorePathError, match=r"missing"):
            deltastore.open(path)
        assert list(tmp_path.iterdir()) == []

    def test_a_directory_of_something_else(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("mine")
        with pytest.raises(StorePathError, match=rf"{tmp_path}"):
            deltastore.open(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


class TestFormat:
    def test_a_newer_version_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "store.ds"
        with deltastore.open(path) as store:
            store.thread("t").append({"m": [1]})
            with store.log.storage.write() as tx:
                version, *rest = rows.parse(keys.FORMAT, rows.get(tx, keys.FORMAT) or b"")
                rows.put(tx, keys.FORMAT, ormsgpack.packb([version + 1, *rest, "what later versions add"]))
        expected = (
            f"{path} has format version {FORMAT_VERSION + 1}; this release reads version {FORMAT_VERSION}. Nothing was"
        )
        with pytest.raises(FormatError, match=expected):
            deltastore.open(path)

    def test_rows_without_a_format(self) -> None:
        storage = MemoryStorage()
        Store(storage).thread("t").append({"m": [1]})
        put_raw(storage, keys.FORMAT, None)
        with pytest.raises(ChecksumError, match=r"the format row is missing; restore from a backup"):
            Store(storage)

    def test_a_format_that_does_not_parse(self) -> None:
        for content in (
            b"\xc1",
            ormsgpack.packb({"version": 1}),
            ormsgpack.packb([FORMAT_VERSION]),
            ormsgpack.packb(["0", b"", {}]),
        ):
            storage = MemoryStorage()
            put_raw(storage, keys.FORMAT, seal(keys.FORMAT, content))
            with pytest.raises(ChecksumError, match=r"doesn't parse"):
                Store(storage)


class TestClosed:
    @pytest.mark.parametrize("path", [":memory:", "store.ds"])
    def test_every_use_of_a_closed_store(self, tmp_path: Path, path: str) -> None:
        store = deltastore.open(path if path == ":memory:" else tmp_path / path)
        thread = store.thread("t")
        made = thread.append({"m": ["a"]})
        history, threads = thread.history(), store.threads()
        store.close()
        store.close()
        calls: list[Callable[[], Any]] = [
            lambda: store.thread("t"),
            lambda: list(store.threads()),
            lambda: next(threads),
            lambda: store.delete("t"),
            lambda: store.copy("t", "u"),
            store.collect,
            store.info,
            lambda: check(store),
            lambda: thread.append({"m": ["b"]}),
            lambda: thread.append({"new channel": 1}),
            lambda: thread.put_state({"m": []}),
            lambda: thread.put_writes(made, {"m": ["b"]}),
            lambda: thread.delete(made),
            thread.state,
            lambda: thread.state(at=made),
            thread.latest,
            lambda: thread.checkpoint(made.id),
            lambda: list(thread.history()),
            lambda: next(history),
            lambda: thread.writes(made),
        ]
        for number, call in enumerate(calls):
            with pytest.raises(ClosedError, match=r"was closed; open"):
                pytest.fail(f"call {number} gave {call()!r}")
        assert "deltastore.Store" in repr(store)

    def test_another_handle_stays_open(self, tmp_path: Path) -> None:
        one, two = deltastore.open(tmp_path / "store.ds"), deltastore.open(tmp_path / "store.ds")
        one.thread("t").append({"m": ["a"]})
        one.close()
        assert two.thread("t").append({"m": ["b"]}).parent_id is not None
        two.close()

    def test_a_with_block_closes_also_when_it_fails(self) -> None:
        with pytest.raises(ZeroDivisionError), deltastore.open(":memory:") as store:
            raise ZeroDivisionError
        with pytest.raises(ClosedError):
            store.info()


REDUCERS = [Reducer("sum", 1, lambda value, write: value + write, int)]


def fill(store: Store) -> None:
    """Put rows of every kind: packed and loose ones, a fork, writes, an upsert, a user's reducer, edited documents."""
    thread = store.thread("t")
    for number in range(45):
        made = thread.append(
            {
                "m": [{"id": str(number % 7), "text": f"{number} " * 9}],
                "sum": number,
                "d": {str(number % 3): number},
                "last": number,
            },
            metadata={"n": number},
        )
        if number % 9 == 4:
            thread.put_writes(made, {"w": [number], "d": {"x": 1}}, task="a")
    thread.append({"m": [{"id": "fork"}]}, at=list(thread.history())[20])
    other = store.thread("other")
    for number in range(4):
        other.put_state({"doc": "".join(f"line {n} of {number if n == 7 else 0}\n" for n in range(900)), "n": [number]})
    other.delete(list(other.history())[1])


def ids(thread: Thread) -> list[str]:
    return [checkpoint.id for checkpoint in thread.history()]


def damaged(row: bytes, place: int) -> bytes:
    return row[:place] + bytes((row[place] ^ 0x55,)) + row[place + 1 :]


@pytest.fixture(scope="module")
def healthy() -> tuple[dict[bytes, bytes], dict[str, dict[str, tuple[Any, ...]]]]:
    storage = MemoryStorage()
    store = Store(storage, snapshot_frequency=6, reducers=REDUCERS, channels={"m": "upsert", "sum": "sum"})
    fill(store)
    assert check(store).ok
    return rows_of(storage), everything(store)


class TestDamage:
    def load(self, content: dict[bytes, bytes]) -> Storage:
        storage = MemoryStorage()
        with storage.write() as tx:
            for key, row in content.items():
                tx.put(key, row)
        return storage

    def read_all(
        self, store: Store, expected: dict[str, dict[str, tuple[Any, ...]]], every: int = 1
    ) -> list[DeltastoreError]:
        """Read what there is, in every way; what comes back is right or an error. `every`: the nth checkpoint only."""
        errors: list[DeltastoreError] = []

        def attempt(call: Callable[[], Any], right: Callable[[Any], bool]) -> None:
            try:
                value = call()
            except DeltastoreError as error:
                errors.append(error)
            else:
                assert right(value)

        def of(thread: Thread, id_: str) -> Any:
            state, metadata, parent, writes = expected[thread.name][id_]
            attempt(lambda: thread.state(at=id_), lambda found: found == state)
            attempt(
                lambda: thread.state(at=id_, channels=["m"]),
                lambda found: found == ({"m": state["m"]} if "m" in state else {}),
            )
            attempt(
                lambda: thread.checkpoint(id_), lambda found: (found.metadata, found.parent_id) == (metadata, parent)
            )
            attempt(lambda: thread.writes(id_), lambda found: found == writes)

        attempt(lambda: [info.name for info in store.threads()], lambda found: found == list(expected))
        for name, checkpoints in expected.items():
            thread = store.thread(name)
            newest = next(iter(checkpoints))
            attempt(thread.state, lambda found, right=checkpoints[newest][0]: found == right)
            attempt(thread.latest, lambda found, newest=newest: found.id == newest)
            attempt(partial(ids, thread), lambda found, right=list(checkpoints): found == right)
            for id_ in list(checkpoints)[::every]:
                of(thread, id_)
        return errors

    def test_no_flipped_byte_of_any_row_gives_a_wrong_value(self, healthy: Any) -> None:
        content, expected = healthy
        seed = random.SystemRandom().randrange(2**32)
        print(f"seed {seed}")
        chance = random.Random(seed)
        kinds = set()
        for key, row in content.items():
            storage = self.load(content | {key: damaged(row, chance.randrange(len(row)))})
            kind = key[6:7]
            kinds.add((key[:6] == keys.STORE, kind))
            if kind == b"F":
                with pytest.raises(CorruptionError, match=key.hex()):
                    Store(storage, reducers=REDUCERS)
                continue
            store = Store(storage, reducers=REDUCERS)
            errors = self.read_all(store, expected, every=9)
            assert all(isinstance(error, CorruptionError) for error in errors), errors
            assert all(key.hex() in str(error) for error in errors), errors
            report = check(store)
            if kind != b"C":  # the storage's own, read when a number is taken
                assert any(key.hex() in problem.where + problem.what for problem in report.problems), (key, report)
            if kind in b"hnr" and key[:6] != keys.STORE:
                assert errors
            assert rows_of(storage)[key] != row
        assert kinds == {(True, kind) for kind in (b"F", b"C", b"H", b"N")} | {
            (False, kind) for kind in (b"h", b"n", b"r", b"w", b"c")
        }

    def test_no_missing_row_gives_a_wrong_value(self, healthy: Any) -> None:
        content, expected = healthy
        for key in content:
            kind = key[6:7]
            if key == keys.FORMAT:
                continue
            storage = self.load({other: row for other, row in content.items() if other != key})
            store = Store(storage, reducers=REDUCERS)
            if key[:6] == keys.STORE and kind in b"CH":  # what named the thread or channel is gone: not found
                assert kind == b"C" or not check(store).ok
                continue
            if kind in b"nw":  # a namespace's row, or writes: as if never put; check tells
                assert kind == b"w" or not check(store).ok
                continue
            errors = self.states(store, expected)
            assert all(isinstance(error, (CorruptionError, NotFoundError)) for error in errors), (key, errors)
            assert not check(store).ok

    def states(self, store: Store, expected: dict[str, dict[str, tuple[Any, ...]]]) -> list[DeltastoreError]:
        errors: list[DeltastoreError] = []
        for name, checkpoints in expected.items():
            for id_, (state, *_) in list(checkpoints.items())[::2]:
                try:
                    assert store.thread(name).state(at=id_) == state
                except DeltastoreError as error:
                    errors.append(error)
        return errors

    def test_puts_onto_damage_are_refused(self, healthy: Any) -> None:
        content, expected = healthy
        for key, row in content.items():
            if key[:6] == keys.STORE or key[6:7] not in b"hn":
                continue
            storage = self.load(content | {key: damaged(row, 3)})
            store = Store(storage, reducers=REDUCERS)
            name = "t" if key[:6] == keys.thread(1) else "other"
            before = rows_of(storage)
            thread, newest = store.thread(name), next(iter(expected[name]))
            for call in (
                partial(thread.append, {"n": [1]}),
                partial(thread.put_state, {"n": [1]}),
                partial(thread.put_writes, newest, {"n": [1]}),
                partial(thread.delete, newest),
            ):
                with pytest.raises(ChecksumError, match=key.hex()):
                    call()
            assert rows_of(storage) == before

    def test_a_damaged_counter_gives_no_numbers(self, healthy: Any) -> None:
        content, _ = healthy
        for kind, put in (
            (keys.CHANNEL, lambda store: store.thread("t").append({"a new channel": 1})),
            (keys.THREAD, lambda store: store.thread("new").append({"n": [1]})),
        ):
            key = keys.counter(kind)
            storage = self.load(content | {key: damaged(content[key], 2)})
            with pytest.raises(ChecksumError):
                put(Store(storage, reducers=REDUCERS))

    def test_rows_that_were_sealed_with_other_content_raise_typed_errors(self, healthy: Any) -> None:
        """Not a disk's damage but a forger's, or an older fault of ours: never anything but our own errors."""
        content, expected = healthy
        seed = random.SystemRandom().randrange(2**32)
        print(f"seed {seed}")
        chance = random.Random(seed)
        for key, row in content.items():
            if key[6:7] == b"C":
                continue
            for _ in range(2):
                forged = bytearray(unseal(key, row))
                for _ in range(chance.randint(1, 3)):
                    forged[chance.randrange(len(forged))] = chance.randrange(256)
                storage = self.load(content | {key: seal(key, bytes(forged))})
                with contextlib.suppress(DeltastoreError):
                    self.use(Store(storage, reducers=REDUCERS), expected, chance)

    def use(self, store: Store, expected: dict[str, dict[str, tuple[Any, ...]]], chance: random.Random) -> None:
        check(store)
        for name, checkpoints in expected.items():
            thread = store.thread(name)
            calls: list[Callable[[], Any]] = [lambda: list(store.threads()), partial(ids, thread), thread.state]
            for id_ in chance.sample(list(checkpoints), 2):
                calls += [partial(read, id_) for read in (thread.state, thread.writes, thread.checkpoint)]
            calls += [
                partial(thread.append, {"n": [1], "last": 1}),
                partial(thread.delete, next(iter(checkpoints))),
                partial(store.copy, name, "c"),
            ]
            for call in calls:
                with contextlib.suppress(DeltastoreError):
                    call()


def test_a_thread_without_its_header_is_damaged_for_every_call() -> None:
    store = Store(MemoryStorage())
    store.thread("t").append({"m": [1]})
    put_raw(store.log.storage, keys.header(1), None)
    thread = store.thread("t")
    calls: list[Callable[[], object]] = [
        thread.state,
        lambda: thread.append({"m": [2]}),
        lambda: thread.delete("0" * 26),
        lambda: store.copy("t", "u"),
        lambda: list(store.threads()),
    ]
    for call in calls:
        with pytest.raises(ChecksumError, match=r"thread 't'.*no header"):
            call()


class TestWholeStores:
    @pytest.mark.parametrize(
        "call",
        [
            deltastore.compact,
            deltastore.maintain,
            deltastore.shrink,
            deltastore.repair,
            deltastore.plan_repair,
            deltastore.plan_retention,
            deltastore.apply_retention,
            lambda path: deltastore.backup(path, "there"),
            lambda path: deltastore.dump(path, "there"),
            lambda path: deltastore.load(path, "there"),
            CheckpointManager,
        ],
    )
    def test_a_path_is_no_open_store(self, call: Callable[[Any], Any], tmp_path: Path) -> None:
        with pytest.raises(InvalidInputError, match=r"a str .*; expected an open one"):
            call(str(tmp_path / "s"))
        assert list(tmp_path.iterdir()) == []

    def test_a_text_for_many_threads(self, filled: Store) -> None:
        """It is no collection of threads named by its letters."""
        with pytest.raises(InvalidInputError, match="expected a collection of names"):
            deltastore.compact(filled, threads="t")

    @pytest.mark.parametrize("level", ["x", 0, 99])
    def test_a_level_that_is_none(self, filled: Store, level: Any) -> None:
        for call in (deltastore.compact, deltastore.maintain):
            with pytest.raises(InvalidInputError, match="from 1 to 19"):
                call(filled, level=level)

    @pytest.mark.parametrize("file", [None, 5])
    def test_a_file_that_is_none(self, filled: Store, file: Any) -> None:
        for call in (deltastore.dump, deltastore.load):
            with pytest.raises(InvalidInputError, match="expected a path"):
                call(filled, file)

    @pytest.mark.parametrize("make", [deltastore.backup, deltastore.dump, deltastore.copy_store, deltastore.plan_copy])
    def test_nothing_is_kept_inside_the_store(self, make: Callable[[Store, Any], Any], tmp_path: Path) -> None:
        root = tmp_path / "s"
        (tmp_path / "link").symlink_to(root)
        with deltastore.open(root) as store:
            store.thread("t").append({"n": 1})
            before = sorted(root.rglob("*"))
            for place in (root / "env-9", str(root / "env-1" / "x"), tmp_path / "link" / "x"):
                with pytest.raises(StorePathError, match="inside the store"):
                    make(store, place)
            assert sorted(root.rglob("*")) == before
