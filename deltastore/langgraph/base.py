"""What the parts of DeltaSaver share: the store, the serializer's codec, and the way off the event loop.

Imports serializer and strict. The invariant: the codec is that of the serializer that the saver has now.
"""

import asyncio
import contextvars
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from deltastore.errors import InvalidInputError
from deltastore.langgraph.serializer import OpaqueCodec, codec_for
from deltastore.langgraph.strict import restricted
from deltastore.log import keys
from deltastore.store import Store

if TYPE_CHECKING:
    from deltastore.log.retention import Retention
    from deltastore.upkeep.background import Tidier

P = ParamSpec("P")
T = TypeVar("T")


async def off_loop(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call in another OS thread, with this task's context; at once where no more threads are given.

    That is so when the interpreter is shutting down, where what is still to be saved must be saved all the same.
    """
    run: Callable[[], T] = partial(contextvars.copy_context().run, call, *args, **kwargs)
    try:
        outcome = asyncio.get_running_loop().run_in_executor(None, run)
    except RuntimeError:
        return call(*args, **kwargs)
    return await outcome


def _tidier(store: Store, retention: "Retention") -> "Tidier | None":
    from deltastore.log.retention import check_rules  # most savers have no rules, and need nothing of upkeep
    from deltastore.upkeep.background import Tidier

    rules = check_rules(retention)
    return None if rules is None or rules.is_off else Tidier(store, rules)


def _is_serializer(serde: object) -> bool:
    """Tell whether LangGraph takes it for a serializer, of the newer or the older kind; a class isn't one."""
    return not isinstance(serde, type) and any(
        callable(getattr(serde, dumps, None)) and callable(getattr(serde, loads, None))
        for dumps, loads in (("dumps_typed", "loads_typed"), ("dumps", "loads"))
    )


class SaverBase(BaseCheckpointSaver[str]):
    """A saver over an open store."""

    def __init__(
        self,
        store: Store,
        *,
        serde: SerializerProtocol | None = None,
        strict: bool = False,
        validate: bool = False,
        fenced: bool = False,
        retention: "Retention | None" = None,
    ) -> None:
        """Use an open store, which stays the caller's to close.

        `serde` defaults to LangGraph's own, with pickle off. With `strict`, only classes on its allowlist are rebuilt,
        by default LangGraph's and langchain-core's; when it is read, any other raises TypeRefusedError, and one that
        is gone TypeLostError. With `validate`, each value put is compared with what it will come back as, and a
        DegradedValueWarning names what differs. With `fenced`, a put on anything but the checkpoint that was put last
        in its namespace raises ConflictError. `retention` rules are applied to threads in the background, now and then
        after puts; rules stored for a thread go before them. Raises InvalidInputError for what is no open store or no
        serializer, and for a serializer that can't be strict.
        """
        if not isinstance(store, Store):
            raise InvalidInputError(
                f"a store of type {type(store).__name__}; DeltaSaver takes an open deltastore.Store. "
                "Where you have its path or URL, use DeltaSaver.from_path"
            )
        if serde is not None and not _is_serializer(serde):
            raise InvalidInputError(
                f"serde {serde!r:.200}; expected an object with dumps_typed and loads_typed, as JsonPlusSerializer()"
            )
        super().__init__(serde=restricted(serde or JsonPlusSerializer()) if strict else serde)
        self.store = store
        self.strict = strict
        self.validate = validate
        self.fenced = fenced
        self._owns_tidier = True
        self._tidier = None if retention is None else _tidier(store, retention)
        self._log = store.log
        self._owns_store = False
        self._made: tuple[SerializerProtocol, OpaqueCodec] | None = None

    @property
    def _codec(self) -> OpaqueCodec:
        """The codec of the serializer, made anew where somebody gave the saver another one."""
        made = self._made
        if made is None or made[0] is not self.serde:
            registry = self._log.names

            def type_of(tag: int) -> str:
                with self._log.storage.read() as tx:
                    return registry.name(tx, keys.TAG, tag)

            codec = codec_for(self.serde, lambda name: registry.number(keys.TAG, name), type_of, strict=self.strict)
            made = self._made = (self.serde, codec)
        return made[1]
