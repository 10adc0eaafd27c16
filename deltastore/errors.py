"""Every error that deltastore raises, grouped by what the caller does next.

::

    DeltastoreError
    ├── InvalidInputError (ValueError)      change the call: nothing was written
    │   ├── InvalidIdError                  a thread, namespace or checkpoint id outside the rule
    │   └── EncodeError                     a value can't be stored; names channel and path
    ├── NotFoundError (KeyError)            what was named isn't there
    │   ├── ThreadNotFoundError
    │   └── CheckpointNotFoundError
    ├── ConflictError                       somebody else was there first: read again, then decide
    │   ├── ThreadExistsError               the target of a copy has a name already in use
    │   ├── FrontMismatchError              a namespace belongs to the other API
    │   └── ContentionError                 a put lost every re-check: try again
    ├── UnavailableError                    the store can't be used now, or not like this
    │   ├── ClosedError
    │   ├── StorePathError                  the path is no store and none can be made there
    │   ├── UnfinishedCopyError             a store was copied there in part: go on with that copy
    │   ├── SyncModeError                   open in this process with a weaker sync mode
    │   ├── StoreFullError                  no room left; reading goes on
    │   ├── CommitUnknownError              whether a commit happened can't be told: read, then decide
    │   └── StorageError                    the engine or the operating system refused
    ├── MismatchError                       stored by something that isn't at hand: install or register it
    │   ├── FormatError                     another format version
    │   ├── ReducerMismatchError            another reducer, or another version of it
    │   ├── CodecMismatchError              another serializer
    │   ├── TypeRefusedError                a class that the serializer's allowlist doesn't name
    │   └── TypeLostError                   a class that is gone, or refuses what was stored
    ├── CorruptionError                     stored bytes aren't what was written: check, then restore
    │   ├── ChecksumError                   a row fails its checksum or can't be parsed
    │   ├── BrokenChainError                a row that a checkpoint needs is missing
    │   └── CopyDamagedError                a copied store's rows aren't those of its source
    └── RunError                            what a run recorded doesn't settle what it does now: look, then decide
        ├── InDoubtError                    a call was begun and its end isn't recorded: did it take effect?
        ├── ChangedPathError                the program calls otherwise than it did when it was recorded
        ├── RottenResultError               what a stored result rests on has changed since
        └── CallFailedError                 a call failed when it was recorded, with an error that can't be rebuilt

Two warnings stand apart: DegradedValueWarning (UserWarning), a value that comes back otherwise than it was put;
ChangedPathWarning (UserWarning), what ChangedPathError says, where the run goes on. And Paused (Exception) is no error:
a run ends with it that waits for a decision.
This module imports nothing of the project.
"""

from typing import ClassVar


class DeltastoreError(Exception):
    """The root of all errors raised by deltastore; `code` is stable and meant for programs."""

    code: ClassVar[str] = "deltastore"


class InvalidInputError(DeltastoreError, ValueError):
    """An argument is outside the documented rule; nothing was written."""

    code = "invalid-input"


class InvalidIdError(InvalidInputError):
    """A thread, namespace, channel or checkpoint id is outside the documented rule."""

    code = "invalid-id"


class EncodeError(InvalidInputError):
    """A value can't be stored: names the channel and the path within its value."""

    code = "encode"

    def __init__(self, message: str, *, channel: str = "", path: str = "") -> None:
        super().__init__(message)
        self.channel = channel
        self.path = path


class NotFoundError(DeltastoreError, KeyError):
    """What was named isn't in the store."""

    code = "not-found"

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0]) if self.args else ""


class ThreadNotFoundError(NotFoundError):
    """No thread has this name, or it holds no checkpoint."""

    code = "thread-not-found"


class CheckpointNotFoundError(NotFoundError):
    """No checkpoint of the thread has this id."""

    code = "checkpoint-not-found"


class ConflictError(DeltastoreError):
    """Another writer was there first: what the call rests on isn't so any more. Read again, then decide.

    Raised itself for a put whose expected parent isn't the last checkpoint: nothing of it was written. And for a copy
    that was collected as abandoned: nothing of it can be read.
    """

    code = "conflict"


class ThreadExistsError(ConflictError):
    """The name to be given is in use."""

    code = "thread-exists"


class FrontMismatchError(ConflictError):
    """The namespace is written by another API (native or LangGraph)."""

    code = "front-mismatch"


class ContentionError(ConflictError):
    """A put found its basis changed at every try; nothing was written."""

    code = "contention"


class UnavailableError(DeltastoreError):
    """The store can't be used now, or not in the way asked for."""

    code = "unavailable"


class ClosedError(UnavailableError):
    """The store was closed."""

    code = "closed"


class StorePathError(UnavailableError):
    """The path holds no store, and none can be made there."""

    code = "store-path"


class UnfinishedCopyError(UnavailableError):
    """A store was copied to this place in part: it isn't one before the copy is finished."""

    code = "unfinished-copy"


class SyncModeError(UnavailableError):
    """This process has the store open with a weaker sync mode than asked for."""

    code = "sync-mode"


class StoreFullError(UnavailableError):
    """There is no room for the write; what is stored stays readable."""

    code = "store-full"


class CommitUnknownError(UnavailableError):
    """Nothing tells whether a commit happened: the connection to the server broke in it, or the disk didn't flush it.

    What was to be written is stored wholly or not at all: read, then decide.
    """

    code = "commit-unknown"


class StorageError(UnavailableError):
    """The storage engine or the operating system refused an operation."""

    code = "storage"


class MismatchError(DeltastoreError):
    """Stored data needs something that isn't at hand in this form."""

    code = "mismatch"


class FormatError(MismatchError):
    """The store has a format version that this release doesn't read."""

    code = "format"


class ReducerMismatchError(MismatchError):
    """A channel was written for another reducer, or another version of it."""

    code = "reducer-mismatch"


class CodecMismatchError(MismatchError):
    """A value was written by another serializer than the one at hand."""

    code = "codec-mismatch"


class TypeRefusedError(MismatchError):
    """A stored object's class isn't on the serializer's allowlist, and strict loading refuses to hand out its parts."""

    code = "type-refused"


class TypeLostError(MismatchError):
    """A stored object's class is gone or refuses what was stored, and strict loading won't hand out its parts."""

    code = "type-lost"


class CorruptionError(DeltastoreError):
    """Stored bytes aren't what was written."""

    code = "corruption"


class ChecksumError(CorruptionError):
    """A row fails its checksum, or its bytes don't parse."""

    code = "checksum"


class BrokenChainError(CorruptionError):
    """A row that a checkpoint needs is missing."""

    code = "broken-chain"


class CopyDamagedError(CorruptionError):
    """Rows of a copy, read back, aren't those that were read of its source; the copy stays unfinished."""

    code = "copy-damaged"


class DegradedValueWarning(UserWarning):
    """A value was stored, but its serializer gives it back otherwise: names the channel and the path within it."""

    def __init__(self, message: str, *, channel: str = "", path: str = "") -> None:
        super().__init__(message)
        self.channel = channel
        self.path = path


class RunError(DeltastoreError):
    """What an agent's run recorded doesn't settle what is to be done now; `run_id` names the run."""

    code = "run"

    def __init__(self, message: str, *, run_id: str = "") -> None:
        super().__init__(message)
        self.run_id = run_id


class InDoubtError(RunError):
    """A call was begun, and nothing tells whether it took effect. `key` is the idempotency key that it was given."""

    code = "in-doubt"

    def __init__(self, message: str, *, run_id: str = "", name: str = "", key: str = "") -> None:
        super().__init__(message, run_id=run_id)
        self.name = name
        self.key = key


class ChangedPathError(RunError):
    """The program makes other calls than those recorded at this place of its run; nothing was executed."""

    code = "changed-path"


class RottenResultError(RunError):
    """What a stored result rests on isn't so any more: `condition` says what, `expected` and `found` how it changed."""

    code = "rotten-result"

    def __init__(
        self, message: str, *, run_id: str = "", condition: str = "", expected: object = None, found: object = None
    ) -> None:
        super().__init__(message, run_id=run_id)
        self.condition = condition
        self.expected = expected
        self.found = found


class CallFailedError(RunError):
    """A recorded call failed, with an error whose class isn't built in: `kind` is its name, `text` what it said."""

    code = "call-failed"

    def __init__(self, message: str, *, run_id: str = "", kind: str = "", text: str = "") -> None:
        super().__init__(message, run_id=run_id)
        self.kind = kind
        self.text = text


class Paused(Exception):
    """A run waits for a decision on `question`: restore it, in any process, and give it with `run.resume(decision)`."""

    def __init__(self, question: object, run_id: str) -> None:
        super().__init__(f"run {run_id!r} waits for a decision: {question!r}")
        self.question = question
        self.run_id = run_id


class ChangedPathWarning(UserWarning):
    """The program makes other calls than those recorded at this place of its run: they are executed as new ones."""
