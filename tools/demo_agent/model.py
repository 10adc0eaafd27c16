"""A chat model that follows a script: the same messages always get the same answer, with the same ids."""

import uuid
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolCall
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


def stable_id(kind: str, number: int) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{kind} {number}"))


class ScriptedModel(BaseChatModel):
    """Searches for each topic in turn, reads what it found, and answers after `rounds` tool calls."""

    rounds: int

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
        number = sum(isinstance(message, AIMessage) for message in messages)
        if number < self.rounds:
            text, calls = self._next_call(number, str(messages[-1].content))
        else:
            text, calls = f"I have looked at all there is to see in {number} tool calls.", []
        answer = AIMessage(
            content=text,
            id=stable_id("answer", number),
            tool_calls=calls,
            response_metadata={"model_name": "scripted", "finish_reason": "tool_calls" if calls else "stop"},
        )
        return ChatResult(generations=[ChatGeneration(message=answer)])

    def _next_call(self, number: int, last_result: str) -> tuple[str, list[ToolCall]]:
        turn, part = divmod(number, TOOL_CALLS_PER_TOPIC)
        cycle, place = divmod(turn, len(TOPICS))
        topic, pattern = list(TOPICS.items())[place]
        if part == 0:
            text, name, arguments = f"Where does the library deal with {topic}?", "search", {"pattern": pattern}
        else:
            hits = last_result.splitlines()
            path, line, *_ = hits[cycle % len(hits)].split(":", 2) if ":" in hits[0] else ("os.py", "1")
            text, name, arguments = f"Let me read {path} on {topic}.", "read", {"path": path, "line": int(line)}
        return text, [ToolCall(name=name, args=arguments, id=stable_id("call", number), type="tool_call")]
