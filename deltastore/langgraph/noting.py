"""Runs of messages noted field by field, so that one that is as it was needn't be encoded again.

A long conversation is put again and again with a few messages more. Looking at the fields of those it had takes a
fraction of the time of encoding them: texts are mostly the same objects, and what can be changed in place is packed,
many messages at once. Imports messages. The invariant: a run is taken for unchanged only where encoding it would give
the same bytes.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter
from types import NoneType
from typing import Any, Final, NamedTuple

import ormsgpack

from deltastore.codec.blobs import JSONPLUS_MESSAGE
from deltastore.codec.strict import PLAIN_ONLY
from deltastore.langgraph.messages import schema_of

RUN: Final = 128
"""Messages of a run: an edit costs the encoding of its run, and each run some calls."""

_state_of = attrgetter("__dict__")
_extra_of = attrgetter("__pydantic_extra__")
_TEXTS: Final = frozenset((str, NoneType))


class Told(NamedTuple):
    """A run of messages: their classes and, by class, their texts and all else, packed; no texts: all is packed."""

    classes: list[type]
    fields: list[tuple[list[tuple[Any, ...]], bytes]]


class Notes(NamedTuple):
    """The full runs at the beginning of a list; None where a run wasn't all plain messages."""

    runs: list[Told | None]


def encode(
    values: list[Any], encode_each: Callable[[list[Any]], list[bytes]], blobs: Sequence[bytes], notes: Notes | None
) -> tuple[list[bytes], Notes | None]:
    """Return the blobs of a list's elements, and notes of it. Raises what `encode_each` does.

    `blobs` and `notes` are of a list that this one is probably made of.
    """
    if len(values) < RUN:
        return encode_each(values), None
    known = notes.runs if notes is not None else []
    out: list[bytes] = []
    runs: list[Told | None] = []
    stop = len(values) - len(values) % RUN
    for start in range(0, stop, RUN):
        run = values[start : start + RUN]
        told = tell(run)
        before = known[len(runs)] if len(runs) < len(known) else None
        if told is not None and told == before:
            out += blobs[start : start + RUN]
        else:
            made = encode_each(run)
            out += made
            if not all(blob[0] == JSONPLUS_MESSAGE for blob in made):
                told = None  # another encoding may depend on more than the fields
        runs.append(told)
    out += encode_each(values[stop:])
    return out, Notes(runs)


def tell(run: Sequence[Any]) -> Told | None:
    """Return what messages consist of, or None where they aren't all plain ones. Raises nothing."""
    classes = list(map(type, run))
    fields: list[tuple[list[tuple[Any, ...]], bytes]] = []
    for cls in dict.fromkeys(classes):
        schema = schema_of(cls)
        if schema is None:
            return None
        members = [message for message, its in zip(run, classes, strict=True) if its is cls]
        states = list(map(_state_of, members))
        if set(map(len, states)) != {len(schema.fields)} or any(map(_extra_of, members)):
            return None
        try:
            texts, packed = list(map(schema.texts_of, states)), map(schema.others_of, states)
            if not set(map(type, chain.from_iterable(texts))) <= _TEXTS:  # lists of parts, say
                texts, packed = [], map(schema.all_of, states)
            fields.append((texts, ormsgpack.packb(list(map(list, packed)), option=PLAIN_ONLY)))
        except (KeyError, TypeError, ValueError):  # as where a message is encoded
            return None
    return Told(classes, fields)
