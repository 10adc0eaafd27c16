"""Runs of an agent's own loop: checkpoints, resumption, and tools whose completed work is never done twice.

>>> import deltastore
>>> from deltastore.agent import CheckpointManager
>>> with deltastore.open(":memory:") as store:
...     manager = CheckpointManager(store)
...     with manager.run("trip", messages=[{"role": "user", "content": "Book it"}]) as run:
...         run.add({"role": "assistant", "content": run.call(str.upper, "booked")})
...         run.step()
...     manager.list_checkpoints("trip")[0].messages[-1]["content"]
'BOOKED'

The guide is docs/agent.md. Nothing below imports this package.
"""

from deltastore.agent.checkpoints import Checkpoint
from deltastore.agent.manager import CheckpointManager
from deltastore.agent.nodes import Node
from deltastore.agent.policies import (
    AFTER_INTERRUPTS,
    AFTER_MESSAGES,
    AFTER_NODES,
    AFTER_TOOLS,
    EVERY_STEP,
    EXPLICIT,
    Boundary,
    Decision,
    Policy,
    SavePolicy,
    every,
)
from deltastore.agent.preconditions import FileIs, Registered, ValidUntil
from deltastore.agent.recorded import RecordedCall
from deltastore.agent.run import Run
from deltastore.agent.streams import AsyncTokenStream, TokenStream
from deltastore.agent.tools import NOT_DONE, CurrentCall, Done, current_call, current_run, model, tool
from deltastore.errors import (
    CallFailedError,
    ChangedPathError,
    ChangedPathWarning,
    InDoubtError,
    Paused,
    RottenResultError,
    RunError,
)

__all__ = [
    "AFTER_INTERRUPTS",
    "AFTER_MESSAGES",
    "AFTER_NODES",
    "AFTER_TOOLS",
    "EVERY_STEP",
    "EXPLICIT",
    "NOT_DONE",
    "AsyncTokenStream",
    "Boundary",
    "CallFailedError",
    "ChangedPathError",
    "ChangedPathWarning",
    "Checkpoint",
    "CheckpointManager",
    "CurrentCall",
    "Decision",
    "Done",
    "FileIs",
    "InDoubtError",
    "Node",
    "Paused",
    "Policy",
    "RecordedCall",
    "Registered",
    "RottenResultError",
    "Run",
    "RunError",
    "SavePolicy",
    "TokenStream",
    "ValidUntil",
    "current_call",
    "current_run",
    "every",
    "model",
    "tool",
]
