"""The fields of langchain-core's messages in blobs of their own tag: a number for class and fields, then the values.

Pure; imports nothing of the project. The invariant: numbers are part of the format, so a form is never changed, only
another one added.
"""

from typing import Final, NamedTuple

_COMMON: Final = ("content", "additional_kwargs", "response_metadata", "name", "id")


class MessageForm(NamedTuple):
    """A class of messages, by its name, and its stored fields in order."""

    name: str
    fields: tuple[str, ...]


FORMS: Final[dict[int, MessageForm]] = {
    1: MessageForm("HumanMessage", _COMMON),
    2: MessageForm("AIMessage", (*_COMMON, "tool_calls", "invalid_tool_calls", "usage_metadata")),
    3: MessageForm("SystemMessage", _COMMON),
    4: MessageForm("ToolMessage", (*_COMMON, "tool_call_id", "artifact", "status")),
}
MODULE: Final = "langchain_core.messages"
"""Where the classes are imported from."""
