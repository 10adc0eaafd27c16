"""The fast path for langchain-core messages: their fields as msgpack, without pydantic on the way in or out.

It must be indistinguishable on reload from LangGraph's serializer, which dumps the model and validates it again. So it
only takes messages of exact known classes whose validation would change nothing, and steps aside for everything else.
Imports codec and langchain-core.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any, Final, NamedTuple

import ormsgpack
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from deltastore.codec.blobs import JSONPLUS_MESSAGE
from deltastore.codec.messageforms import FORMS
from deltastore.codec.strict import PLAIN_ONLY
from deltastore.errors import ChecksumError

_TAG: Final = bytes((JSONPLUS_MESSAGE,))
_USAGE: Final = ("input_tokens", "output_tokens", "total_tokens", "input_token_details", "output_token_details")
_USAGE_DETAILS: Final = {
    "input_token_details": ("audio", "cache_creation", "cache_read"),
    "output_token_details": ("audio", "reasoning"),
}
_TOOL_CALL: Final = ["name", "args", "id", "type"]
_TEXTS: Final = ("content", "type", "name", "id", "tool_call_id", "status")
_drain: Final = deque[None](maxlen=0).extend
"""Runs an iterator for what it does."""


class Schema(NamedTuple):
    """A class as this module knows it.

    `names` are the stored fields in order; `number` stands for class and names in the format. `fields` are all of them
    as the class orders them, `from_stored` makes such a row of the type and the stored ones. `texts_of` gives the
    fields that are text or None in most messages, the type among them; `others_of` gives the rest, `all_of` a
    whole row, and `from_told` makes one of both.
    """

    number: int
    cls: type[BaseMessage]
    kind: str
    names: tuple[str, ...]
    unchanged: Callable[[tuple[Any, ...]], bool]
    values_of: Callable[[dict[str, Any]], tuple[Any, ...]]
    fields: tuple[str, ...]
    current: bool
    from_stored: Callable[[Sequence[Any]], tuple[Any, ...]]
    texts: tuple[str, ...]
    others: tuple[str, ...]
    texts_of: Callable[[dict[str, Any]], tuple[Any, ...]]
    others_of: Callable[[dict[str, Any]], tuple[Any, ...]]
    all_of: Callable[[dict[str, Any]], tuple[Any, ...]]
    from_told: Callable[[Sequence[Any]], tuple[Any, ...]]

    def build(self, rows: Sequence[Sequence[Any]]) -> list[BaseMessage]:
        """Return messages with these values, each as `fields` are ordered, as LangGraph's reload makes them.

        That is, every field counts as set.
        """
        states = list(map(dict, map(zip, repeat(self.fields), rows)))
        if not self.current:  # another langchain-core: let it validate
            return [self.cls(**state) for state in states]
        made: list[BaseMessage] = list(map(self.cls.__new__, repeat(self.cls, len(states))))
        set_ = object.__setattr__
        _drain(map(set_, made, repeat("__dict__"), states))
        _drain(map(set_, made, repeat("__pydantic_fields_set__"), map(set, repeat(self.fields))))
        _drain(map(set_, made, repeat("__pydantic_extra__"), [{} for _ in made]))
        _drain(map(set_, made, repeat("__pydantic_private__"), repeat(None)))
        return made


def _plain_content(content: Any) -> bool:
    if type(content) is str:
        return True
    return type(content) is list and all(type(part) is dict or type(part) is str for part in content)


def _common(values: tuple[Any, ...]) -> bool:
    content, additional, metadata, name, id_ = values[:5]
    return (
        _plain_content(content)
        and type(additional) is dict
        and type(metadata) is dict
        and (name is None or type(name) is str)
        and (id_ is None or type(id_) is str)
    )


def _ai(values: tuple[Any, ...]) -> bool:
    """Whether AIMessage's validators would leave the values as they are."""
    tool_calls, invalid, usage = values[5:]
    return (
        _common(values)
        and "tool_calls" not in values[1]  # parsed into tool_calls where those are empty
        and type(invalid) is list
        and not invalid
        and type(tool_calls) is list
        and all(map(_plain_tool_call, tool_calls))
        and (usage is None or _plain_usage(usage))
    )


def _plain_tool_call(call: Any) -> bool:
    return (
        type(call) is dict
        and list(call) == _TOOL_CALL  # validation drops extras and restores this order
        and type(call["name"]) is str
        and type(call["args"]) is dict
        and (call["id"] is None or type(call["id"]) is str)
        and call["type"] == "tool_call"
        and type(call["type"]) is str
    )


def _plain_usage(usage: Any) -> bool:
    """Whether validation would keep the usage: known keys in their order, exact ints."""
    if type(usage) is not dict or list(usage) != [name for name in _USAGE if name in usage]:
        return False
    for name, value in usage.items():
        known = _USAGE_DETAILS.get(name)
        if known is None:
            if type(value) is not int:
                return False
        elif (
            type(value) is not dict
            or list(value) != [key for key in known if key in value]
            or not all(type(count) is int for count in value.values())
        ):
            return False
    return all(name in usage for name in _USAGE[:3])


def _tool(values: tuple[Any, ...]) -> bool:
    """Whether ToolMessage's validators would leave the values as they are."""
    tool_call_id, _, status = values[5:]
    return (
        _common(values)
        and type(values[0]) is str  # lists are coerced
        and type(tool_call_id) is str
        and type(status) is str
        and status in ("success", "error")
    )


def _schema(number: int, cls: type[BaseMessage], unchanged: Callable[[tuple[Any, ...]], bool] = _common) -> Schema:
    names = FORMS[number].fields
    fields = (*names[:3], "type", *names[3:])
    current = tuple(cls.model_fields) == fields
    kind = cls.model_fields["type"].default
    texts = tuple(name for name in fields if name in _TEXTS)
    others = tuple(name for name in fields if name not in _TEXTS)
    return Schema(
        number,
        cls,
        kind,
        names,
        unchanged,
        itemgetter(*names),
        fields,
        current,
        _in_order(("type", *names), fields),
        texts,
        others,
        itemgetter(*texts),
        itemgetter(*others),
        itemgetter(*fields),
        _in_order((*texts, *others), fields),
    )


def _in_order(given: tuple[str, ...], wanted: tuple[str, ...]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    return itemgetter(*map(given.index, wanted))


_SCHEMAS: Final = (
    _schema(1, HumanMessage),
    _schema(2, AIMessage, _ai),
    _schema(3, SystemMessage),
    _schema(4, ToolMessage, _tool),
)
_BY_CLASS: Final = {schema.cls: schema for schema in _SCHEMAS if schema.current}
_BY_NUMBER: Final = {schema.number: schema for schema in _SCHEMAS}


def schema_of(cls: type) -> Schema | None:
    """Return what is known of a class of messages, None if `encode` doesn't take it."""
    return _BY_CLASS.get(cls)


def encode(value: Any) -> bytes | None:
    """Return a message as a blob, or None where LangGraph's serializer must have it. Raises nothing."""
    schema = _BY_CLASS.get(type(value))
    if schema is None:
        return None
    state = value.__dict__
    if value.__pydantic_extra__ or len(state) != len(schema.fields) or state.get("type") != schema.kind:
        return None
    try:
        values = schema.values_of(state)
        if not schema.unchanged(values):
            return None
        return _TAG + ormsgpack.packb([schema.number, *values], option=PLAIN_ONLY)
    except (KeyError, TypeError, ValueError):
        return None  # a field is missing, or something in it isn't plain


def decode(blobs: Sequence[bytes]) -> list[BaseMessage]:
    """Return the messages of blobs that `encode` made. Raises ChecksumError."""
    try:
        stored = [ormsgpack.unpackb(memoryview(blob)[1:]) for blob in blobs]
        by_number: dict[int, list[list[Any]]] = {}
        for values in stored:
            by_number.setdefault(values[0], []).append(values)
        built = {number: iter(_built(_BY_NUMBER[number], group)) for number, group in by_number.items()}
        return [next(built[values[0]]) for values in stored]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ChecksumError(f"malformed message: {error}") from error


def _built(schema: Schema, stored: list[list[Any]]) -> list[BaseMessage]:
    if set(map(len, stored)) != {len(schema.fields)}:
        raise ValueError(f"it hasn't {len(schema.names)} fields")
    return schema.build([schema.from_stored([schema.kind, *values[1:]]) for values in stored])
