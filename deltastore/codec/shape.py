"""The shape of encoded data: what is left when everything that somebody may have written is taken out.

Kept are structure, small constants, the field names of well-known messages and checkpoints, and other short texts that
are common to many threads. Pure; imports nothing of the project. The invariant: no 12 bytes in a row of any other text,
and no number of more than one digit, stand in a shape.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

import ormsgpack

MAX_COMMON_BYTES = 11
"""A text that isn't well known is kept up to this many bytes of UTF-8: a longer one could tell something."""
_MIN_NESTED_BYTES = 5
_MAX_CONSTANT = 9
_OPTIONS = ormsgpack.OPT_NON_STR_KEYS

WELL_KNOWN = frozenset(
    """
    additional_kwargs response_metadata tool_calls invalid_tool_calls usage_metadata tool_call_id content type name id
    args artifact status success error input_tokens output_tokens total_tokens input_token_details output_token_details
    audio cache_read cache_creation reasoning token_usage completion_tokens prompt_tokens completion_tokens_details
    prompt_tokens_details accepted_prediction_tokens rejected_prediction_tokens audio_tokens reasoning_tokens
    cached_tokens model model_name model_provider system_fingerprint service_tier finish_reason logprobs stop tool_call
    function function_call arguments refusal openai anthropic stop_reason stop_sequence end_turn tool_use tool_result
    text image_url input_text output_text langchain_core.messages.human langchain_core.messages.ai
    langchain_core.messages.tool langchain_core.messages.system langchain_core.messages.function
    langchain_core.documents.base HumanMessage AIMessage AIMessageChunk ToolMessage SystemMessage Document
    model_validate_json langgraph.types Send Interrupt Command langgraph.store.base Item __pregel_tasks __pregel_push
    __start__ __end__ __input__ __interrupt__ __error__ __resume__ __return__ __no_writes__ __copy__ source loop input
    update fork step parents writes thread_id checkpoint_id checkpoint_ns run_id updated_channels ts created_at
    modified_at metadata page_content kwargs role user assistant system tool human ai messages remaining_steps
    structured_response todos files jump_to
    """.split()
)


class _Extension(NamedTuple):
    tag: int
    data: bytes


def shape_of(data: bytes, common: Collection[str]) -> bytes:
    """Return the shape of msgpack bytes, in msgpack; empty where they are no msgpack, or a mere number.

    `common`: the short texts to keep.
    """
    try:
        parsed = _parse(data)
        if not isinstance(parsed, (list, dict, str, _Extension)):  # as it looks where text is taken for msgpack
            return b""
        masked = _mask(parsed, common)
        return ormsgpack.packb(masked, default=lambda item: ormsgpack.Ext(item.tag, item.data), option=_OPTIONS)
    except (ValueError, TypeError, RecursionError):  # no msgpack after all, or deeper than can be written again
        return b""


def short_texts(data: bytes) -> set[str]:
    """Return the short texts in msgpack bytes, at any depth; none where they are no msgpack."""
    found: set[str] = set()
    try:
        _collect(_parse(data), found)
    except (ValueError, TypeError, RecursionError):
        return set()
    return found


def _parse(data: bytes) -> Any:
    return ormsgpack.unpackb(data, ext_hook=_Extension, option=_OPTIONS)


def _mask(value: Any, common: Collection[str]) -> Any:
    match value:
        case str():
            return value if value in WELL_KNOWN or (_is_short(value) and value in common) else ""
        case _Extension(tag, data):
            return _Extension(tag, shape_of(data, common))
        case bytes():
            return _mask_bytes(value, common)
        case bool() | None:
            return value
        case int():
            return value if abs(value) <= _MAX_CONSTANT else 0
        case float():
            return 0.0
        case list() | tuple():  # tuples are keys
            masked = [_mask(item, common) for item in value]
            return masked if isinstance(value, list) else tuple(masked)
        case dict():
            return {_mask(key, common): _mask(item, common) for key, item in value.items()}
    raise TypeError(f"no msgpack: {type(value).__name__}")


def _mask_bytes(value: bytes, common: Collection[str]) -> bytes:
    """Look into bytes that hold msgpack, with or without a byte before it, as encoded values and rows do."""
    if len(value) < _MIN_NESTED_BYTES:
        return b""
    shape = shape_of(value, common)
    return shape or (value[:1] if value[0] < ord(" ") else b"") + shape_of(value[1:], common)


def _is_short(text: str) -> bool:
    return len(text.encode("utf-8", "replace")) <= MAX_COMMON_BYTES


def _collect(value: Any, found: set[str]) -> None:
    match value:
        case str() if _is_short(value):
            found.add(value)
        case _Extension(_, bytes(data)):
            found |= short_texts(data)
        case bytes() if len(value) >= _MIN_NESTED_BYTES:
            found |= short_texts(value) or short_texts(value[1:])
        case list() | tuple():
            for item in value:
                _collect(item, found)
        case dict():
            for key, item in value.items():
                _collect(key, found)
                _collect(item, found)
