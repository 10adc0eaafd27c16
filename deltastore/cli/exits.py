"""Exit codes: one for each kind of error, as the caller would go on differently. Pure; imports errors."""

from typing import Final

from deltastore.errors import (
    ConflictError,
    CorruptionError,
    DeltastoreError,
    InvalidInputError,
    MismatchError,
    NotFoundError,
    UnavailableError,
)

OK: Final = 0
PROBLEMS: Final = 1
USAGE: Final = 2
LOST: Final = 8
FILE_DAMAGED: Final = 9
INTERNAL: Final = 70
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
"""As shells have it: 128, and the number of SIGPIPE."""

OF_ERRORS: Final[dict[type[DeltastoreError], int]] = {
    InvalidInputError: USAGE,
    NotFoundError: 3,
    ConflictError: 4,
    UnavailableError: 5,
    MismatchError: 6,
    CorruptionError: 7,
}

MEANINGS: Final[dict[int, str]] = {
    OK: "done",
    PROBLEMS: "`check` found problems, or `check --repair` left some",
    USAGE: "the call is wrong: arguments, names, or a deletion without `--yes`; or the extra `cli` isn't installed",
    3: "no such thread, checkpoint or channel",
    4: "somebody else was there first: a name in use, a copy overtaken",
    5: "the store can't be used: no store at the path, or an unfinished copy of one; no room, no permission",
    6: "written by something that isn't at hand, or another format version",
    7: "stored bytes aren't what was written: run `check`, then restore",
    LOST: "`check --repair` mended the store, but checkpoints are lost, or rows in quarantine: look, perhaps restore",
    FILE_DAMAGED: "`check` found the file's pages damaged, or the engine crashed on them: no repair helps, restore",
    INTERNAL: "a fault of this program",
    INTERRUPTED: "interrupted",
    BROKEN_PIPE: "whoever read the output stopped reading, as `head` does",
}
"""Every exit code; docs/cli.md is made of this."""


def code_of(error: DeltastoreError) -> int:
    """Return the exit code of an error."""
    return next((code for kind, code in OF_ERRORS.items() if isinstance(error, kind)), INTERNAL)
