"""Strict loading of what can't be rebuilt, of what was forged, and of what names code: typed errors, nothing called."""

import importlib
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import AIMessageChunk, HumanMessage, RemoveMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Interrupt, Send
from pydantic import BaseModel

from deltastore import EncodeError, InvalidInputError, Store, TypeLostError, TypeRefusedError
from deltastore.langgraph import DeltaSaver
from deltastore.storage.memory import MemoryStorage
from tests.langgraph.comparing import checkpoint, config, difference
from tests.langgraph.forging import forge, tag_of
from tests.langgraph.test_saver import MyJsonPlus, Reversing, Xor
from tests.langgraph.test_strict_loading import Mine

MODULE = "module_of_a_user"
ALLOWED = [(MODULE, "Mine"), (MODULE, "Model"), (__name__, "Point")]

SOURCE = """
from dataclasses import dataclass
from pydantic import BaseModel

@dataclass
class Mine:
    x: int = 1

class Model(BaseModel):
    x: int = 1
"""


@dataclass
class Point:
    x: Any = 1


class OwnModel(BaseModel):
    """A pydantic model of the user's, that no allowlist names."""

    x: int = 1


class Modules:
    """A folder of modules that come and go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, source: str, name: str = MODULE) -> ModuleType:
        self.remove(name)
        (self.folder / f"{name}.py").write_text(source)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    def remove(self, name: str = MODULE) -> None:
        sys.modules.pop(name, None)
        (self.folder / f"{name}.py").unlink(missing_ok=True)
        importlib.invalidate_caches()


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Modules]:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a stale one could be taken for the new
    found = Modules(tmp_path)
    yield found
    found.remove()


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


def plain(storage: MemoryStorage) -> DeltaSaver:
    return DeltaSaver(Store(storage))


def strict(storage: MemoryStorage, allowed: Any = ALLOWED) -> DeltaSaver:
    return DeltaSaver(Store(storage), serde=JsonPlusSerializer(allowed_msgpack_modules=allowed), strict=True)


def put(saver: DeltaSaver, value: Any, id_: str = "1", thread: str = "t") -> None:
    saver.put(config(thread), checkpoint(id_, {"c": id_}, {"c": value}), {}, {"c": id_})


def value_of(saver: DeltaSaver, thread: str = "t") -> Any:
    found = saver.get_tuple(config(thread))
    assert found is not None
    return found.checkpoint["channel_values"]["c"]


NESTED: list[Callable[[Any], Any]] = [
    lambda value: value,
    lambda value: [1, value],
    lambda value: {"k": [{"deep": value}]},
    lambda value: Send("n", {"x": [value]}),
    lambda value: Interrupt(value={"x": value}, id="i"),
    lambda value: Point([Point(value)]),
    lambda value: deque([value]),
    lambda value: [HumanMessage("hi"), value],
    lambda value: _DeltaSnapshot([value]),
]


class TestGone:
    @pytest.mark.parametrize("nest", NESTED)
    @pytest.mark.parametrize("kind", ["Mine", "Model"])
    def test_a_module_that_is_gone(
        self, modules: Modules, storage: MemoryStorage, kind: str, nest: Callable[[Any], Any]
    ) -> None:
        """langgraph#6970: with strict an error; the bytes stay, in copies too, and load when the module is back."""
        module = modules.write(SOURCE)
        put(plain(storage), nest(getattr(module, kind)(x=5)))
        assert difference(value_of(plain(storage)), value_of(strict(storage))) is None
        modules.remove()
        with pytest.raises(TypeLostError, match=rf"{MODULE}\.{kind}.*without strict"):
            value_of(strict(storage))
        plain(storage).store.copy("t", "copy")
        module = modules.write(SOURCE)
        for thread in ("t", "copy"):
            again = value_of(strict(storage), thread)
            assert again == nest(getattr(module, kind)(x=5))
            assert difference(value_of(plain(storage), thread), again) is None

    @pytest.mark.parametrize(
        "source",
        [
            "",  # the class was renamed, or deleted
            "Mine = 5",
            "def Mine(**fields): raise RuntimeError",
            "from dataclasses import dataclass\n@dataclass\nclass Mine:\n    y: int = 1",
            "class Mine:\n    def __init__(self, **fields): raise RuntimeError('no')",
            "raise RuntimeError('a broken module')",
        ],
    )
    def test_a_class_that_changed(self, modules: Modules, storage: MemoryStorage, source: str) -> None:
        """langgraph#1965: a renamed class is lost; without strict its fields come back, as LangGraph gives them."""
        put(plain(storage), [modules.write(SOURCE).Mine(5)])
        modules.remove()
        (modules.folder / f"{MODULE}.py").write_text(source)
        with pytest.raises(TypeLostError, match=rf"{MODULE}\.Mine"):
            value_of(strict(storage))
        assert value_of(plain(storage)) == [{"x": 5}]

    def test_a_class_that_moved_and_left_its_name_loads(self, modules: Modules, storage: MemoryStorage) -> None:
        put(plain(storage), modules.write(SOURCE).Mine(5))
        modules.write(f"from {__name__} import Point as Mine")
        assert value_of(strict(storage)) == Point(5)

    def test_a_model_that_no_longer_fits_is_built_without_validation(
        self, modules: Modules, storage: MemoryStorage
    ) -> None:
        """As LangGraph does it: a value of the right class, never a dict."""
        put(plain(storage), modules.write(SOURCE).Model(x=5))
        module = modules.write("from pydantic import BaseModel\nclass Model(BaseModel):\n    x: int\n    new: int")
        found = value_of(strict(storage))
        assert type(found) is module.Model
        assert found.x == 5

    @pytest.mark.parametrize("value", [{(1, 2), (3, 4)}, frozenset({(1, 2)}), {"k": [{(1,)}]}, Point({(1,)})])
    def test_what_the_serializer_cannot_rebuild_at_all(self, storage: MemoryStorage, value: Any) -> None:
        """langgraph#8388: elements of sets come back as lists, which sets don't take."""
        put(plain(storage), value)
        with pytest.raises(TypeLostError, match=r"builtins\.(frozen)?set"):
            value_of(strict(storage))

    def test_everywhere_in_a_checkpoint(self, modules: Modules, storage: MemoryStorage) -> None:
        mine = modules.write(SOURCE).Mine
        saver = plain(storage)
        saver.put(config("frame"), checkpoint("1", {}, {}, more=mine()), {}, {})
        saver.put(config("metadata"), checkpoint("1", {}, {}), {"m": mine()}, {})  # type: ignore[typeddict-unknown-key]
        saver.put(config("writes"), checkpoint("1", {}, {}), {}, {})
        saver.put_writes(config("writes", "1"), [("c", mine())], "task")
        saver.put(config("history"), checkpoint("1", {"c": 1}, {"c": mine()}), {}, {"c": 1})
        saver.put(config("history", "1"), checkpoint("2", {}, {}), {}, {})
        modules.remove()
        reader = strict(storage)
        for thread in ("frame", "metadata", "writes", "history"):
            with pytest.raises(TypeLostError, match=MODULE):
                list(reader.list(config(thread)))
        with pytest.raises(TypeLostError, match=MODULE):
            reader.get_delta_channel_history(config=config("history", "2"), channels=["c"])
        with pytest.raises(TypeLostError, match=MODULE):
            list(reader.list(config("metadata"), filter={"m": 1}))

    @pytest.mark.parametrize("nest", NESTED[:4])
    def test_encrypted(self, modules: Modules, storage: MemoryStorage, nest: Callable[[Any], Any]) -> None:
        serde = EncryptedSerializer(Xor(), JsonPlusSerializer(allowed_msgpack_modules=ALLOWED))
        saver = DeltaSaver(Store(storage), serde=serde, strict=True)
        put(saver, nest(modules.write(SOURCE).Mine(5)))
        value_of(saver)
        modules.remove()
        with pytest.raises(TypeLostError, match=MODULE):
            value_of(saver)

    def test_a_form_that_this_langgraph_does_not_know(self, storage: MemoryStorage) -> None:
        saver = plain(storage)
        unknown = ormsgpack.packb([ormsgpack.Ext(99, b"x")])
        put(saver, ["old"])
        assert forge(storage, lambda blob: blob[:1] + unknown if b"old" in blob else None) == 1
        assert value_of(plain(storage)) == [None]  # as LangGraph reads it
        with pytest.raises(TypeLostError, match="extension 99"):
            value_of(strict(storage))

    @pytest.mark.parametrize("parts", [[], ["builtins"], "text", {"a": 1}, [1, 2, 3], [None, None, None], 5])
    @pytest.mark.parametrize("code", range(6))
    def test_malformed_objects(self, storage: MemoryStorage, code: int, parts: Any) -> None:
        put(plain(storage), ["old"])
        unknown = ormsgpack.packb([ormsgpack.Ext(code, ormsgpack.packb(parts, option=ormsgpack.OPT_NON_STR_KEYS))])
        assert forge(storage, lambda blob: blob[:1] + unknown if b"old" in blob else None) == 1
        with pytest.raises((TypeLostError, TypeRefusedError, ValueError)):  # the last is LangGraph's own
            value_of(strict(storage))


supported = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(),
        st.text(max_size=5),
        st.binary(max_size=5),
        st.decimals(allow_nan=False),
        st.uuids(),
        st.dates(),
        st.times(),
        st.timedeltas(),
        st.datetimes(timezones=st.none() | st.just(UTC) | st.just(ZoneInfo("Europe/Berlin"))),
        st.ip_addresses(),
        st.sampled_from([ZoneInfo("Asia/Tokyo"), Path("a/b"), timezone(timedelta(hours=1), "x"), UUID(int=1)]),
        st.sets(st.integers(-(2**63), 2**64 - 1) | st.text(max_size=2), max_size=3),
        st.frozensets(st.booleans()),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=2) | st.integers(0, 5), inner, max_size=3),
        st.tuples(inner, inner),
        st.lists(inner, max_size=3).map(deque),
        inner.map(Point),
        inner.map(lambda value: Send("n", value)),
        inner.map(lambda value: Interrupt(value=value, id="i")),
        inner.map(lambda value: HumanMessage("x", additional_kwargs={"k": value})),
        inner.map(lambda value: Document("x", metadata={"k": value})),
    ),
    max_leaves=8,
)


@given(supported)
def test_what_is_whole_loads_strictly_as_ever(value: Any) -> None:
    storage = MemoryStorage()
    put(plain(storage), value)
    found = difference(value_of(plain(storage)), value_of(strict(storage)))
    assert found is None, found


def test_langgraphs_own_classes_need_no_allowlist(storage: MemoryStorage) -> None:
    values = [
        AIMessageChunk("x"),
        RemoveMessage("1"),
        Document("x"),
        Send("n", 1),
        Interrupt(value=1, id="i"),
        date.max,
    ]
    put(DeltaSaver(Store(storage), strict=True), [*values, {Decimal(1)}, datetime(2026, 1, 1, tzinfo=UTC)])
    assert value_of(DeltaSaver(Store(storage), strict=True))[: len(values)] == values


class TestAllowlists:
    """langgraph#7695 and langgraph#7533: a class that nobody named is refused, and its module isn't imported."""

    @pytest.mark.parametrize("wrap", [lambda serde: serde, lambda serde: EncryptedSerializer(Xor(), serde)])
    def test_a_model_of_the_users_is_refused_until_it_is_named(self, storage: MemoryStorage, wrap: Any) -> None:
        saver = DeltaSaver(Store(storage), serde=wrap(JsonPlusSerializer(allowed_msgpack_modules=ALLOWED)), strict=True)
        value = [HumanMessage("hi", id="1"), OwnModel(x=2), {"m": OwnModel()}]
        put(saver, value)
        saver.put_writes(config("t", "1"), [("c", OwnModel())], "task")
        with pytest.raises(TypeRefusedError, match=r"OwnModel.*allowed_msgpack_modules"):
            saver.get_tuple(config("t"))
        clone = saver.with_allowlist([(__name__, "OwnModel")])
        found = clone.get_tuple(config("t"))
        assert found is not None
        assert found.checkpoint["channel_values"]["c"] == value
        assert found.pending_writes == [("task", "c", OwnModel())]
        with pytest.raises(TypeRefusedError, match="OwnModel"):
            next(saver.list(config("t")))

    def test_messages_load_through_every_allowlist(self, storage: MemoryStorage) -> None:
        value = [HumanMessage("hi", id="1"), HumanMessage("nested", id="2", additional_kwargs={"m": {1}})]
        saver = DeltaSaver(Store(storage), strict=True)
        put(saver, value)
        for reader in (saver, saver.with_allowlist([Mine]), saver.with_allowlist([]), strict(storage, [])):
            assert value_of(reader) == value

    @pytest.mark.parametrize(
        "make",
        [
            lambda: None,
            JsonPlusSerializer,  # which by itself imports whatever is named
            lambda: JsonPlusSerializer(allowed_msgpack_modules=ALLOWED),
            lambda: JsonPlusSerializer(pickle_fallback=True),
            lambda: EncryptedSerializer(Xor()),
        ],
    )
    def test_a_module_that_nobody_named_is_not_imported(
        self, modules: Modules, storage: MemoryStorage, make: Callable[[], Any]
    ) -> None:
        module = modules.write(SOURCE, "innocent")
        saver = DeltaSaver(Store(storage), serde=make(), strict=True)
        put(saver, [module.Mine()])
        mark = modules.folder / "imported"
        modules.remove("innocent")
        (modules.folder / "innocent.py").write_text(f"open({str(mark)!r}, 'w').close()\ndef Mine(**fields): pass")
        with pytest.raises(TypeRefusedError, match=r"innocent\.Mine"):
            value_of(saver)
        saver.serde = make() or saver.serde  # one given later is restricted as well
        with pytest.raises(TypeRefusedError, match=r"innocent\.Mine"):
            value_of(saver)
        assert "innocent" not in sys.modules
        assert not mark.exists()

    def test_the_allowlist_extends_a_serializer_that_had_none(self, storage: MemoryStorage) -> None:
        saver = DeltaSaver(Store(storage), serde=EncryptedSerializer(Xor()), strict=True)
        put(saver, Mine(3))
        with pytest.raises(TypeRefusedError, match="Mine"):
            value_of(saver)
        assert value_of(saver.with_allowlist([Mine])) == Mine(3)

    def test_a_subclass_without_allowlist_cannot_be_strict(self, storage: MemoryStorage, tmp_path: Path) -> None:
        with pytest.raises(InvalidInputError, match=r"MyJsonPlus.*allowed_msgpack_modules"):
            DeltaSaver(Store(storage), serde=MyJsonPlus(), strict=True)
        with pytest.raises(InvalidInputError, match="MyJsonPlus"):
            DeltaSaver.from_path(tmp_path / "s", serde=MyJsonPlus(), strict=True)
        saver = DeltaSaver(Store(storage), serde=MyJsonPlus(allowed_msgpack_modules=None), strict=True)
        put(saver, Mine())
        with pytest.raises(TypeRefusedError, match="Mine"):
            value_of(saver)

    def test_a_serializer_of_ones_own_that_allows_everything_inside(self, storage: MemoryStorage) -> None:
        saver = DeltaSaver(Store(storage), serde=Reversing(), strict=True)
        put(saver, [HumanMessage("hi"), {1}])
        assert value_of(saver) == [HumanMessage("hi"), {1}]
        put(saver, Mine(), "2")
        with pytest.raises(TypeRefusedError, match="Mine"):
            value_of(saver)

    def test_a_hook_of_ones_own_decides_alone(self, storage: MemoryStorage) -> None:
        serde = JsonPlusSerializer(__unpack_ext_hook__=lambda code, data: ("mine", code))
        saver = DeltaSaver(Store(storage), serde=serde, strict=True)
        put(saver, [Mine(), HumanMessage("hi")])
        assert value_of(saver) == [("mine", 2), ("mine", 5)]


class TestCalls:
    def test_pickles_are_never_loaded_strictly(self, storage: MemoryStorage) -> None:
        put(DeltaSaver(Store(storage), serde=JsonPlusSerializer(pickle_fallback=True)), 1j)
        for serde in (None, JsonPlusSerializer(pickle_fallback=True)):
            saver = DeltaSaver(Store(storage), serde=serde, strict=True)
            with pytest.raises(TypeRefusedError, match="'pickle'"):
                value_of(saver)
            with pytest.raises(EncodeError, match="complex"):
                put(saver, 1j)
        allowed = JsonPlusSerializer(pickle_fallback=True, allowed_msgpack_modules=ALLOWED)
        with pytest.raises(EncodeError, match="complex"):
            put(DeltaSaver(Store(storage), serde=allowed, strict=True), 1j)
        assert allowed.pickle_fallback  # the user's own stays as it was

    def test_forged_constructor_records_are_never_loaded_strictly(self, storage: MemoryStorage) -> None:
        """CVE-2025-64439: the old JSON format calls what it names; nothing here writes it."""
        saver = plain(storage)
        put(saver, 0.5)
        kind = f"{JsonPlusSerializer.__module__}.JsonPlusSerializer\0001\0opaque\0json"
        record = b'{"lc": 2, "type": "constructor", "id": ["os", "system"], "kwargs": {"command": "false"}}'
        tag = tag_of(saver.store, kind)
        assert forge(storage, lambda blob: tag + record if blob[1:] == ormsgpack.packb(0.5) else None) == 1
        with pytest.raises(TypeRefusedError, match="'json'"):
            value_of(DeltaSaver(Store(storage), strict=True))
