"""A chat model that follows a script: the same messages always get the same answer, with the same ids.

What it is to do is in the last message of the human: which topics to look at, and in how many tool calls.
"""

import re
import uuid
from collections.abc import Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall
from langchain_core.outputs import ChatGeneration, ChatResult

TOPICS = {
    "context managers": r"def __enter__",
    "locks": r"\bLock\(\)",
    "subprocesses": r"subprocess\.Popen",
    "caches": r"lru_cache",
    "named tuples": r"namedtuple\(",
    "warnings": r"warnings\.warn\(",
    "signals": r"\bsignal\.",
    "compression": r"\bzlib\b",
    "binary formats": r"struct\.(un)?pack",
    "hashes": r"\bhashlib\b",
    "memory maps": r"\bmmap\b",
    "conditions": r"\bCondition\(",
    "heaps": r"\bheapq\b",
    "sorted lists": r"\bbisect\b",
    "temporary files": r"\btempfile\b",
    "exit handlers": r"\batexit\b",
    "pickling": r"def __reduce",
    "descriptors": r"def __set_name__",
    "weak references": r"weakref\.ref",
    "abstract classes": r"ABCMeta",
    "selectors": r"\bselectors\b",
    "sockets": r"\bsocket\.socket\(",
    "coroutines": r"^\s*async def ",
    "operators": r"def __matmul__|def __or__",
    "environment": r"os\.environ",
}
TOOL_CALLS_PER_TOPIC = 2
"""A search, and a read of one of its hits."""
_INSTRUCTION = re.compile(r"Look at: (?P<topics>.+)\. Make (?P<calls>\d+) tool calls\.")


def instruction(opening: str, topics: Sequence[str], calls: int, message_id: str) -> HumanMessage:
    """Make a message that the model obeys."""
    return HumanMessage(f"{opening} Look at: {', '.join(topics)}. Make {calls} tool calls.", id=message_id)


def stable_id(kind: str, *of: object) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, " ".join(map(str, (kind, *of)))))


class ScriptedModel(BaseChatModel):
    """Searches for each topic of the last instruction in turn, reads what it found, and answers after so many calls."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        place = max(place for place, message in enumerate(messages) if isinstance(message, HumanMessage))
        asked = messages[place]
        found = _INSTRUCTION.search(str(asked.content))
        assert found, asked.content
        number = sum(isinstance(message, AIMessage) for message in messages[place:])
        if number < int(found["calls"]):
            call_id = stable_id("call", asked.id, number)
            text, calls = _next_call(found["topics"].split(", "), number, str(messages[-1].content), call_id)
        else:
            text, calls = f"I have looked at all there is to see in {number} tool calls.", []
        answer = AIMessage(
            content=text,
            id=stable_id("answer", asked.id, number),
            tool_calls=calls,
            response_metadata={"model_name": "scripted", "finish_reason": "tool_calls" if calls else "stop"},
        )
        return ChatResult(generations=[ChatGeneration(message=answer)])


def _next_call(topics: list[str], number: int, last_result: str, call_id: str) -> tuple[str, list[ToolCall]]:
    turn, part = divmod(number, TOOL_CALLS_PER_TOPIC)
    cycle, place = divmod(turn, len(topics))
    topic = topics[place]
    if part == 0:
        text = f"Where does the library deal with {topic}?"
        return text, [ToolCall(name="search", args={"pattern": TOPICS[topic]}, id=call_id, type="tool_call")]
    hits = last_result.splitlines()
    path, line, *_ = hits[cycle % len(hits)].split(":", 2) if ":" in hits[0] else ("os.py", "1")
    arguments = {"path": path, "line": int(line)}
    return f"Let me read {path} on {topic}.", [ToolCall(name="read", args=arguments, id=call_id, type="tool_call")]
