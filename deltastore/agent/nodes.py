"""Nodes: the graph level of a run, where its program walks from node to node.

Imports saving and progress. The invariant: an edge is recorded once its node ended well.
"""

from types import TracebackType
from typing import Any, Self

from deltastore.agent import policies
from deltastore.agent.effects import Steps, adrive, drive
from deltastore.agent.progress import Progress
from deltastore.agent.saving import Saves


class Node:
    """A node that the run is in, for `with` or `async with`; set `outputs` before leaving it. Not thread-safe."""

    def __init__(self, progress: Progress, saves: Saves, name: str, inputs: Any) -> None:
        self.name = name
        self.inputs = inputs
        self.outputs: Any = None
        self._progress = progress
        self._saves = saves
        self._before: str | None = None

    def __enter__(self) -> Self:
        self._before, self._progress.node_name = self._progress.node_name, self.name
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            drive(self._leave())

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await adrive(self._leave())

    def _leave(self) -> Steps[None]:
        self._progress.edges.append(
            {
                "from": self._before,
                "to": self.name,
                "step": self._progress.step_index,
                "inputs": self.inputs,
                "outputs": self.outputs,
            }
        )
        yield from self._saves.boundary(policies.NODE)
