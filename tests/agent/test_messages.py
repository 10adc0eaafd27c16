"""Shapes of the SDKs' messages, as dicts and as objects."""

from types import SimpleNamespace
from typing import Any

import pytest

from deltastore.agent.messages import OTHER, REPLY, RESULT, kind_of, usage_of

SHAPES = [
    ({"role": "user", "content": "hi"}, OTHER),
    ({"role": "system", "content": "be kind"}, OTHER),
    ({"role": "assistant", "content": "hi"}, REPLY),
    ({"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]}, REPLY),
    ({"role": "tool", "tool_call_id": "1", "content": "x"}, RESULT),
    ({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "x"}]}, RESULT),
    ({"role": "user", "content": [{"type": "text", "text": "x"}]}, OTHER),
    ({"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}, REPLY),
    ({"type": "function_call_output", "call_id": "1", "output": "x"}, RESULT),
    ("plain text", OTHER),
    (None, OTHER),
]


def as_object(value: Any) -> Any:
    if isinstance(value, dict):
        return SimpleNamespace(**{key: as_object(item) for key, item in value.items()})
    return [as_object(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(("message", "kind"), SHAPES)
def test_what_a_message_is(message: Any, kind: str) -> None:
    assert kind_of(message) == kind
    assert kind_of(as_object(message)) == kind


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}, {"input_tokens": 3, "output_tokens": 2}),
        ({"input_tokens": 3, "output_tokens": 2}, {"input_tokens": 3, "output_tokens": 2}),
        ({"input_tokens": 3, "output_tokens": None}, {"input_tokens": 3}),
        (None, {}),
    ],
)
def test_what_a_reply_took(usage: Any, counts: dict[str, int]) -> None:
    assert usage_of({"usage": usage}) == counts
    assert usage_of(as_object({"usage": usage})) == counts
    assert usage_of("text") == {}
