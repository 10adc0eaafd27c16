"""Which file system a path is on, as far as the operating system tells: on Linux, by its table of mounts.

Imports nothing of the project. The invariant: it only reads that table, so it can neither wait for a server nor fail;
where it can't tell, it says so.
"""

import os
import re
from pathlib import Path
from typing import NamedTuple

_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPE = re.compile(rb"\\([0-7]{3})")
"""How the table writes space, tab, line feed and backslash."""
_MOUNT_POINT = 4
"""The field of a line that names where a file system is mounted; its type is the first one after a lone dash."""


class Mount(NamedTuple):
    """A file system in its place."""

    point: str
    kind: str


def mount_of(path: str, table: bytes | None = None) -> Mount | None:
    """Return the mount that an absolute path without links is on, whether it exists or not; None if nobody can tell.

    `table`: the table to look it up in, by default this process's.
    """
    if table is None:
        try:
            table = _MOUNTS.read_bytes()
        except OSError:  # another system, or none of it to be seen
            return None
    found: Mount | None = None
    for line in table.splitlines():
        place, dash, source = line.partition(b" - ")
        fields, kinds = place.split(b" "), source.split(b" ")
        if not dash or len(fields) <= _MOUNT_POINT or not kinds[0]:
            continue
        point = os.fsdecode(_ESCAPE.sub(_unescaped, fields[_MOUNT_POINT]))
        # of two on one point the later one hides the other
        if _within(path, point) and (found is None or len(point) >= len(found.point)):
            found = Mount(point, kinds[0].decode("ascii", "replace"))
    return found


def _unescaped(found: re.Match[bytes]) -> bytes:
    return bytes([int(found[1], 8) & 0xFF])


def _within(path: str, point: str) -> bool:
    return path == point or path.startswith(point if point.endswith("/") else f"{point}/")
