"""Strict loading: what LangGraph's serializer refuses to rebuild is an error here, never a dict and never None.

The serializer only tells listeners of its events, so one listener notes what was blocked while a load of this thread is
under way. Imports errors and LangGraph.
"""

import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.event_hooks import SerdeEvent, register_serde_event_listener

from deltastore.errors import TypeRefusedError


class _Loading(threading.local):
    """The classes blocked in the load that this OS thread is in the middle of."""

    blocked: list[str] | None = None


_loading = _Loading()


def _note(event: SerdeEvent) -> None:
    if _loading.blocked is not None and event["kind"] in ("msgpack_blocked", "msgpack_method_blocked"):
        _loading.blocked.append(f"{event['module']}.{event['name']}")


@cache
def _listen() -> None:
    register_serde_event_listener(_note)


def refusing(serde: SerializerProtocol) -> Callable[[tuple[str, bytes]], Any]:
    """Return the serializer's `loads_typed` that raises TypeRefusedError where a class was blocked."""
    _listen()

    def loads(typed: tuple[str, bytes]) -> Any:
        earlier, _loading.blocked = _loading.blocked, []
        try:
            value = serde.loads_typed(typed)
            blocked = _loading.blocked
        finally:
            _loading.blocked = earlier
        if blocked:
            module, _, name = blocked[0].rpartition(".")
            raise TypeRefusedError(
                f"strict loading refuses {blocked[0]}, which isn't on the serializer's allowlist. If you trust it, "
                f"open the saver with serde=JsonPlusSerializer(allowed_msgpack_modules=[({module!r}, {name!r})]) "
                "and strict=True"
            )
        return value

    return loads
