"""Strict loading: what LangGraph's serializer refuses or fails to rebuild is an error, never a dict and never None.

The serializer only tells listeners of its events, so one listener notes what was blocked while a load of this thread is
under way. Imports errors and LangGraph.
"""

import copy
import threading
from functools import cache
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.event_hooks import SerdeEvent, register_serde_event_listener
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from deltastore.errors import InvalidInputError, TypeLostError, TypeRefusedError
from deltastore.langgraph.rebuilding import Loads, lost_in

_REFUSED_EVENTS = frozenset(("msgpack_blocked", "msgpack_method_blocked", "msgpack_unregistered_allowed"))
"""The last is that of a serializer without an allowlist inside one that isn't LangGraph's."""
_REFUSED_KINDS = frozenset(("pickle", "json"))
"""Kinds of data whose loading calls what the data names; this saver's serializer writes neither."""


class _Loading(threading.local):
    """The classes blocked in the load that this OS thread is in the middle of."""

    blocked: list[str] | None = None


_loading = _Loading()


def _note(event: SerdeEvent) -> None:
    if _loading.blocked is not None and event["kind"] in _REFUSED_EVENTS:
        _loading.blocked.append(f"{event['module']}.{event['name']}")


@cache
def _listen() -> None:
    register_serde_event_listener(_note)


def restricted(serde: SerializerProtocol) -> SerializerProtocol:
    """Return a serializer that has an allowlist and no pickle: itself, or its like with LangGraph's own allowlist.

    Serializers that aren't LangGraph's are returned as they are. Raises InvalidInputError for a subclass of
    JsonPlusSerializer without allowlist: it can't be given one from outside.
    """
    if isinstance(serde, EncryptedSerializer):
        return _around(serde, restricted(serde.serde))
    if not isinstance(serde, JsonPlusSerializer):
        return serde
    # the attribute is private: should it go, a serializer counts as one without allowlist, which refuses too much
    if not _has_own_hook(serde) and getattr(serde, "_allowed_msgpack_modules", True) is True:
        if type(serde) is not JsonPlusSerializer:
            raise InvalidInputError(
                f"strict loading needs a serializer with an allowlist; this {type(serde).__name__} rebuilds every "
                "class. Make it with allowed_msgpack_modules=None, or a list of (module, class)"
            )
        return JsonPlusSerializer(allowed_msgpack_modules=None)
    if serde.pickle_fallback:
        serde = copy.copy(serde)
        serde.pickle_fallback = False
    return serde


def _has_own_hook(serde: JsonPlusSerializer) -> bool:
    """Tell whether the user's own hook decides what extensions of msgpack mean, without allowlist."""
    return bool(getattr(serde, "_custom_unpack_ext_hook", False))


def _around(serde: EncryptedSerializer, inner: SerializerProtocol) -> EncryptedSerializer:
    """Return an encrypting serializer around another inner one."""
    if inner is serde.serde:
        return serde
    clone = copy.copy(serde)
    clone.serde = inner
    return clone


class _Refusing(SerializerProtocol):
    """An inner serializer that loads strictly."""

    def __init__(self, serde: SerializerProtocol) -> None:
        self._serde, self._loads = serde, refusing(serde)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        return self._serde.dumps_typed(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        return self._loads(data)


def refusing(serde: SerializerProtocol) -> Loads:
    """Return the serializer's `loads_typed` that raises where a class was refused, or couldn't be rebuilt.

    That is TypeRefusedError where the allowlist doesn't name it, and TypeLostError where it is gone or refuses what
    was stored.
    """
    _listen()
    if isinstance(serde, EncryptedSerializer):
        return _noting(_around(serde, _Refusing(serde.serde)).loads_typed)
    if not isinstance(serde, JsonPlusSerializer):
        return _noting(serde.loads_typed)
    checked = not _has_own_hook(serde)

    def loads(typed: tuple[str, bytes]) -> Any:
        kind, data = typed
        if kind in _REFUSED_KINDS:
            raise TypeRefusedError(
                f"strict loading refuses data of kind {kind!r}: loading it calls what it names. If you trust it, open "
                "the saver without strict"
            )
        value = serde.loads_typed(typed)
        # what was blocked is named as such; only the rest may be lost
        if checked and kind == "msgpack" and not _loading.blocked and (lost := lost_in(data, serde.loads_typed)):
            raise TypeLostError(
                f"strict loading can't rebuild {lost}: it is gone, or refuses what was stored. Bring back the module "
                "and class that wrote it, or open the saver without strict to get the parts"
            )
        return value

    return _noting(loads)


def _noting(loads: Loads) -> Loads:
    """Return a `loads_typed` that raises TypeRefusedError where the serializer told of a refused class."""

    def noting(typed: tuple[str, bytes]) -> Any:
        earlier, _loading.blocked = _loading.blocked, []
        try:
            value = loads(typed)
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

    return noting
