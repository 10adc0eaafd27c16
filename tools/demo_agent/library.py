"""The agent's tools: they search and read the sources of the Python standard library on this machine."""

import re
import sysconfig
from functools import cache
from pathlib import Path

from langchain_core.tools import tool

ROOT = Path(sysconfig.get_paths()["stdlib"])
LEFT_OUT = {"__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo"}
MAX_HITS = 40
MAX_LINE_CHARACTERS = 160
READ_LINES = 120
LINES_BEFORE = 20
"""Of a read, how many come before the line asked for."""


@cache
def sources() -> list[Path]:
    """List the library's modules, in a fixed order."""
    return sorted(path for path in ROOT.rglob("*.py") if not LEFT_OUT & set(path.relative_to(ROOT).parts))


@tool
def search(pattern: str) -> str:
    """Search the standard library for a regular expression: the first hits as `path:line: text`."""
    expression = re.compile(pattern)
    hits = []
    for path in sources():
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if expression.search(line):
                hits.append(f"{path.relative_to(ROOT).as_posix()}:{number}: {line.strip()[:MAX_LINE_CHARACTERS]}")
                if len(hits) == MAX_HITS:
                    return "\n".join(hits)
    return "\n".join(hits) or "no hits"


@tool
def read(path: str, line: int) -> str:
    """Read the lines around a place in a module of the standard library."""
    found = (ROOT / path).resolve()
    if not found.is_relative_to(ROOT.resolve()) or not found.is_file():
        return f"no such module: {path}"
    first = max(0, line - 1 - LINES_BEFORE)
    lines = found.read_text(errors="replace").splitlines()[first : first + READ_LINES]
    return "\n".join(f"{number:5}  {text}" for number, text in enumerate(lines, first + 1))


TOOLS = {"search": search, "read": read}
