"""docs/cli.md, made of the commands themselves: `python -m deltastore.cli.document > docs/cli.md`.

A test fails where the page isn't what this makes.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

import typer

from deltastore.cli.app import COMMANDS, NAME, application
from deltastore.cli.exits import MEANINGS, OF_ERRORS
from deltastore.cli.plain import FORMS

SHARED = ("--json", "--debug")
"""Options of every command, told once."""

HEAD = f"""# The command line

Made by `python -m deltastore.cli.document` of the commands themselves.

`pip install '.[cli]'` from a clone brings `{NAME}`; `python -m deltastore` is the same. `{NAME} --install-completion`
sets up completion in your shell, `{NAME} --version` tells the version.

- Every command takes the store first: its directory, or the URL of one [on PostgreSQL](postgres.md). None but `load`
  and `migrate` makes a store there; `copy` and `backup` make one at the place that they are given second.
- Nothing of yours is imported or run: objects are shown by the names of their classes, and their fields.
- `--json` gives one JSON document, whose keys stay; other output is for people, and may change. `--debug` adds to an
  error where in the program it came from. Errors are one line on standard error.
- Colours and progress bars appear on a terminal only; `NO_COLOR` turns colours off.
- What a listing shows can be given back: characters that don't print are shown as in Python (`\\n`, `\\x00`), a
  backslash as two.
- CHECKPOINT is an id or a tag, looked for in the root namespace first, then in the others, unless `--namespace` is
  given. Where a thread is named by the whole of THREAD@CHECKPOINT, that thread is meant; else the last `@` counts that
  an id or a tag of the thread before it follows.
"""


def page() -> str:
    """Return the page."""
    command: Any = typer.main.get_command(application())
    parts = [HEAD, *(_command(name, module, command.commands[name]) for name, module in COMMANDS.items())]
    parts.append("## Values in JSON\n\n" + _table(("form", "value"), ((f"`{form}`", what) for form, what in _forms())))
    parts.append("## Exit codes\n\n" + _table(("code", "meaning", "errors"), _codes()))
    return "\n".join(parts)


def _command(name: str, module: ModuleType, command: Any) -> str:
    takes = [parameter for parameter in command.params if not set(parameter.opts) & set(SHARED)]
    meanings = [(f"`{_shown(parameter)}`", _meaning(parameter)) for parameter in takes[1:]]
    usage = " ".join(_in_usage(parameter) for parameter in takes if parameter.param_type_name == "argument")
    text = f"## {name}\n\n    {NAME} {name} {usage}\n    {module.EXAMPLE}\n\n{command.help}\n\n"
    if meanings:
        text += _table(("argument or option", "meaning"), meanings) + "\n"
    keys: Mapping[str, str] = module.KEYS
    return text + _table(("key of `--json`", "value"), ((f"`{key}`", what) for key, what in keys.items()))


def _in_usage(argument: Any) -> str:
    shown = _shown(argument)
    return shown if argument.required or shown.startswith("[") else f"[{shown}]"


def _shown(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.metavar)
    return str(parameter.opts[0]) + ("" if parameter.is_flag else f" {parameter.metavar}")


def _meaning(parameter: Any) -> str:
    default = parameter.default
    shown = default is not None and default is not False and parameter.param_type_name == "option"
    return (parameter.help or "") + (f" Default: {default}." if shown else "")


def _forms() -> Iterator[tuple[str, str]]:
    return iter(FORMS.items())


def _codes() -> Iterator[tuple[str, ...]]:
    for code, meaning in MEANINGS.items():
        errors = ", ".join(f"`{kind.__name__}`" for kind, own in OF_ERRORS.items() if own == code)
        yield str(code), meaning, errors


def _table(heading: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heading, tuple("---" for _ in heading), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


if __name__ == "__main__":
    sys.stdout.write(page())
