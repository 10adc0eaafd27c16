"""Fencing: a put that rests on a state which isn't the last any more is refused.

Imports rows, reading and the errors. The invariant: what is checked is what the transaction that writes sees, so of any
number of puts that expect the same checkpoint one is stored.
"""

from typing import Protocol

from deltastore.errors import ConflictError
from deltastore.log import rows
from deltastore.log.reading import View, require


class Fenced(Protocol):
    """A put, as far as it is fenced."""

    @property
    def id(self) -> str | None:
        """The caller's id of what is put."""

    @property
    def thread(self) -> str:
        """The thread's name."""

    @property
    def namespace(self) -> str:
        """The namespace's name."""

    @property
    def expected(self) -> str | None:
        """The id that must be the last, `""` for none; None: nothing is expected."""


def check(view: View, namespace: rows.Namespace, put: Fenced) -> None:
    """Raise ConflictError unless what is expected to be the namespace's last checkpoint is it.

    The last is what was put last; where that was deleted, the latest. A put that repeats the last one, its id and its
    parent, passes: it is a retry. Raises BrokenChainError where the tip is missing.
    """
    if put.expected is None:
        return
    last, parent = _last(view, namespace)
    if (last or "") == put.expected or (last is not None and last == put.id and (parent or "") == put.expected):
        return
    expected = f"checkpoint {put.expected!r}" if put.expected else "none to be there yet"
    found = f"checkpoint {last!r}" if last else "no checkpoint"
    raise ConflictError(
        f"thread {put.thread!r}, namespace {put.namespace!r}: expected {expected}, found {found} put last; nothing was "
        f"written. If another writer was faster, read {'the state of that one' if last else 'the thread'} and decide "
        "again; to go back to an earlier checkpoint, put without a fence"
    )


def _last(view: View, namespace: rows.Namespace) -> tuple[str | None, str | None]:
    """Return the id of the last checkpoint, and its parent's where that is known."""
    if namespace.front == rows.LANGGRAPH and namespace.tip is not None:
        record = require(view, namespace, namespace.tip)
        if not record.is_hidden:
            return record.id, record.parent_id
    return namespace.latest, None  # ULIDs ascend: of native checkpoints the latest was put last
