"""Where two values differ, type by type: what `validate` warns of, and what a filter may not match.

Pure; imports nothing of the project. The invariant: it ends, and raises nothing, whatever the values are: no value's
own `__eq__` or `__repr__` is trusted, and neither cycles nor depth are limits.
"""

import dataclasses
import reprlib
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, time, timezone
from decimal import Decimal
from enum import Enum
from itertools import zip_longest
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

_FOLDED = "…"


class _Absent:
    """Stands where one of the values has nothing."""


_ABSENT: Final = _Absent()
_Step = tuple[str, Any]
"""How a part is reached: a form for `str.format`, and what it shows."""
_Part = tuple[_Step, Any, Any]
_INDEX, _FIELD, _KEY, _MEMBER = "[{}]", ".{}", ".keys()[{}]", "{{{}}}"
_SHOWN = frozenset((bool, int, float, type(None)))
"""Types whose values a message may show; those of others may be long, or secret."""


class Difference(NamedTuple):
    """One place where two values differ; `one` and `other` say what stands there."""

    path: str
    one: str
    other: str


def differences(one: Any, other: Any, *, signed_zeros: bool = True) -> Iterator[Difference]:
    """Find where two values differ in type or value, the parts of both in their order; lazily.

    NaN equals NaN, dicts and sets have no order, and what pydantic notes as set isn't compared. A part whose type
    differs isn't searched further. With `signed_zeros`, -0.0 differs from 0.0.
    """
    # a stack of its own: values may be deeper than Python calls
    rest: list[Iterator[_Part]] = [iter(((("", None), one, other),))]
    steps: list[_Step] = [("", None)]
    inside: dict[tuple[int, int], None] = {}  # what the walk is inside of: a pair that comes again is a cycle
    while rest:
        part = _next(rest[-1])
        if part is None:
            rest.pop()
            steps.pop()
            if inside:
                inside.popitem()
            continue
        steps[-1], left, right = part
        if type(left) is not type(right):
            yield Difference(_path(steps), _kind(left), _kind(right))
            continue
        both = (id(left), id(right))
        try:
            found = _compare(left, right, signed_zeros)
        except Exception:  # noqa: BLE001 - anybody's code
            found = True  # of what can't be told, the type is all that is known
        if isinstance(found, bool):
            if not found:
                shown, came = _shown(left), _shown(right)
                yield Difference(_path(steps), shown, came if came != shown else f"another {came}")
        elif both not in inside:
            inside[both] = None
            rest.append(iter(found))
            steps.append(("", None))


def _next(parts: Iterator[_Part]) -> _Part | None:
    try:
        return next(parts, None)
    except Exception:  # noqa: BLE001 - iterating is anybody's code
        return None


def _compare(one: Any, other: Any, signed_zeros: bool) -> bool | Iterable[_Part]:
    """Say whether two values of one type are the same, or give the parts that decide it."""
    kind = type(one)
    if kind is float:
        return _same_float(one, other, signed_zeros)
    if issubclass(kind, Enum):
        return one is other
    for known, parts in _PARTS:
        if issubclass(kind, known):
            return parts(one, other)
    if dataclasses.is_dataclass(kind):
        return _fields((field.name for field in dataclasses.fields(kind)), one, other)
    if isinstance(getattr(kind, "model_fields", None), dict):
        return _model_parts(one, other)
    return _same_object(one, other)


def _same_float(one: float, other: float, signed_zeros: bool) -> bool:
    if one != one or other != other:  # noqa: PLR0124 - NaN
        return one != one and other != other  # noqa: PLR0124
    return struct.pack("d", one) == struct.pack("d", other) if signed_zeros else one == other


def _same_object(one: Any, other: Any) -> bool | Iterable[_Part]:
    kind: Any = type(one)
    answer: Any = None
    if kind.__eq__ is not object.__eq__:
        try:
            answer = one == other
        except Exception:  # noqa: BLE001 - anybody's code
            answer = None
        if answer is True:
            return True
    names = _state_names(one)
    if names:
        return _fields(names, one, other)
    if hasattr(kind, "tobytes") and hasattr(kind, "dtype"):  # an array answers == with an array
        return bool((one.dtype.str, one.shape, one.tobytes()) == (other.dtype.str, other.shape, other.tobytes()))
    return answer is not False


def _state_names(value: Any) -> list[str]:
    names = list(getattr(value, "__dict__", ()))
    for base in type(value).__mro__:
        slots = base.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    return [name for name in names if isinstance(name, str) and name not in ("__dict__", "__weakref__")]


def _fields(names: Iterable[str], one: Any, other: Any) -> Iterator[_Part]:
    for name in names:
        yield (_FIELD, name), _attribute(one, name), _attribute(other, name)


def _attribute(value: Any, name: str) -> Any:
    try:
        return getattr(value, name)
    except Exception:  # noqa: BLE001 - anybody's code
        return _ABSENT


def _model_parts(one: Any, other: Any) -> Iterator[_Part]:
    """The parts of a pydantic model: its fields, then what it took besides them, then what it keeps to itself."""
    yield from _fields(type(one).model_fields, one, other)
    for name in ("__pydantic_extra__", "__pydantic_private__"):
        mine, theirs = getattr(one, name, None) or {}, getattr(other, name, None) or {}
        for key in {**mine, **theirs}:
            yield (_FIELD, key), mine.get(key, _ABSENT), theirs.get(key, _ABSENT)


def _elements(one: Any, other: Any) -> Iterator[_Part]:
    for place, (mine, theirs) in enumerate(zip_longest(one, other, fillvalue=_ABSENT)):
        yield (_INDEX, place), mine, theirs


def _queue(one: Any, other: Any) -> Iterator[_Part]:
    yield from _elements(one, other)
    yield from _fields(("maxlen",), one, other)


def _entries(one: Any, other: Any) -> Iterator[_Part]:
    mine, theirs = list(dict.items(one)), list(dict.items(other))
    for place, (left, right) in enumerate(_paired(mine, theirs, lambda entry: entry[0])):
        key = left[0] if left is not _ABSENT else right[0]
        if left is _ABSENT or right is _ABSENT:
            yield (_INDEX, key), *(entry if entry is _ABSENT else entry[1] for entry in (left, right))
            continue
        yield (_KEY, place), left[0], right[0]
        yield (_INDEX, key), left[1], right[1]


def _members(one: Any, other: Any) -> Iterator[_Part]:
    for mine, theirs in _paired(list(one), list(other), lambda member: member):
        yield (_MEMBER, _FOLDED), mine, theirs


def _paired(mine: list[Any], theirs: list[Any], key_of: Callable[[Any], Any]) -> Iterable[tuple[Any, Any]]:
    """Bring together what has equal keys; the rest as it stands, for keys that changed, or hold NaN."""
    try:
        by_key = {key_of(item): item for item in theirs}
        partners = [by_key.pop(key_of(item), _ABSENT) for item in mine]
    except Exception:  # noqa: BLE001 - the keys are anybody's
        return zip_longest(mine, theirs, fillvalue=_ABSENT)
    left = iter(by_key.values())
    return [
        *(
            (item, next(left, _ABSENT) if found is _ABSENT else found)
            for item, found in zip(mine, partners, strict=True)
        ),
        *((_ABSENT, item) for item in left),
    ]


def _moments(one: Any, other: Any) -> bool | Iterable[_Part]:
    """The parts of a datetime or time: `==` ignores which zone it is in, and the fold."""
    if one.replace(tzinfo=None, fold=0) != other.replace(tzinfo=None, fold=0):
        return False
    return _fields(("tzinfo", "fold"), one, other)


def _offsets(one: timezone, other: timezone) -> bool:
    return one == other and one.tzname(None) == other.tzname(None)


_PARTS: Final[tuple[tuple[Any, Callable[[Any, Any], bool | Iterable[_Part]]], ...]] = (
    (str, str.__eq__),
    (bytes, bytes.__eq__),
    (bytearray, bytearray.__eq__),
    (int, int.__eq__),
    (type(None), lambda *_: True),
    ((list, tuple), _elements),
    (dict, _entries),
    ((set, frozenset), _members),
    (deque, _queue),
    ((datetime, time), _moments),
    (timezone, _offsets),
    (ZoneInfo, lambda one, other: bool(one.key == other.key)),
    (Decimal, lambda one, other: bool(one.as_tuple() == other.as_tuple())),
)
"""How values of known types are compared, by the first base class that fits."""


def _path(steps: list[_Step]) -> str:
    return "".join(form.format(what if form in (_FIELD, _MEMBER) else _safe_repr(what)) for form, what in steps if form)


def _safe_repr(value: Any) -> str:
    try:
        return repr(value) if type(value) in (str, int) else reprlib.repr(value)
    except Exception:  # noqa: BLE001 - anybody's code
        return f"<{type(value).__name__}>"


def _kind(value: Any) -> str:
    return "nothing" if value is _ABSENT else type(value).__name__


def _shown(value: Any) -> str:
    return f"{type(value).__name__} {value!r}" if type(value) in _SHOWN else type(value).__name__
