"""CheckpointManager: runs of one store, begun, restored, forked and listed.

Imports run and what it stands on, and the store. The invariant: a run is a thread of the native API by the run's id,
and reading one writes nothing.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from deltastore import ulid
from deltastore.agent import journal as jn
from deltastore.agent import progress as pg
from deltastore.agent.calls import Calls, Rules
from deltastore.agent.checkpoints import Checkpoint, listed
from deltastore.agent.forking import copy_journal, is_whole
from deltastore.agent.place import Place
from deltastore.agent.policies import EVERY_STEP, SavePolicy
from deltastore.agent.recorded import RecordedCall, recorded
from deltastore.agent.run import Run
from deltastore.agent.saving import Saves
from deltastore.agent.tools import InDoubt, check_in_doubt
from deltastore.agent.values import Values
from deltastore.errors import InvalidInputError, ThreadExistsError, ThreadNotFoundError
from deltastore.store import Store, Thread, check_open

Check = TypeVar("Check", bound=Callable[[Any], Any])

FLUSH_S = 0.05
"""How long a stream's tokens may be gathered before they are kept and shown, in seconds: nobody notices."""
FLUSH_BYTES = 4096
"""How many bytes of them may be gathered."""


class CheckpointManager:
    """Begins, restores, forks and lists the runs of a store. Thread-safe.

    `policy`: at which boundaries checkpoints are put. `types`: classes that can't be found by their name. `in_doubt`:
    what is done about tools' calls that were begun and have no end. `on_changed_path`: "warn", or "raise" before
    anything is executed. `flush_s`, `flush_bytes`: how long a stream's tokens are gathered.
    """

    def __init__(
        self,
        store: Store,
        policy: SavePolicy = EVERY_STEP,
        *,
        types: Iterable[type] = (),
        in_doubt: InDoubt = "raise",
        on_changed_path: str = "warn",
        flush_s: float = FLUSH_S,
        flush_bytes: int = FLUSH_BYTES,
    ) -> None:
        """Use an open store, which stays the caller's to close. Raises InvalidInputError."""
        check_open(store)
        if on_changed_path not in ("warn", "raise"):
            raise InvalidInputError(f"on_changed_path={on_changed_path!r}; expected 'warn' or 'raise'")
        if not callable(getattr(policy, "decide", None)):
            raise InvalidInputError(f"policy {policy!r}; expected EVERY_STEP, every(5), Policy(…) or the like")
        self._store = store
        self._rules = Rules(Values(types), policy, check_in_doubt(in_doubt), on_changed_path, flush_s, flush_bytes, {})

    def precondition(self, name: str) -> Callable[[Check], Check]:
        """Register a function of one argument under a name, for `Registered(name, argument)`."""

        def register(function: Check) -> Check:
            self._rules.checks[name] = function
            return function

        return register

    # --- runs

    def run(
        self,
        run_id: str | None = None,
        *,
        state: Mapping[str, Any] | None = None,
        messages: Iterable[Any] = (),
        metadata: Mapping[str, Any] | None = None,
        check: bool = True,
    ) -> Run:
        """Restore a run, or begin it where there is none of this id, with this state; without an id, begin one.

        Raises as `restore`, and EncodeError, ConflictError where somebody else began it just now.
        """
        if run_id is None:
            run_id = ulid.to_text(ulid.mint(None, self._store.log.now_ms()))
        elif self._store.thread(run_id).latest() is not None:
            return self.restore(run_id, check=check)
        if isinstance(messages, (str, bytes, Mapping)):
            raise InvalidInputError(f"messages {messages!r}; expected a list of messages")
        if state is not None and not isinstance(state, Mapping):
            raise InvalidInputError(f"state is a {type(state).__name__}; expected names and values")
        made = pg.Progress(run_id, state=dict(state or {}), messages=list(messages), metadata=dict(metadata or {}))
        return self._begin(made, {"kind": "begin", "reason": "the run began"})

    async def arun(
        self,
        run_id: str | None = None,
        *,
        state: Mapping[str, Any] | None = None,
        messages: Iterable[Any] = (),
        metadata: Mapping[str, Any] | None = None,
        check: bool = True,
    ) -> Run:
        """As `run`."""
        return await asyncio.to_thread(
            lambda: self.run(run_id, state=state, messages=messages, metadata=metadata, check=check)
        )

    def restore(self, run_id: str, at: Checkpoint | str | None = None, *, check: bool = True) -> Run:
        """Return a run as it was where it last could start again, with the journal of what was done since.

        `at`: a checkpoint, to have exactly its state; what the run then does is a branch. `check`: before the first
        execution, look whether what stored results rest on still is so.

        Raises ThreadNotFoundError, CheckpointNotFoundError, TypeLostError, InvalidInputError.
        """
        thread, last, start = self._find(run_id, at)
        at_id = start.checkpoint_id
        metadata = thread.checkpoint(at_id).metadata
        made = pg.restored(run_id, thread.state(at_id), metadata, self._rules.values)
        branch = at is not None and at_id not in (last.checkpoint_id, last.resumes_at)
        if not branch:
            made.status = last.status
        writes = thread.writes(at_id)
        origin = start.forked_from
        if origin is not None and not branch and not is_whole(writes):
            raise InvalidInputError(
                f"run {run_id!r} is a fork of {origin['run_id']!r} that was broken off; complete it with "
                f"manager.fork({origin['run_id']!r}, {origin['checkpoint_id']!r}, as_={run_id!r})"
            )
        place = Place(run_id, at_id, jn.read(writes).values(), branch=branch or origin is not None)
        calls = Calls(made, thread, self._rules, place, check=check)
        parent = last.checkpoint_id if at is None else at_id
        tagged = last.resumes_at if last.resumes_at != last.checkpoint_id else ""
        return Run(made, calls, Saves(calls, tip=last.checkpoint_id, parent=parent, tagged=tagged))

    async def arestore(self, run_id: str, at: Checkpoint | str | None = None, *, check: bool = True) -> Run:
        """As `restore`."""
        return await asyncio.to_thread(lambda: self.restore(run_id, at, check=check))

    def fork(self, run_id: str, at: Checkpoint | str | None = None, *, as_: str) -> Run:
        """Begin another run with the state that one had at a checkpoint, by default where it would start again.

        Calls that were done after the checkpoint are done for the new run too, as far as it makes the same ones.
        Forking again in the same way, before the new run has another checkpoint, completes a fork that was broken off.
        Raises as `restore`, and ThreadExistsError.
        """
        source, _, start = self._find(run_id, at)
        at_id = start.checkpoint_id
        origin = {"run_id": run_id, "checkpoint_id": at_id}
        target, begun = self._store.thread(as_), ""
        latest = target.latest()
        if latest is not None:
            begun = latest.id
            if latest.metadata.get("forked_from") != origin:
                raise ThreadExistsError(f"a run {as_!r} is here already; fork under another id")
        made = pg.restored(as_, source.state(at_id), source.checkpoint(at_id).metadata, self._rules.values)
        made.status = pg.RUNNING
        first = begun or self._put_first(made, {"kind": "fork", "reason": "it was forked", "forked_from": origin})
        copy_journal(source.writes(at_id), target, first)
        return self.restore(as_)

    async def afork(self, run_id: str, at: Checkpoint | str | None = None, *, as_: str) -> Run:
        """As `fork`."""
        return await asyncio.to_thread(lambda: self.fork(run_id, at, as_=as_))

    # --- checkpoints

    def save(self, run: Run) -> Checkpoint:
        """Put a checkpoint from which the run starts again. Raises EncodeError, ConflictError, ChangedPathError."""
        return run.save()

    async def asave(self, run: Run) -> Checkpoint:
        """As `save`."""
        return await run.asave()

    def list_checkpoints(
        self, run_id: str, *, limit: int | None = None, before: Checkpoint | str | None = None
    ) -> list[Checkpoint]:
        """Return a run's checkpoints, the newest first, without their values; none where there is no such run."""
        thread = self._store.thread(run_id)
        start = None if before is None else _id(run_id, before)
        return [listed(found, thread, self._rules.values) for found in thread.history(limit=limit, before=start)]

    async def alist_checkpoints(
        self, run_id: str, *, limit: int | None = None, before: Checkpoint | str | None = None
    ) -> list[Checkpoint]:
        """As `list_checkpoints`."""
        return await asyncio.to_thread(lambda: self.list_checkpoints(run_id, limit=limit, before=before))

    def list_calls(self, run_id: str, at: Checkpoint | str | None = None) -> list[RecordedCall]:
        """Return the calls recorded after a checkpoint, in their order; by default, where the run would start again.

        Raises as `restore`.
        """
        thread, _, start = self._find(run_id, at)
        entries = jn.read(thread.writes(start.checkpoint_id)).values()
        ordered = sorted(entries, key=lambda entry: entry.attempts[0].began)
        return [recorded(entry, self._rules.values) for entry in ordered]

    # --- helpers

    def _find(self, run_id: str, at: Checkpoint | str | None) -> tuple[Thread, Checkpoint, Checkpoint]:
        """Return a run's thread, its last checkpoint, and the one to start from."""
        thread = self._store.thread(run_id)
        latest = thread.latest()
        if latest is None:
            raise ThreadNotFoundError(f"no run {run_id!r} is here; begin it with manager.run({run_id!r})")
        last = listed(latest, thread, self._rules.values)
        at_id = last.resumes_at if at is None else _id(run_id, at)
        if at_id == last.checkpoint_id:
            return thread, last, last
        return thread, last, listed(thread.checkpoint(at_id), thread, self._rules.values)

    def _begin(self, made: pg.Progress, more: Mapping[str, Any]) -> Run:
        thread = self._store.thread(made.run_id)
        first = self._put_first(made, more)
        calls = Calls(made, thread, self._rules, Place(made.run_id, first), check=False)
        return Run(made, calls, Saves(calls, tip=first, parent=first))

    def _put_first(self, made: pg.Progress, more: Mapping[str, Any]) -> str:
        values = self._rules.values
        metadata = pg.described(made, values) | dict(more)
        thread: Thread = self._store.thread(made.run_id)
        channels = pg.channels(made, values, thread.last_cuts())
        return thread.put_cuts(channels, metadata=metadata, expected_parent="").id


def _id(run_id: str, at: Checkpoint | str) -> str:
    if isinstance(at, str):
        return at
    if not isinstance(at, Checkpoint):
        raise InvalidInputError(f"checkpoint {at!r}; expected one of manager.list_checkpoints({run_id!r}), or its id")
    if at.run_id != run_id:
        raise InvalidInputError(f"checkpoint {at.checkpoint_id} belongs to run {at.run_id!r}, not to {run_id!r}")
    return at.checkpoint_id
