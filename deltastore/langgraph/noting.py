"""Runs of messages noted field by field, so that one that is as it was needn't be encoded, or decoded, again.

A long conversation is put and read again and again with a few messages more. Looking at the fields of those it had
takes a fraction of the time of encoding them: texts are mostly the same objects, and what can be changed in place is
packed, many messages at once. What was noted also makes new messages of the same fields, which share nothing but texts.
Imports messages. The invariants: a run is taken for unchanged only where encoding it would give the same bytes, and
what is made of notes is what decoding those bytes would give.
"""

from collections.abc import Callable, Sequence
from itertools import chain, compress, repeat
from operator import add, attrgetter, is_
from types import NoneType
from typing import Any, Final, NamedTuple

import ormsgpack
from langchain_core.messages import BaseMessage

from deltastore.codec.blobs import JSONPLUS_MESSAGE
from deltastore.codec.strict import PLAIN_ONLY
from deltastore.langgraph.messages import Schema, schema_of

RUN: Final = 128
"""Messages of a run: an edit costs the encoding of its run, and each run some calls."""
MIN_NOTED: Final = 8
"""Messages of a list that is noted; a shorter one is encoded in no time."""

_state_of = attrgetter("__dict__")
_extra_of = attrgetter("__pydantic_extra__")
_TEXTS: Final = frozenset((str, NoneType))


class Told(NamedTuple):
    """A run of messages: their classes and, by class, their texts one after the other and all else, packed.

    Where not all of a class's texts are texts, all is packed.
    """

    classes: list[type]
    fields: list[tuple[list[Any], bytes]]


class Notes(NamedTuple):
    """A list's blobs and its runs, of which the last may be short; None where one wasn't all plain messages."""

    blobs: list[bytes]
    runs: list[Told | None]

    def run(self, number: int) -> Told | None:
        """Return a run, or None where it isn't known."""
        return self.runs[number] if number < len(self.runs) else None


def encode(
    values: list[Any], encode_each: Callable[[list[Any]], list[bytes]], notes: Notes | None
) -> tuple[list[bytes], Notes | None]:
    """Return the blobs of a list's elements, and notes of it. Raises what `encode_each` does.

    `notes` are of a list that this one is probably made of.
    """
    if len(values) < MIN_NOTED:
        return encode_each(values), None
    known = notes or Notes([], [])
    out: list[bytes] = []
    runs: list[Told | None] = []
    for number, start in enumerate(range(0, len(values), RUN)):
        run = values[start : start + RUN]
        told, before, same = None, known.run(number), 0
        if before is not None:
            told = _tell(run[: len(before.classes)], before)
            if told is before or told == before:
                same = len(before.classes)
                out += known.blobs[start : start + same]
        if same < len(run):
            made = encode_each(run[same:])
            out += made
            told = _tell(run) if _are_messages(made) else None  # else it may depend on more than the fields
        runs.append(told)
    return out, Notes(out, runs)


def note(values: list[Any], blobs: list[bytes], notes: Notes | None) -> Notes | None:
    """Return notes of a list that was made of these blobs; `notes` are those that it was decoded with."""
    if len(values) < MIN_NOTED or len(values) != len(blobs):
        return None
    runs: list[Told | None] = []
    for number, start in enumerate(range(0, len(values), RUN)):
        run, its = values[start : start + RUN], blobs[start : start + RUN]
        before = notes.run(number) if notes is not None else None
        if notes is not None and before is not None and its == notes.blobs[start : start + RUN]:
            runs.append(before)
        else:
            runs.append(_tell(run) if _are_messages(its) else None)
    return Notes(blobs, runs)


def decode(blobs: Sequence[bytes], decode_each: Callable[[Sequence[bytes]], list[Any]], notes: Notes) -> list[Any]:
    """Return the list of these blobs, runs that are in the notes made of them. Raises what `decode_each` does."""
    out: list[Any] = []
    for number, start in enumerate(range(0, len(blobs), RUN)):
        run, told = blobs[start : start + RUN], notes.run(number)
        same = 0
        if told is not None and run[: len(told.classes)] == notes.blobs[start : start + len(told.classes)]:
            same = len(told.classes)
            out += _made_of(told)
        if same < len(run):
            out += decode_each(run[same:])
    return out


def _are_messages(blobs: Sequence[bytes]) -> bool:
    return all(blob[0] == JSONPLUS_MESSAGE for blob in blobs)


def _tell(run: Sequence[Any], before: Told | None = None) -> Told | None:
    """Return what messages consist of, or None where they aren't all plain ones. Raises nothing.

    It is `before` itself where it is equal and the texts are the same objects.
    """
    classes = list(map(type, run))
    known = before if before is not None and before.classes == classes else None
    fields: list[tuple[list[Any], bytes]] = []
    for place, cls in enumerate(dict.fromkeys(classes)):
        schema = schema_of(cls)
        if schema is None:
            return None
        members = compress(run, map(is_, classes, repeat(cls)))
        told = _tell_class(list(members), schema, known.fields[place] if known else None)
        if told is None:
            return None
        fields.append(told)
    if known is not None and all(map(is_, fields, known.fields)):
        return known
    return Told(classes, fields)


def _tell_class(
    messages: list[Any], schema: Schema, before: tuple[list[Any], bytes] | None
) -> tuple[list[Any], bytes] | None:
    states = list(map(_state_of, messages))
    if set(map(len, states)) != {len(schema.fields)} or any(map(_extra_of, messages)):
        return None
    try:
        texts = list(chain.from_iterable(map(schema.texts_of, states)))
        # texts that were checked before needn't even be looked at
        same = before is not None and len(before[0]) == len(texts) and all(map(is_, texts, before[0]))
        packed = map(schema.others_of, states)
        if not same and not set(map(type, texts)) <= _TEXTS:  # lists of parts, say
            texts, packed = [], map(schema.all_of, states)
        others = ormsgpack.packb(list(chain.from_iterable(packed)), option=PLAIN_ONLY)
    except (KeyError, TypeError, ValueError):  # as where a message is encoded
        return None
    return before if same and before is not None and others == before[1] else (texts, others)


def _made_of(told: Told) -> list[BaseMessage]:
    """Return new messages of these fields."""
    made = {}
    for cls, (texts, packed) in zip(dict.fromkeys(told.classes), told.fields, strict=True):
        schema = schema_of(cls)
        assert schema is not None  # it told of them
        values = ormsgpack.unpackb(packed)
        if texts:
            rows = map(add, _rows(texts, len(schema.texts)), _rows(values, len(schema.others)))
            made[cls] = iter(schema.build(list(map(schema.from_told, rows))))
        else:
            made[cls] = iter(schema.build(list(_rows(values, len(schema.fields)))))
    return [next(made[cls]) for cls in told.classes]


def _rows(values: list[Any], width: int) -> "zip[tuple[Any, ...]]":
    each = [iter(values)] * width
    return zip(*each, strict=True)
