"""All that a store holds, as JSON can say it: what `tools/make_format_store` writes down, and later releases read."""

from dataclasses import fields
from hashlib import blake2b
from typing import Any

from langchain_core.messages import BaseMessage

from deltastore import Reducer, Retention, Store
from deltastore.langgraph import DeltaSaver
from deltastore.log import keys, rows

REDUCERS = [Reducer("sum", 1, lambda value, write: value + write, lambda: 0)]
DELTA_CHANNELS = ["log"]
SHORT = 60


def plain(value: Any) -> Any:
    """Return a value as text and lists that don't change with the libraries that its classes come from."""
    if isinstance(value, BaseMessage):
        return ["message", value.type, value.content, value.id, getattr(value, "tool_calls", None)]
    if isinstance(value, dict):
        return {repr(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(plain, value)]
    return repr(value)


def digest(value: Any) -> str:
    """Return a value's text, or what stands for it where that is long."""
    text = repr(plain(value))
    return text if len(text) <= SHORT else f"blake2b {blake2b(text.encode(), digest_size=16).hexdigest()}"


def tell(store: Store) -> dict[str, Any]:
    """Return every checkpoint of every namespace: state, metadata, parent, writes, histories; tags and rules."""
    told: dict[str, Any] = {"retention": _rules(store.retention), "threads": {}}
    for found in store.log.all_threads():
        with store.log.storage.read() as tx:
            namespaces = rows.load_namespaces(tx, found.number)
        spaces: dict[str, Any] = {}
        for namespace in namespaces:
            name = keys.decode_name(namespace.name)
            spaces[name] = (
                _native(store, found.name, name) if namespace.front == rows.NATIVE else _graph(store, found.name, name)
            )
        told["threads"][found.name] = {"retention": _rules(store.thread(found.name).retention), "namespaces": spaces}
    return told


def _rules(rules: Retention | None) -> dict[str, str] | None:
    """Return the rules that say something."""
    if rules is None:
        return None
    default = Retention()
    names = (field.name for field in fields(Retention))
    return {name: repr(getattr(rules, name)) for name in names if getattr(rules, name) != getattr(default, name)}


def _native(store: Store, thread: str, namespace: str) -> dict[str, Any]:
    held = store.thread(thread, namespace=namespace)
    return {
        "tags": held.tags(),
        "checkpoints": [
            {
                "id": checkpoint.id,
                "parent": checkpoint.parent_id,
                "created": checkpoint.created_at.isoformat(),
                "metadata": digest(dict(checkpoint.metadata)),
                "state": digest(held.state(at=checkpoint)),
                "writes": digest([(write.task, write.channel, write.value) for write in held.writes(checkpoint)]),
            }
            for checkpoint in held.history()
        ],
    }


def _graph(store: Store, thread: str, namespace: str) -> dict[str, Any]:
    saver = DeltaSaver(store)
    where: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": namespace}}
    out = []
    for found in saver.list(where):
        if found.config["configurable"]["checkpoint_ns"] != namespace:
            continue
        history = saver.get_delta_channel_history(config=found.config, channels=DELTA_CHANNELS)
        out.append(
            {
                "id": found.config["configurable"]["checkpoint_id"],
                "parent": (found.parent_config or {}).get("configurable", {}).get("checkpoint_id"),
                "values": digest(found.checkpoint["channel_values"]),
                "frame": digest({key: item for key, item in found.checkpoint.items() if key != "channel_values"}),
                "metadata": digest(dict(found.metadata)),
                "writes": digest(found.pending_writes),
                "history": digest(history),
            }
        )
    return {"tags": saver.tags(where), "checkpoints": out}
