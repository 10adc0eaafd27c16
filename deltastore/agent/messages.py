"""Shapes of messages: what is a model's reply, what a tool's result, and what a reply says that it cost.

Knows OpenAI's chat completions and responses, and Anthropic's messages, as dicts or as objects. Pure; imports nothing.
The invariant: an unknown shape is an ordinary message that cost nothing, never an error.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

REPLY, RESULT, OTHER = "message", "tool", "other"
_REPLY_TYPES: Final = frozenset(("function_call", "reasoning", "custom_tool_call"))
_RESULT_TYPES: Final = frozenset(("function_call_output", "custom_tool_call_output", "tool_result"))
_COUNTS: Final = {
    "input_tokens": ("input_tokens", "prompt_tokens"),
    "output_tokens": ("output_tokens", "completion_tokens"),
}
"""What we call the counts, and what the shapes call them."""


def kind_of(message: Any) -> str:
    """Return what a message is: REPLY, RESULT or OTHER."""
    role, type_ = part(message, "role"), part(message, "type")
    if role in ("tool", "function") or type_ in _RESULT_TYPES:
        return RESULT
    if role == "assistant" or type_ in _REPLY_TYPES:
        return REPLY
    content = part(message, "content")
    if isinstance(content, list) and any(part(block, "type") == "tool_result" for block in content):
        return RESULT
    return OTHER


def usage_of(reply: Any) -> dict[str, int]:
    """Return the tokens that a reply says it took; empty where it doesn't say."""
    usage = part(reply, "usage")
    found: dict[str, int] = {}
    for name, others in _COUNTS.items():
        count = next((part(usage, other) for other in others if type(part(usage, other)) is int), None)
        if count is not None:
            found[name] = count
    return found


def usage_of_tokens(tokens: Iterable[Any]) -> dict[str, int]:
    """Return the tokens that a stream's chunks say it took; of each count, which only grows, the last one tells."""
    found: dict[str, int] = {}
    for token in tokens:
        for holder in (token, part(token, "message"), part(token, "response")):
            found |= usage_of(holder)
    return found


def text_of(token: Any) -> str:
    """Return the text that a stream's token, or an SDK's chunk, adds to the reply; empty where it adds none."""
    if isinstance(token, str):
        return token
    choices, delta = part(token, "choices"), part(token, "delta")
    if isinstance(choices, list) and choices:
        text = part(part(choices[0], "delta"), "content")
    else:
        text = delta if part(token, "type") == "response.output_text.delta" else part(delta, "text")
    return text if isinstance(text, str) else ""


def sum_of(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Return the sum of two counts of tokens."""
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


def part(whole: Any, name: str) -> Any:
    """Return a key of a dict or an attribute of an object; None where there is none."""
    if isinstance(whole, Mapping):
        return whole.get(name)
    return getattr(whole, name, None)
