"""Which checkpoints of a thread go: the choices that deletions are made of, over all its namespaces.

Reads only. Imports surviving, hiding, finding and tagging. The invariant: a sub-graph call's namespace goes with the
root checkpoint that it started from.
"""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from deltastore.errors import BrokenChainError
from deltastore.log import finding, hiding, keys, rows, surviving, tagging
from deltastore.log.reading import View
from deltastore.storage.port import ReadTransaction

ROOT = b""
"""The name of a thread's root namespace, as stored."""


class Choice(NamedTuple):
    """What goes: a plan for each namespace that stays, and the namespaces that go whole."""

    plans: tuple[surviving.Plan, ...]
    dropped: tuple[rows.Namespace, ...]


Choose = Callable[[View], Choice]
"""Chooses in one transaction, from what it sees there."""


def these(
    doomed: Mapping[str, Collection[bytes]], settled: Collection[bytes] = (), *, with_needs: bool = False
) -> Choose:
    """Choose checkpoints by namespace and ULID, with the sub-graph calls that started from them.

    Those that are gone already are none. For `settled` and `with_needs` see `surviving.plan`.
    """

    def choose(view: View) -> Choice:
        namespaces = _of_langgraph(view.tx, view.thread)
        plans: list[surviving.Plan] = []
        for namespace in namespaces:
            here = frozenset(doomed.get(keys.decode_name(namespace.name), ()))
            if here:
                is_doomed = _is_one_of(here)
                plans.append(surviving.plan(view, namespace, is_doomed, settled, with_needs=with_needs))
        roots = next((plan.visible for plan in plans if plan.namespace.name == ROOT), frozenset[str]())
        dropped = tuple(namespace for namespace in namespaces if roots and _start_named(view, namespace) in roots)
        gone = {namespace.number for namespace in dropped}
        return Choice(tuple(plan for plan in plans if plan.namespace.number not in gone), dropped)

    return choose


class Kept(NamedTuple):
    """What stays: ids by a namespace's number, and the numbers of those that go whole. Others stay as they are."""

    ids: Mapping[int, Collection[str | None]]
    dropped: Collection[int]


def all_but(keep: Callable[[View], Kept], settled: Collection[bytes] = (), *, with_needs: bool = False) -> Choose:
    """Choose all but what is kept, in namespaces of either API; those of which all stays can be left out.

    For `settled` and `with_needs` see `surviving.plan`.
    """

    def choose(view: View) -> Choice:
        kept = keep(view)
        plans: list[surviving.Plan] = []
        namespaces = rows.load_namespaces(view.tx, view.thread)
        for namespace in namespaces:
            if namespace.number not in kept.ids or namespace.number in kept.dropped:
                continue
            is_doomed = _is_none_of(kept.ids[namespace.number])
            if namespace.front == rows.NATIVE:
                plans.append(hiding.plan(view, namespace, is_doomed))
            else:
                plans.append(surviving.plan(view, namespace, is_doomed, settled, with_needs=with_needs))
        return Choice(tuple(plans), tuple(found for found in namespaces if found.number in kept.dropped))

    return choose


def all_but_latest(settled: Collection[bytes] = (), *, with_needs: bool = False) -> Choose:
    """Choose all but each LangGraph namespace's latest checkpoint and the tagged ones.

    A call with something tagged in it stays. For `settled` and `with_needs` see `surviving.plan`.
    """

    def keep(view: View) -> Kept:
        namespaces = _of_langgraph(view.tx, view.thread)
        root = root_of(namespaces)
        tagged = {
            namespace.number: frozenset(tagging.load(view.tx, view.thread, namespace.number).values())
            for namespace in namespaces
        }
        kept = {namespace.number: tagged[namespace.number] | {namespace.latest} for namespace in namespaces}
        dropped: list[int] = []
        for namespace in namespaces:
            start = _start_named(view, namespace)
            # greater than the latest: a call may be stored before the root checkpoint it started from
            old = root is not None and root.latest is not None and start is not None and start < root.latest
            if root is not None and old and start not in kept[root.number] and not tagged[namespace.number]:
                dropped.append(namespace.number)
        return Kept(kept, dropped)

    return all_but(keep, settled, with_needs=with_needs)


def root_of(namespaces: Collection[rows.Namespace]) -> rows.Namespace | None:
    """Return the namespace of LangGraph's root graph, or None."""
    return next((found for found in namespaces if found.name == ROOT and found.front == rows.LANGGRAPH), None)


def start_of(view: View, root: rows.Namespace, namespace: rows.Namespace) -> str | None:
    """Return the id of the stored root checkpoint that a sub-graph call started from; None where this is no call.

    A call may be stored before the root checkpoint that it started from: then it is none yet.
    """
    start = _start_named(view, namespace)
    return start if start is not None and finding.find(view, root, start) is not None else None


def _is_one_of(doomed: Collection[bytes]) -> Callable[[str, bytes], bool]:
    return lambda _, ulid: ulid in doomed


def _is_none_of(kept: Collection[str | None]) -> Callable[[str, bytes], bool]:
    return lambda id_, _: id_ not in kept


def _of_langgraph(tx: ReadTransaction, thread: int) -> list[rows.Namespace]:
    return [namespace for namespace in rows.load_namespaces(tx, thread) if namespace.front == rows.LANGGRAPH]


def _start_named(view: View, namespace: rows.Namespace) -> str | None:
    """Return the id of the root checkpoint that a sub-graph call started from; None where this is no call.

    A call has its task's id after a colon in its namespace; a sub-graph whose state outlives its calls has none.
    Raises BrokenChainError where the record that tells it was lost.
    """
    if b":" not in namespace.name or namespace.latest is None:
        return None
    ulid = finding.find(view, namespace, namespace.latest)
    record = None if ulid is None else view.record(namespace.number, ulid)
    if record is None:
        raise BrokenChainError(
            f"thread {view.name!r}, namespace {keys.decode_name(namespace.name)!r}: its latest checkpoint "
            f"{namespace.latest!r} is missing. Rows were lost or damaged, and nothing was deleted; run check, then "
            "restore a backup or delete the thread"
        )
    return record.root
