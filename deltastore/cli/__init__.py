"""The command line. It needs the extra `cli`; this module says so where it is missing, and imports none of it.

Only this package uses arguments, environment and standard streams. Imports everything below.
"""

import sys
from collections.abc import Sequence

LIBRARIES = ("typer", "rich")
"""What the extra installs."""
INTERRUPTED = 130
"""As shells have it: 128, and the number of SIGINT."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, those of the process without `arguments`; return the exit code."""
    try:
        from deltastore.cli.app import run

        return run(sys.argv[1:] if arguments is None else arguments)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in LIBRARIES:
            raise
        sys.stderr.write(
            f"deltastore: the command line needs {error.name}, which isn't installed; pip install '.[cli]' "
            "in a clone of deltastore\n"
        )
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
