"""Which checkpoints of a thread go: the choices that deletions are made of, over all its LangGraph namespaces.

Reads only. Imports surviving, finding and tagging. The invariant: a sub-graph call's namespace goes with the root
checkpoint that it started from.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from deltastore.log import finding, keys, rows, surviving, tagging
from deltastore.log.reading import View
from deltastore.storage.port import ReadTransaction

ROOT = b""
"""The name of a thread's root namespace, as stored."""


@dataclass(frozen=True, slots=True)
class Choice:
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
        dropped = tuple(namespace for namespace in namespaces if roots and _root_of(view, namespace) in roots)
        gone = {namespace.number for namespace in dropped}
        return Choice(tuple(plan for plan in plans if plan.namespace.number not in gone), dropped)

    return choose


def all_but_latest(settled: Collection[bytes] = (), *, with_needs: bool = False) -> Choose:
    """Choose all but each namespace's latest checkpoint and the tagged ones.

    A call with something tagged in it stays. For `settled` and `with_needs` see `surviving.plan`.
    """

    def choose(view: View) -> Choice:
        namespaces = _of_langgraph(view.tx, view.thread)
        root = next((namespace for namespace in namespaces if namespace.name == ROOT), None)
        tagged_roots = tagging.load(view.tx, view.thread, root.number).values() if root else ()
        kept_roots = frozenset((root.latest, *tagged_roots)) if root else frozenset()
        plans: list[surviving.Plan] = []
        dropped: list[rows.Namespace] = []
        for namespace in namespaces:
            tagged = frozenset(tagging.load(view.tx, view.thread, namespace.number).values())
            start = _root_of(view, namespace)
            # greater than the latest: a call may be stored before the root checkpoint it started from
            old = root is not None and root.latest is not None and start is not None and start < root.latest
            if old and start not in kept_roots and not tagged:
                dropped.append(namespace)
            else:
                is_doomed = _is_none_of(tagged | {namespace.latest})
                plans.append(surviving.plan(view, namespace, is_doomed, settled, with_needs=with_needs))
        return Choice(tuple(plans), tuple(dropped))

    return choose


def _is_one_of(doomed: Collection[bytes]) -> Callable[[str, bytes], bool]:
    return lambda _, ulid: ulid in doomed


def _is_none_of(kept: Collection[str | None]) -> Callable[[str, bytes], bool]:
    return lambda id_, _: id_ not in kept


def _of_langgraph(tx: ReadTransaction, thread: int) -> list[rows.Namespace]:
    return [namespace for namespace in rows.load_namespaces(tx, thread) if namespace.front == rows.LANGGRAPH]


def _root_of(view: View, namespace: rows.Namespace) -> str | None:
    """Return the id of the root checkpoint that a sub-graph call started from; None where this is no call.

    A call has its task's id after a colon in its namespace; a sub-graph whose state outlives its calls has none.
    """
    if b":" not in namespace.name or namespace.latest is None:
        return None
    ulid = finding.find(view, namespace, namespace.latest)
    record = None if ulid is None else view.record(namespace.number, ulid)
    return None if record is None else record.root
