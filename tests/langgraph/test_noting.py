"""A list of messages is encoded, and decoded, alike whether or not much of it is known: what is skipped is never what
changed.
"""

import copy
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from deltastore.codec.blobs import assemble, cut
from deltastore.codec.records import LIST
from deltastore.langgraph import messages, noting
from deltastore.langgraph.serializer import codec_for

CODEC = codec_for(JsonPlusSerializer(), lambda name: 32, lambda tag: "")


class Text(str):
    __slots__ = ()


def message(number: int) -> BaseMessage:
    name = f"m{number}"
    match number % 5:
        case 0:
            return HumanMessage(f"question {number}", id=name)
        case 1:
            call = {
                "name": "search",
                "args": {"q": [number, {"deep": number}]},
                "id": f"c{number}",
                "type": "tool_call",
            }
            return AIMessage("", id=name, tool_calls=[call], response_metadata={"model": "m", "n": number})
        case 2:
            return ToolMessage(f"found {number}", tool_call_id=f"c{number - 1}", id=name, artifact={"rows": [number]})
        case 3:
            usage = {"input_tokens": number, "output_tokens": 2, "total_tokens": number + 2}
            return AIMessage(f"answer {number}", id=name, usage_metadata=usage)
    return SystemMessage([{"type": "text", "text": f"part {number}"}, "more"], id=name)


def set_field(**fields: Any) -> Any:
    return lambda found: found.__dict__.update(fields)


def deep(found: Any) -> None:
    for call in getattr(found, "tool_calls", ()):
        call["args"]["q"][1]["deep"] = "changed"


CHANGES = {
    "a text": set_field(content="changed"),
    "a text of a subclass": lambda found: found.__dict__.update(content=Text(found.content)),
    "a text for a list": set_field(content=["changed"]),
    "a name": set_field(name="somebody"),
    "no id": set_field(id=None),
    "an id of a subclass": lambda found: found.__dict__.update(id=Text(found.id)),
    "deep in the arguments": deep,
    "an entry": lambda found: found.additional_kwargs.update(k=1),
    "an entry as true": lambda found: found.additional_kwargs.update(k=True),
    "a tuple": lambda found: found.additional_kwargs.update(k=(1,)),
    "an object": lambda found: found.additional_kwargs.update(k={1}),
    "the order of entries": lambda found: found.__dict__.update(
        response_metadata=dict(reversed(found.response_metadata.items()))
    ),
    "a field that isn't declared": set_field(extra="kept"),
    "a type that isn't its class's": set_field(type="other"),
    "calls in a keyword": lambda found: found.additional_kwargs.update(tool_calls=[]),
}


def blobs(values: list[Any], before: Any = None) -> list[bytes]:
    return cut(values, CODEC, "messages", before).blobs


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("fresh", [False, True], ids=["the same objects", "equal objects"])
def test_a_change_of_any_kind_is_seen(name: str, fresh: bool) -> None:
    for place in range(5):
        values = [message(number) for number in range(3 * noting.RUN + 7)]
        before = cut(values, CODEC, "messages")
        after = copy.deepcopy(values) if fresh else values
        CHANGES[name](after[noting.RUN + place])
        assert blobs(after, before) == blobs(copy.deepcopy(after))


@given(seed=st.integers(0, 2**32))
def test_any_next_list_is_encoded_alike(seed: int) -> None:
    chance = random.Random(seed)
    values: list[Any] = [message(number) for number in range(chance.randrange(3 * noting.RUN))]
    before = cut(values, CODEC, "messages")
    noted: Any = None
    for _ in range(6):
        for _ in range(chance.randrange(4)):
            place = chance.randrange(len(values) + 1)
            match chance.randrange(6):
                case 0:
                    values[place:place] = [message(chance.randrange(1000)) for _ in range(chance.randrange(3))]
                case 1:
                    del values[place : place + chance.randrange(2 * noting.RUN)]
                case 2 if place < len(values) and isinstance(values[place], BaseMessage):
                    chance.choice(list(CHANGES.values()))(values[place])
                case 3:
                    values[place:place] = [chance.choice([{"role": "user"}, 1, None, ("t",)])]
                case 4:
                    values = copy.deepcopy(values)
                case _:
                    values += [message(chance.randrange(1000)) for _ in range(chance.randrange(noting.RUN))]
        after = cut(list(values), CODEC, "messages", before)
        assert after.blobs == blobs(copy.deepcopy(values))
        fresh = assemble(after.kind, after.blobs, CODEC)
        for notes in (before.notes, after.notes, noted):
            made = assemble(after.kind, after.blobs, CODEC, notes)
            assert [seen(value) for value in made] == [seen(value) for value in fresh]
        if after.kind == LIST:
            noted = CODEC.note(fresh, after.blobs, noted)
        for value in [*made, *fresh]:  # whoever has what was read may change it
            spoil(value)
        before = after


def seen(value: Any) -> Any:
    """Give all that can be told of a value, the order of fields and entries too."""
    if not isinstance(value, BaseMessage):
        return repr(value)
    state = [(key, repr(found)) for key, found in value.__dict__.items()]
    return type(value), state, value.model_fields_set, value.__pydantic_extra__, value.__pydantic_private__


def spoil(value: Any) -> None:
    if isinstance(value, BaseMessage):
        value.additional_kwargs["spoilt"] = True
        value.response_metadata.clear()
        deep(value)
        value.model_fields_set.clear()
        value.content = "spoilt"


def test_runs_that_are_as_they_were_are_not_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [message(number) for number in range(4 * noting.RUN - 3)]
    before = cut(values, CODEC, "messages")
    encoded: list[int] = []
    encode_elements = CODEC.encode_elements
    monkeypatch.setattr(CODEC, "encode_elements", lambda run: encoded.append(len(run)) or encode_elements(run))
    values = [*copy.deepcopy(values), HumanMessage("one more", id="last")]
    grown = cut(values, CODEC, "messages", before)
    assert encoded == [1]
    assert [id(blob) for blob in grown.blobs[:-1]] == [id(blob) for blob in before.blobs]
    values[noting.RUN].content = "changed"
    cut(values, CODEC, "messages", grown)
    assert encoded == [1, noting.RUN]


def test_what_is_noted_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    made = cut([message(number) for number in range(2 * noting.RUN + 3)], CODEC, "messages")
    longer = cut([message(number) for number in range(2 * noting.RUN + 9)], CODEC, "messages")
    decoded: list[int] = []
    decode = messages.decode
    monkeypatch.setattr(messages, "decode", lambda found: decoded.append(len(found)) or decode(found))
    assemble(longer.kind, longer.blobs, CODEC, made.notes)
    assert decoded == [6]
