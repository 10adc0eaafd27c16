"""Deletions in LangGraph's terms: runs, all but the latest, and erasing with the graph that can fold.

Imports log and LangGraph. The invariant: a thread is changed in one transaction, and what stays reads as before.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.base import DeltaChannelHistory
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from deltastore.codec.blobs import Codec, Cut, cut
from deltastore.errors import CheckpointNotFoundError, ContentionError, InvalidInputError
from deltastore.log import choosing, keys, rows
from deltastore.log.answering import Entry
from deltastore.log.engine import Log
from deltastore.log.erasing import Lack

if TYPE_CHECKING:
    from langgraph.pregel import Pregel

PAGE = 256
"""Checkpoints whose metadata is looked at in one transaction."""
MAX_ATTEMPTS = 50
"""How often an erasing deletion folds anew while others put checkpoints in between."""


History = Callable[[str, str, Sequence[str]], Mapping[str, DeltaChannelHistory]]
"""Gives what channels are rebuilt from at a checkpoint, named by namespace and id."""


def of_runs(log: Log, codec: Codec, thread: str, runs: Collection[str]) -> dict[str, set[bytes]]:
    """Return a thread's checkpoints whose metadata names one of these runs, as ULIDs by namespace."""
    out: dict[str, set[bytes]] = {}
    for namespace in log.namespaces(thread, rows.LANGGRAPH):
        before: str | None = None
        while page := log.page(thread, namespace, before, PAGE):
            found = {entry.ulid for entry in page if _run_of(entry, codec) in runs}
            if found:
                out.setdefault(namespace, set()).update(found)
            before = page[-1].id
    return out


def _run_of(entry: Entry, codec: Codec) -> str | None:
    metadata = codec.decode(entry.record.metadata)
    run = metadata.get("run_id") if isinstance(metadata, dict) else None
    return None if run is None else str(run)


def delete(
    log: Log,
    codec: Codec,
    thread: str,
    choose: Callable[..., choosing.Choose],
    *,
    erase: bool,
    graph: "Pregel[Any, Any, Any, Any] | None",
    history: History,
) -> None:
    """Delete what is chosen of a thread; with `erase`, keep nothing of it.

    Raises InvalidInputError where that takes a graph that isn't given, ContentionError.
    """
    if not erase:
        log.keeping.delete(thread, choose())
        return
    for _ in range(MAX_ATTEMPTS):
        moment, lacks = log.keeping.lacks(thread, choose(with_needs=True))
        folded = _folded(log, codec, thread, lacks, graph, history)
        if folded is not None and log.keeping.erase(thread, choose, folded, moment) is not None:
            return
    raise ContentionError(
        f"thread {thread!r}: {MAX_ATTEMPTS} attempts to erase failed, because others put checkpoints all the time. "
        "Try again when its run has ended"
    )


def _folded(
    log: Log,
    codec: Codec,
    thread: str,
    lacks: Iterable[tuple[Lack, list[str]]],
    graph: "Pregel[Any, Any, Any, Any] | None",
    history: History,
) -> dict[bytes, dict[int, Cut]] | None:
    """Return what those that stay would lack, as values by ULID; None where one of them was deleted meanwhile."""
    folded: dict[bytes, dict[int, Cut]] = {}
    for lack, channels in lacks:
        if graph is None:
            raise InvalidInputError(
                f"thread {thread!r}: checkpoint {lack.id!r} stays, and its channels {channels} are rebuilt from "
                "the writes of checkpoints that would go. To erase them, give the graph that wrote the thread "
                "(graph=…), which can fold them; without erase=True they stay, hidden"
            )
        try:
            values = _fold(thread, lack.namespace, lack.id, channels, graph, history)
        except CheckpointNotFoundError:
            if log.entry(thread, lack.namespace, lack.id) is None:
                return None
            raise
        numbers = log.names.numbers(keys.CHANNEL, values)
        folded[lack.ulid] = {
            number: cut(_DeltaSnapshot(value), codec, name)
            for number, (name, value) in zip(numbers, values.items(), strict=True)
        }
    return folded


def _fold(
    thread: str,
    namespace: str,
    id_: str,
    channels: Iterable[str],
    graph: "Pregel[Any, Any, Any, Any]",
    history: History,
) -> dict[str, Any]:
    """Return the values of the channels that a graph rebuilds from history, as it would rebuild them."""
    from langgraph.channels.binop import BinaryOperatorAggregate
    from langgraph.channels.delta import DeltaChannel

    specs = _graph_of(graph, thread, namespace).channels
    unknown = [name for name in channels if name not in specs]
    if unknown:
        raise InvalidInputError(
            f"thread {thread!r}, namespace {namespace!r}: the graph has no channels {unknown}, whose history needs "
            "what would go. Give the graph that wrote the thread"
        )
    walked = [name for name in channels if isinstance(specs[name], DeltaChannel | BinaryOperatorAggregate)]
    return {name: _value(specs[name], found) for name, found in history(namespace, id_, walked).items()}


def _value(spec: Any, found: DeltaChannelHistory) -> Any:
    from langgraph.channels.delta import DeltaChannel  # here, not above: it takes a quarter of a second

    if isinstance(spec, DeltaChannel):
        channel = spec.from_checkpoint(found.get("seed"))
        channel.replay_writes(found["writes"])
        return channel.get()
    # an ordinary channel now, but once a DeltaChannel; each write alone, for they come of many steps
    folded = spec.from_checkpoint(found["seed"]) if "seed" in found else spec.copy()
    for _, _, value in found["writes"]:
        folded.update([value])
    return folded.get()


def _graph_of(graph: "Pregel[Any, Any, Any, Any]", thread: str, namespace: str) -> Any:
    """Return the graph that writes a namespace: `node:task|inner:task` is that of `inner` in that of `node`."""
    path = "|".join(part.partition(":")[0] for part in namespace.split("|") if not part.isdigit())
    if not path:
        return graph
    found: Any = dict(graph.get_subgraphs(recurse=True)).get(path)
    if found is None:
        raise InvalidInputError(
            f"thread {thread!r}, namespace {namespace!r}: the graph has no sub-graph {path!r}, which would have to "
            "fold what its checkpoints need of those that would go. Give the graph that wrote the thread"
        )
    return found
