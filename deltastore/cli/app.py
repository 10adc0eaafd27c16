"""The commands as one program, and how a run of it ends: exit code, and one line for an error.

Imports typer. The invariant: no traceback is shown unless it is asked for.
"""

import io
import os
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType
from typing import Annotated, Any

import typer

from deltastore.cli import exits
from deltastore.cli.commands import (
    backup,
    check,
    compact,
    copy,
    delete,
    diff,
    dump,
    info,
    load,
    log,
    maintain,
    migrate,
    retain,
    show,
    stats,
    tag,
    threads,
)
from deltastore.cli.session import Session
from deltastore.cli.text import message
from deltastore.errors import DeltastoreError, StorageError

NAME = "deltastore"
COMMANDS: dict[str, ModuleType] = {
    "info": info,
    "threads": threads,
    "log": log,
    "show": show,
    "diff": diff,
    "stats": stats,
    "check": check,
    "retain": retain,
    "compact": compact,
    "maintain": maintain,
    "delete": delete,
    "tag": tag,
    "copy": copy,
    "backup": backup,
    "dump": dump,
    "load": load,
    "migrate": migrate,
}
"""In the order of the help."""


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"{NAME} {version(NAME)}")
        except PackageNotFoundError:
            typer.echo(f"{NAME}, which isn't installed: run from its source")
        raise typer.Exit


def _program(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = (
        False
    ),
) -> None:
    """Look into a store of agent checkpoints, and keep it in order."""


def application() -> typer.Typer:
    """Return the program with all its commands."""
    made = typer.Typer(
        name=NAME,
        # plain help: boxes are no use in a pipe, and docs/cli.md quotes it
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    made.callback()(_program)
    for name, module in COMMANDS.items():
        made.command(name, epilog=f"Example: {module.EXAMPLE}")(module.command)
    return made


def run(arguments: Sequence[str]) -> int:
    """Run a command; return the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names may hold what the terminal's encoding lacks
            stream.reconfigure(errors="backslashreplace")
    if sys.stdout is None:  # closed by whoever started this
        if sys.stderr is not None:
            sys.stderr.write(f"{NAME}: standard output is closed, so nothing was done; send it to /dev/null instead\n")
        return exits.code_of(StorageError())
    session = Session(sys.stdout, sys.stderr or io.StringIO(), sys.stdin or io.StringIO(), dict(os.environ))
    try:
        code = _run(arguments, session)
        session.finish()
    except BrokenPipeError:
        _drop_output()
        return exits.BROKEN_PIPE
    except OSError as error:
        _drop_output()
        text = f"what was asked for is done, but standard output can't be written: {error}"
        return _fail(session, text, exits.code_of(StorageError()))
    return code


def _drop_output() -> None:
    """Let what is left of the output go nowhere: the interpreter flushes once more when it ends, and would complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: Sequence[str], session: Session) -> int:
    command: Any = typer.main.get_command(application())
    try:
        # typer gives the code of an Exit, as that of an interruption; None where a command just ends
        ended = command.main(list(arguments) or ["--help"], prog_name=NAME, standalone_mode=False, obj=session)
    except typer.TyperException as error:
        program = " ".join([NAME, *(name for name in arguments[:1] if name in COMMANDS)])
        return _fail(session, f"{error.format_message().rstrip('.')}; see {program} --help", error.exit_code)
    except typer.Abort:
        return exits.INTERRUPTED
    except DeltastoreError as error:
        return _fail(session, str(error), exits.code_of(error))
    except (BrokenPipeError, KeyboardInterrupt, ModuleNotFoundError):
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, users get one line
        text = f"{type(error).__name__}: {error}. This is a fault of {NAME}; --debug shows where"
        return _fail(session, text, exits.INTERNAL)
    return ended if isinstance(ended, int) and ended else session.code


def _fail(session: Session, text: str, code: int) -> int:
    if session.debug:
        session.err.write(traceback.format_exc())
    session.note(f"{NAME}: {message(text)}")
    return code
