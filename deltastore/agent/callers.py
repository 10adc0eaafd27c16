"""Callers: which line of the program a warning is about.

Imports nothing of the project. The invariant: the line is the program's, where there is one.
"""

import asyncio
import sys
from pathlib import Path
from typing import Final

_NOT_THE_PROGRAM: Final = tuple(str(Path(file).parent) for file in (__file__, asyncio.__file__))


def level() -> int:
    """Return the `stacklevel` with which the caller's warning points at the program: it counts from the caller."""
    frame, found = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THE_PROGRAM):
        frame, found = frame.f_back, found + 1
    return found
