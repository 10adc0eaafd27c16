"""Strict comparison of what two savers answer, and a pair of savers that are given the same calls.

`difference` takes types, orders and pydantic's fields-set as part of a value; InMemorySaver's answer is the right one.
"""

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple, get_checkpoint_metadata
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

from deltastore.langgraph import DeltaSaver


def difference(expected: Any, actual: Any, path: str = "") -> str | None:
    """Return where two values differ first, or None where they are the same in type and value."""
    if type(expected) is not type(actual):
        return (
            f"{path}: expected {type(expected).__name__} {expected!r:.200}, got {type(actual).__name__} {actual!r:.200}"
        )
    if isinstance(expected, float):
        return None if struct.pack("d", expected) == struct.pack("d", actual) else f"{path}: {expected!r} != {actual!r}"
    if isinstance(expected, (list, tuple, deque)):
        return _sequence_difference(list(expected), list(actual), path)
    if isinstance(expected, dict):
        return _sequence_difference(list(expected), list(actual), f"{path} keys") or _first(
            difference(value, actual[key], f"{path}[{key!r}]") for key, value in expected.items()
        )
    if isinstance(expected, (set, frozenset)):
        return _sequence_difference(sorted(expected, key=repr), sorted(actual, key=repr), path)
    if isinstance(expected, BaseModel):
        return _first(
            difference(getattr(expected, part), getattr(actual, part), f"{path}.{part}")
            for part in ("__dict__", "model_fields_set", "__pydantic_extra__", "__pydantic_private__")
        )
    if is_dataclass(expected):
        return _first(
            difference(getattr(expected, field.name), getattr(actual, field.name), f"{path}.{field.name}")
            for field in fields(expected)
        )
    if isinstance(expected, BaseException):
        return difference(expected.args, actual.args, f"{path}.args")
    return None if expected == actual else f"{path}: {expected!r:.200} != {actual!r:.200}"


def _sequence_difference(expected: list[Any], actual: list[Any], path: str) -> str | None:
    if len(expected) != len(actual):
        return f"{path}: {len(expected)} elements expected, {len(actual)} found: {expected!r:.300} != {actual!r:.300}"
    return _first(
        difference(*both, f"{path}[{place}]") for place, both in enumerate(zip(expected, actual, strict=True))
    )


def _first(found: Iterator[str | None]) -> str | None:
    return next((one for one in found if one is not None), None)


def tuple_difference(expected: CheckpointTuple | None, actual: CheckpointTuple | None) -> str | None:
    """Return where two checkpoint tuples differ. The order of a checkpoint's own keys is the saver's to choose."""
    if expected is None or actual is None:
        return None if expected is actual else f"expected {expected!r:.300}, got {actual!r:.300}"
    return difference(_parts(expected), _parts(actual))


def _parts(found: CheckpointTuple) -> dict[str, Any]:
    return {**found._asdict(), "checkpoint": dict(sorted(found.checkpoint.items()))}


def assert_same(expected: CheckpointTuple | None, actual: CheckpointTuple | None) -> None:
    found = tuple_difference(expected, actual)
    assert found is None, found


def config(thread: Any, id_: str | None = None, ns: str = "", **more: Any) -> dict[str, Any]:
    configurable = {"thread_id": thread, "checkpoint_ns": ns, **more}
    return {"configurable": configurable if id_ is None else configurable | {"checkpoint_id": id_}}


def checkpoint(id_: str, versions: dict[str, Any], values: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "v": 4,
        "id": id_,
        "ts": "2026-11-29T00:00:00+00:00",
        "channel_values": values,
        "channel_versions": versions,
        "versions_seen": {"node": dict(versions)},
        "updated_channels": sorted(values),
        **more,
    }


def key_of(found: CheckpointTuple) -> tuple[str, str, str]:
    configurable = found.config["configurable"]
    return configurable["thread_id"], configurable["checkpoint_ns"], configurable["checkpoint_id"]


class Pair:
    """A DeltaSaver and an InMemorySaver that are given the same calls."""

    def __init__(self, saver: DeltaSaver) -> None:
        self.saver = saver
        self.reference = InMemorySaver(serde=saver.serde)

    def put(
        self,
        where: dict[str, Any],
        made: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        new_versions: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Put on both; unless given, `new_versions` are those that the reference doesn't know yet."""
        described = {"source": "loop", "step": 0, "parents": {}} if metadata is None else metadata
        thread, ns = where["configurable"]["thread_id"], where["configurable"]["checkpoint_ns"]
        if new_versions is None:
            new_versions = {
                name: version
                for name, version in made["channel_versions"].items()
                if (thread, ns, name, version) not in self.reference.blobs
            }
        expected = self.reference.put(where, made, described, new_versions)
        stored = self.saver.put(where, made, described, new_versions)
        assert stored == expected
        return stored

    def put_writes(self, where: dict[str, Any], writes: Sequence[tuple[str, Any]], task: str, path: str = "") -> None:
        self.reference.put_writes(where, writes, task, path)
        self.saver.put_writes(where, writes, task, path)

    def delete_thread(self, thread: str) -> None:
        self.reference.delete_thread(thread)
        self.saver.delete_thread(thread)

    def stored(self) -> list[tuple[str, str, str]]:
        """Return thread, namespace and id of every checkpoint of the reference."""
        return [
            (thread, ns, id_)
            for thread, namespaces in self.reference.storage.items()
            for ns, found in namespaces.items()
            for id_ in found
        ]

    def compare(self, where: dict[str, Any], saver: DeltaSaver | None = None) -> None:
        expected = self.reference.get_tuple(where)
        assert_same(expected, (saver or self.saver).get_tuple(where))

    def compare_list(self, where: dict[str, Any] | None, saver: DeltaSaver | None = None, **query: Any) -> None:
        """Compare lists; those over several namespaces or threads, where the order is the saver's, sorted."""
        expected = list(self.reference.list(where, **query))
        actual = list((saver or self.saver).list(where, **query))
        if where is None or where["configurable"].get("checkpoint_ns") is None:
            expected, actual = sorted(expected, key=key_of), sorted(actual, key=key_of)
        assert [key_of(found) for found in actual] == [key_of(found) for found in expected]
        for one, other in zip(expected, actual, strict=True):
            assert_same(one, other)

    def compare_history(self, where: dict[str, Any], channels: Sequence[str], saver: DeltaSaver | None = None) -> None:
        """Compare what DeltaChannels are rebuilt from."""
        expected = self.reference.get_delta_channel_history(config=where, channels=channels)
        actual = (saver or self.saver).get_delta_channel_history(config=where, channels=channels)
        assert list(actual) == list(expected)
        for name, history in expected.items():
            found = difference(dict(sorted(history.items())), dict(sorted(actual[name].items())), name)
            assert found is None, found

    def compare_all(self, saver: DeltaSaver | None = None) -> int:
        """Compare every answer; return how many checkpoints there are."""
        stored = self.stored()
        for thread, ns, id_ in stored:
            self.compare(config(thread, id_, ns), saver)
        for thread, ns in {(thread, ns) for thread, ns, _ in stored}:
            self.compare(config(thread, ns=ns), saver)
            self.compare_list(config(thread, ns=ns), saver)
        return len(stored)


def expected_metadata(where: dict[str, Any], metadata: dict[str, Any]) -> dict[str, Any]:
    return dict(get_checkpoint_metadata(where, metadata))
