"""Values of agents as the plain data that the store takes, and back: equal, and of the same classes.

Dataclasses, pydantic models, named tuples and enums are rebuilt by the name of their class, from their fields, without
running their constructors. Imports codec and errors; pydantic is used where the program has it, never imported. The
invariant: reading imports nothing, and builds only classes that were registered or are in modules that the process has.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import repeat
from typing import Any, Final

from deltastore.agent.kinds import PLAIN_KINDS, READERS, TAG, Refused, tagged
from deltastore.codec.blobs import Cut, cut
from deltastore.codec.strict import STRICT, known_elements
from deltastore.errors import EncodeError, TypeLostError

_OWN: Final = b"\xa1" + TAG.encode()
"""What the encoding of a tag begins with, or of a dict of the user's that has such a key."""
_LEAVES: Final = frozenset((type(None), bool, float, str, bytes))
_MIN_INT, _MAX_INT = -(2**63), 2**64 - 1
MAX_NESTING: Final = 90
"""How deep a value may nest: tags take a level more each, and the store's own limit is 200."""
_NOT_DATACLASSES: Final = (dict, list, tuple, set, frozenset, str, bytes, int, float, BaseException)
"""Bases whose own content the fields of a dataclass don't hold."""


class Values:
    """The codec of one manager, with the classes registered there. Thread-safe once made.

    >>> import datetime
    >>> values = Values()
    >>> when = (datetime.date(2026, 11, 30), {"~": 1})
    >>> values.decode(values.encode(when)) == when
    True
    """

    def __init__(self, types: Iterable[type] = ()) -> None:
        self._registered = {name_of(cls): cls for cls in types}

    def encode(self, value: Any, what: str = "value") -> Any:
        """Return plain data that stands for a value. Raises EncodeError, naming `what` and the path within it."""
        return _located(what, lambda: self._encode(value, 0))

    def cut(self, value: Any, what: str, before: Cut | None) -> Cut:
        """Return what stands for a value, taken apart; of the value only immutable parts are kept.

        `before` is what this made of a value that this one is probably made of: what it has of that isn't looked into
        again. Raises EncodeError as `encode` does.
        """
        if type(value) is not list or before is None:
            return cut(self.encode(value, what), STRICT, what)
        known = known_elements(value, before.blobs, but=_OWN)
        plain = _located(what, lambda: self._items(value, 0, known))
        return cut(plain, STRICT, what, before)

    def decode(self, plain: Any) -> Any:
        """Undo `encode`. Raises TypeLostError."""
        kind = type(plain)
        if kind is list:
            return [self.decode(item) for item in plain]
        if kind is not dict:
            return plain
        if TAG not in plain:
            return {key: self.decode(item) for key, item in plain.items()}
        return self._rebuild(plain)

    # --- encoding

    def _encode(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind in _LEAVES:
            return value
        if kind is int:
            return value if _MIN_INT <= value <= _MAX_INT else tagged("int", str(value))
        if depth > MAX_NESTING:
            raise Refused(f"nested deeper than {MAX_NESTING}, or in itself")
        if kind is list:
            return self._items(value, depth)
        if kind is dict:
            return self._dict(value, depth)
        known = PLAIN_KINDS.get(kind)
        if known is not None:
            name, take = known
            return tagged(name, take(value, lambda items: self._items(items, depth + 1)))
        return self._object(value, kind, depth)

    def _items(self, items: Iterable[Any], depth: int, known: Iterable[object] = repeat(None)) -> list[Any]:
        return [
            item if same or type(item) in _LEAVES else self._within(item, depth, _place, place)
            for place, (item, same) in enumerate(zip(items, known))  # noqa: B905 - known may have no end
        ]

    def _dict(self, value: dict[Any, Any], depth: int) -> Any:
        if all(type(key) in _LEAVES or (type(key) is int and _MIN_INT <= key <= _MAX_INT) for key in value):
            made = {
                key: item if type(item) in _LEAVES else self._within(item, depth, _key, key)
                for key, item in value.items()
            }
            return tagged("dict", made) if TAG in value else made
        pairs = [[self._encode(key, depth + 1), self._within(item, depth, _key, key)] for key, item in value.items()]
        return tagged("pairs", pairs)

    def _within(self, value: Any, depth: int, step: Callable[[Any], str], at: Any) -> Any:
        try:
            return self._encode(value, depth + 1)
        except Refused as refused:
            refused.path.append(step(at))
            raise

    def _object(self, value: Any, kind: type, depth: int) -> Any:
        if is_enum(kind):
            return self._named("enum", kind, self._encode(value.value, depth + 1))
        if is_named_tuple(kind):
            return self._named("namedtuple", kind, self._items(value, depth))
        if is_model(kind):
            return self._model(value, kind, depth)
        if dataclasses.is_dataclass(kind) and not issubclass(kind, _NOT_DATACLASSES):
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(kind) if hasattr(value, f.name)}
            others = {name: item for name, item in getattr(value, "__dict__", {}).items() if name not in fields}
            return self._named("dataclass", kind, self._attributes(fields | others, depth))
        raise Refused(
            f"type {kind.__module__}.{kind.__qualname__} can't be stored; plain data, dataclasses, pydantic models, "
            "enums, times, paths and the like can"
        )

    def _model(self, value: Any, kind: type, depth: int) -> dict[str, Any]:
        extra, private = value.__pydantic_extra__, value.__pydantic_private__
        made = self._named("pydantic", kind, self._attributes(value.__dict__, depth))
        made["set"] = sorted(value.__pydantic_fields_set__)
        if extra is not None:
            made["extra"] = self._attributes(extra, depth)
        if private is not None:
            made["private"] = self._attributes(private, depth)
        return made

    def _attributes(self, attributes: dict[str, Any], depth: int) -> dict[str, Any]:
        return {name: self._within(item, depth, _attribute, name) for name, item in attributes.items()}

    def _named(self, tag: str, cls: type, content: Any) -> dict[str, Any]:
        name = name_of(cls)
        if self._registered.get(name, _imported(name)) is not cls:
            raise Refused(f"class {name} can't be found by that name again; register it with types=[…]")
        return {**tagged(tag, content), "class": name}

    # --- decoding

    def _rebuild(self, plain: dict[str, Any]) -> Any:
        tag, content = plain[TAG], plain["of"]
        if tag == "dict":
            return {key: self.decode(item) for key, item in content.items()}
        if tag == "pairs":
            return {self.decode(key): self.decode(item) for key, item in content}
        if tag in READERS:
            return READERS[tag](content, lambda items: [self.decode(item) for item in items])
        cls = self._class(plain["class"], tag)
        if tag == "enum":
            return _checked(cls, lambda: cls(self.decode(content)))
        if tag == "namedtuple":
            return _checked(cls, lambda: cls(*[self.decode(item) for item in content]))
        attributes = {name: self.decode(item) for name, item in content.items()}
        made = object.__new__(cls)
        if tag == "dataclass":
            _checked(cls, lambda: _set_attributes(made, attributes))
            return made
        object.__setattr__(made, "__dict__", attributes)
        object.__setattr__(made, "__pydantic_fields_set__", set(plain["set"]))
        for part in ("extra", "private"):
            found = plain.get(part)
            decoded = None if found is None else {name: self.decode(item) for name, item in found.items()}
            object.__setattr__(made, f"__pydantic_{part}__", decoded)
        return made

    def _class(self, name: str, tag: str) -> Any:
        cls = self._registered.get(name, _imported(name))
        if not isinstance(cls, type) or not _FITS[tag](cls):
            raise TypeLostError(
                f"a stored value is of class {name}, which isn't here as a {tag}: import its module first, or "
                "register the class with types=[…]"
            )
        return cls


def name_of(cls: type) -> str:
    """Return what a class is stored as."""
    return f"{cls.__module__}:{cls.__qualname__}"


def is_enum(cls: type) -> bool:
    """Tell whether a class is an enum, without importing enum's machinery anew."""
    return isinstance(cls, sys.modules["enum"].EnumType)


def is_named_tuple(cls: type) -> bool:
    """Tell whether a class is made by NamedTuple or namedtuple."""
    return issubclass(cls, tuple) and cls.__bases__ == (tuple,) and hasattr(cls, "_fields")


def is_model(cls: type) -> bool:
    """Tell whether a class is a pydantic model; where pydantic isn't imported there are none."""
    pydantic = sys.modules.get("pydantic")
    base = getattr(pydantic, "BaseModel", None)
    return isinstance(base, type) and issubclass(cls, base) and hasattr(cls, "__pydantic_fields__")


_FITS: Final[dict[str, Callable[[type], bool]]] = {
    "enum": is_enum,
    "namedtuple": is_named_tuple,
    "pydantic": is_model,
    "dataclass": lambda cls: dataclasses.is_dataclass(cls) and not issubclass(cls, _NOT_DATACLASSES),
}
"""What a class must be to be rebuilt as a tag says: a stored name alone builds nothing else."""


def _located(what: str, encode: Callable[[], Any]) -> Any:
    try:
        return encode()
    except Refused as refused:
        path = "".join(reversed(refused.path))
        raise EncodeError(f"{what}{path}: {refused}", path=path) from None


def _imported(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def _set_attributes(made: object, attributes: Mapping[str, Any]) -> None:
    for name, item in attributes.items():
        object.__setattr__(made, name, item)


def _checked(cls: type, build: Callable[[], Any]) -> Any:
    try:
        return build()
    except (TypeError, ValueError, AttributeError) as error:
        raise TypeLostError(f"class {name_of(cls)} refuses what was stored of it: {error}") from error


def _place(at: Any) -> str:
    return f"[{at}]"


def _key(at: Any) -> str:
    return f"[{at!r}]"


def _attribute(at: Any) -> str:
    return f".{at}"
