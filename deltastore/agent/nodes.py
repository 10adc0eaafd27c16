"""Nodes: the graph level of a run, where its program walks from node to node.

Imports saving and progress. The invariant: an edge is recorded once its node ended well, and a run is in one node.
"""

from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Final, Optional, Self

from deltastore.agent import policies
from deltastore.agent.effects import Steps, adrive, drive
from deltastore.agent.progress import Progress
from deltastore.agent.saving import Saves
from deltastore.errors import InvalidInputError

_NODE: Final[ContextVar[Optional["Node"]]] = ContextVar("deltastore_node", default=None)


class Node:
    """A node that the run is in, for `with` or `async with`; set `outputs` before leaving it. Not thread-safe.

    The edge has the inputs as they were when the node was made, and the outputs as they are when it is left. Nodes may
    be within one another; one beside another is refused, for a run is at one position.
    """

    def __init__(self, progress: Progress, saves: Saves, name: str, inputs: Any) -> None:
        self.name = name
        self.inputs = inputs
        self._inputs = saves.calls.rules.values.copy(inputs, f"inputs of node {name!r}")
        self.outputs: Any = None
        self._progress = progress
        self._saves = saves
        self._before: str | None = None
        self._around: Node | None = None
        self._within: Token[Node | None] | None = None

    def __enter__(self) -> Self:
        self._around = self._saves.calls.node
        if self._around is not None and self._around is not _NODE.get():
            raise InvalidInputError(
                f"node {self.name!r} is entered while another task is in node {self._around.name!r}; a run walks one "
                "node after the other. Make the concurrent calls within one node"
            )
        self._saves.calls.node, self._within = self, _NODE.set(self)
        self._before, self._progress.node_name = self._progress.node_name, self.name
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        drive(self._leave(error))

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await adrive(self._leave(error))

    def _leave(self, error: BaseException | None) -> Steps[None]:
        self._saves.calls.node = self._around
        if self._within is not None:
            _NODE.reset(self._within)
        if error is not None:
            return
        outputs = self._saves.calls.rules.values.copy(self.outputs, f"outputs of node {self.name!r}")
        self._progress.edges.append(
            {
                "from": self._before,
                "to": self.name,
                "step": self._progress.step_index,
                "inputs": self._inputs,
                "outputs": outputs,
            }
        )
        yield from self._saves.boundary(policies.NODE)
