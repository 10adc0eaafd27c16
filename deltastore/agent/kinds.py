"""Kinds of values of Python's own library, each as plain data under a tag of its own.

Imports nothing of the project. The invariant: what a tag's reader returns equals what its writer took, in value and in
class; a time keeps its zone and its fold.
"""

import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from pathlib import PosixPath, PurePosixPath, PureWindowsPath
from typing import Any, Final
from zoneinfo import ZoneInfo

TAG: Final = "~"
"""The key that tells a tagged map from a dict of the user's; one that has it is put under a tag itself."""

Items = Callable[[Iterable[Any]], list[Any]]
"""Encodes, or decodes, what a container holds."""


class Refused(Exception):
    """A value, or a part of it, can't be stored; `path` is gathered from the inside out."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.path: list[str] = []


def tagged(tag: str, content: Any) -> dict[str, Any]:
    """Return content under a tag."""
    return {TAG: tag, "of": content}


def _zone(zone: tzinfo | None) -> Any:
    if zone is None:
        return None
    if isinstance(zone, ZoneInfo) and zone.key is not None:
        return zone.key
    if type(zone) is timezone:
        return _span(zone.utcoffset(None))
    raise Refused(f"a time zone of type {type(zone).__name__}; zoneinfo's and fixed ones can be stored")


def _read_zone(stored: Any) -> tzinfo | None:
    if stored is None:
        return None
    if isinstance(stored, str):
        return ZoneInfo(stored)
    return UTC if not any(stored) else timezone(timedelta(*stored))


def _span(value: timedelta) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


def _datetime(value: datetime, _: Items) -> list[Any]:
    return [value.replace(tzinfo=None, fold=0).isoformat(), _zone(value.tzinfo), value.fold]


def _time(value: time, _: Items) -> list[Any]:
    return [value.replace(tzinfo=None, fold=0).isoformat(), _zone(value.tzinfo), value.fold]


def _unordered(value: Iterable[Any], items: Items) -> list[Any]:
    return sorted(items(value), key=repr)  # so that equal sets are stored as equal bytes


def _text(value: Any, _: Items) -> str:
    return str(value)


PLAIN_KINDS: Final[dict[type, tuple[str, Callable[[Any, Items], Any]]]] = {
    tuple: ("tuple", lambda value, items: items(value)),
    set: ("set", _unordered),
    frozenset: ("frozenset", _unordered),
    deque: ("deque", lambda value, items: [items(value), value.maxlen]),
    OrderedDict: ("ordered", lambda value, items: [items(value.keys()), items(value.values())]),
    bytearray: ("bytearray", lambda value, _: bytes(value)),
    complex: ("complex", lambda value, _: [value.real, value.imag]),
    datetime: ("datetime", _datetime),
    date: ("date", lambda value, _: value.isoformat()),
    time: ("time", _time),
    timedelta: ("timedelta", lambda value, _: _span(value)),
    uuid.UUID: ("uuid", lambda value, _: value.bytes),
    Decimal: ("decimal", _text),
    Fraction: ("fraction", _text),
    PosixPath: ("path", _text),
    PurePosixPath: ("posixpath", _text),
    PureWindowsPath: ("windowspath", _text),
}
"""How each class is taken apart: its tag, and what stands under it."""

READERS: Final[dict[str, Callable[[Any, Items], Any]]] = {
    "int": lambda stored, _: int(stored),
    "tuple": lambda stored, items: tuple(items(stored)),
    "set": lambda stored, items: set(items(stored)),
    "frozenset": lambda stored, items: frozenset(items(stored)),
    "deque": lambda stored, items: deque(items(stored[0]), stored[1]),
    "ordered": lambda stored, items: OrderedDict(zip(items(stored[0]), items(stored[1]), strict=True)),
    "bytearray": lambda stored, _: bytearray(stored),
    "complex": lambda stored, _: complex(*stored),
    "datetime": lambda stored, _: datetime.fromisoformat(stored[0]).replace(
        tzinfo=_read_zone(stored[1]), fold=stored[2]
    ),
    "date": lambda stored, _: date.fromisoformat(stored),
    "time": lambda stored, _: time.fromisoformat(stored[0]).replace(tzinfo=_read_zone(stored[1]), fold=stored[2]),
    "timedelta": lambda stored, _: timedelta(*stored),
    "uuid": lambda stored, _: uuid.UUID(bytes=stored),
    "decimal": lambda stored, _: Decimal(stored),
    "fraction": lambda stored, _: Fraction(stored),
    "path": lambda stored, _: PosixPath(stored),
    "posixpath": lambda stored, _: PurePosixPath(stored),
    "windowspath": lambda stored, _: PureWindowsPath(stored),
}
"""How each tag's content becomes a value again."""
