"""Save policies: at which boundaries of its program a run puts a checkpoint.

Pure. The invariant: a decision is made of the boundary and the counts alone, and gives its reason.
"""

from dataclasses import dataclass
from typing import Final, Protocol

from deltastore.errors import InvalidInputError

MESSAGE, TOOL, NODE, STEP, INTERRUPT, END, OTHER = "message", "tool", "node", "step", "interrupt", "end", "other"


@dataclass(frozen=True, slots=True)
class Boundary:
    """A boundary that the program came to, and what happened since the last checkpoint it could start again from."""

    kind: str
    steps: int
    calls: int


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a checkpoint is put, and why."""

    save: bool
    reason: str


class SavePolicy(Protocol):
    """What a manager asks at each boundary. Pauses, and the end of a run, are saved whatever it says."""

    def decide(self, boundary: Boundary) -> Decision:
        """Decide about a boundary."""


@dataclass(frozen=True, slots=True)
class Policy:
    """At every `steps`-th step (0: never by their number), after each message, tool result or node, as asked for.

    `calls`: also at steps in which a tool was called.
    """

    steps: int = 1
    messages: bool = False
    tools: bool = False
    nodes: bool = False
    calls: bool = False

    def __post_init__(self) -> None:
        if type(self.steps) is not int or self.steps < 0:
            raise InvalidInputError(f"steps {self.steps!r}; expected an int from 0 on")

    def decide(self, boundary: Boundary) -> Decision:
        """Decide about a boundary."""
        kind = boundary.kind
        if kind == STEP:
            if self.steps and boundary.steps >= self.steps:
                return Decision(True, f"{boundary.steps} steps since the last")
            if self.calls and boundary.calls:
                return Decision(True, f"{boundary.calls} tool calls since the last")
            return Decision(False, f"{boundary.steps} steps since the last, and {boundary.calls} tool calls")
        asked = {MESSAGE: self.messages, TOOL: self.tools, NODE: self.nodes}.get(kind, False)
        return Decision(asked, f"checkpoints at a {kind} are {'' if asked else 'not '}asked for")


EVERY_STEP: Final = Policy()
AFTER_MESSAGES: Final = Policy(messages=True, tools=True)
AFTER_TOOLS: Final = Policy(steps=0, tools=True, calls=True)
AFTER_NODES: Final = Policy(nodes=True)
AFTER_INTERRUPTS: Final = Policy(steps=0)
EXPLICIT: Final = Policy(steps=0)
"""Only what `save` asks for, pauses and the end: as AFTER_INTERRUPTS, by the name that says what the program does."""


def every(steps: int) -> Policy:
    """Return the policy of a checkpoint at every so many steps."""
    return Policy(steps=steps)
