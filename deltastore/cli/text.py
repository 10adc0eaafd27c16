"""Text for people: names with nothing in them that moves a cursor, sizes, times, columns. Pure."""

import re
from collections.abc import Sequence
from datetime import datetime

_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}
_CHARS = {shown: char for char, shown in _ESCAPES.items()}
_ESCAPE = re.compile(r"\\(?:[nrt\\]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")
_WHOLE = re.compile(rf"(?:[^\\]|{_ESCAPE.pattern})*", re.DOTALL)
WIDEST = 60
"""The most characters that a column is padded to: one long name mustn't make every line as long."""


def escaped(text: str) -> str:
    r"""Return text on one line, unprintable characters as in Python, a backslash as two. `unescaped` undoes it.

    >>> print(escaped("a\nb\x00"))
    a\nb\x00
    """
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(_ESCAPES.get(char) or (char if char.isprintable() else _code(char)) for char in text)


def message(text: str) -> str:
    """Return a message on one line; its backslashes are its own."""
    return "".join(char if char == "\\" else escaped(char) for char in text)


def _code(char: str) -> str:
    number = ord(char)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def unescaped(text: str) -> str | None:
    """Undo `escaped`; None where it is no such text."""
    if not _WHOLE.fullmatch(text):
        return None
    try:
        return _ESCAPE.sub(_char, text)
    except (ValueError, OverflowError):  # beyond Unicode
        return None


def _char(found: re.Match[str]) -> str:
    return _CHARS.get(found[0]) or chr(int(f"0x{found[0][2:]}", 16))


def size(count: float) -> str:
    """Return bytes as people read them.

    >>> size(999), size(1_234_567)
    ('999 B', '1.2 MB')
    """
    units = ["B", "kB", "MB", "GB", "TB"]
    while abs(count) >= 1000 and len(units) > 1:
        count /= 1000
        units.pop(0)
    return f"{count:.0f} B" if units[0] == "B" else f"{count:.1f} {units[0]}"


def moment(time: datetime) -> str:
    """Return a time, in UTC, to the second."""
    return f"{time:%Y-%m-%d %H:%M:%S}Z"


def percent(part: float, whole: float) -> str:
    """Return a share."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def columns(rows: Sequence[Sequence[str]], *, heading: Sequence[str], right: Sequence[int] = ()) -> list[str]:
    """Return lines in which each column is as wide as its widest cell, up to `WIDEST`; the last one isn't padded.

    `right`: columns that stand to the right, as numbers do.
    """
    table = [heading, *rows]
    widths = [min(WIDEST, max(map(len, column))) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
