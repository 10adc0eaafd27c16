"""Saving: putting checkpoints of a run, each either a place to start again from or a look into a step.

Imports calls, checkpoints, place, policies, progress. The invariant: a look never moves the place whose journal answers
a restored run, so nothing completed is lost by it.
"""

import functools
import threading
from typing import Any, Final

from deltastore.agent import policies
from deltastore.agent.calls import Calls
from deltastore.agent.checkpoints import Checkpoint, listed
from deltastore.agent.effects import Steps, Stored
from deltastore.agent.place import Place
from deltastore.agent.progress import channels, described
from deltastore.codec.blobs import Cut
from deltastore.errors import InvalidInputError

RESUME_TAG: Final = "resume"
"""Keeps the checkpoint that looks lead back to from being pruned."""


class Saves:
    """The checkpoints of one run. `tip` is the thread's last, `parent` what the next is put after."""

    def __init__(self, calls: Calls, *, tip: str, parent: str, tagged: str = "") -> None:
        self.calls = calls
        self.tip = tip
        self.parent = parent
        self._tagged = tagged
        self._steps = 0
        self._seen_calls = len(calls.progress.tool_calls)
        self._drawn = self._stored = 0
        self._lock = threading.Lock()

    def boundary(self, kind: str) -> Steps[Checkpoint | None]:
        """Put a checkpoint if the policy asks for one here. Raises as `put` does."""
        progress = self.calls.progress
        if kind == policies.STEP:
            progress.step_index += 1
            self._steps += 1
        since = len(progress.tool_calls) - self._seen_calls
        decision = self.calls.rules.policy.decide(policies.Boundary(kind, self._steps, since))
        if not decision.save:
            return None
        return (yield from self.put(kind, decision.reason, restart=kind == policies.STEP))

    def put(self, kind: str, reason: str, *, restart: bool, **described_too: Any) -> Steps[Checkpoint]:
        """Put a checkpoint. With `restart`, the run starts again from it; else from where it would have before.

        Raises EncodeError, ConflictError, InvalidInputError where calls are under way at a new start,
        ChangedPathError.
        """
        calls = self.calls
        place = calls.place
        if restart:
            if place.in_flight:
                raise InvalidInputError(
                    f"run {calls.progress.run_id!r}: {'; '.join(place.in_flight.values())} still under way; the run "
                    "can't start again from here. Await all calls before a step ends"
                )
            calls.report(place.overlooked(sequential=False), f"came to a {kind} without asking for that")
        values = calls.rules.values
        metadata = described(calls.progress, values) | {"kind": kind, "reason": reason} | described_too
        if not restart:
            metadata["resumes_at"] = place.checkpoint_id
        state = channels(calls.progress, values, calls.thread.last_cuts())
        self._drawn += 1
        made: Checkpoint = yield Stored(functools.partial(self._put, state, metadata, self._drawn, place))
        if restart:
            calls.place = Place(calls.progress.run_id, made.checkpoint_id)
            calls.place.enter()
            self._steps = 0
            self._seen_calls = len(calls.progress.tool_calls)
        return made

    def _put(self, state: dict[str, Cut], metadata: dict[str, Any], drawn: int, place: Place) -> Checkpoint:
        thread, values = self.calls.thread, self.calls.rules.values
        with self._lock:
            if drawn < self._stored and "resumes_at" in metadata:  # a concurrent look that has more was faster
                return listed(thread.checkpoint(self.tip), thread, values)
            if "resumes_at" in metadata and self._tagged != place.checkpoint_id:
                thread.tag(RESUME_TAG, place.checkpoint_id)
                self._tagged = place.checkpoint_id
            made = thread.put_cuts(state, at=self.parent, metadata=metadata, expected_parent=self.tip)
            self.tip = self.parent = made.id
            self._stored = drawn
        return listed(made, thread, values)
