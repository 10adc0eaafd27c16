"""Ages and sizes as people write them, and retention rules as options of a command. Pure; imports the rules."""

import re
from datetime import timedelta
from typing import Any, Final

from deltastore.errors import InvalidInputError
from deltastore.log.retention import Retention

AGES: Final = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
"""Units of ages, the longest first, as timedelta names them."""
SIZES: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
SIZES_OF_TWO: Final = {"k": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_AGE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)([wdhms])")
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)(?:([kMGT]?)B?|([kMGT])iB?)", re.IGNORECASE)


def parse_age(text: str, what: str) -> timedelta:
    """Return an age, such as `30d`. Raises InvalidInputError naming `what` it is for.

    >>> parse_age("36h", "--keep-within")
    datetime.timedelta(days=1, seconds=43200)
    """
    found = _AGE.fullmatch(text)
    if found is not None:
        try:
            return timedelta(**{AGES[found[2]]: float(found[1])})
        except OverflowError:
            pass
    elif text == "0":
        return timedelta(0)
    raise InvalidInputError(f"{what} {text!r}; expected an age as 90s, 30m, 12h, 7d or 4w, or 0, which is off")


def parse_size(text: str, what: str) -> int:
    """Return a number of bytes, such as `50M`. Raises InvalidInputError naming `what` it is for.

    >>> parse_size("50M", "--max-bytes"), parse_size("1.5KiB", "--max-bytes")
    (50000000, 1536)
    """
    found = _SIZE.fullmatch(text)
    if found is None:
        raise InvalidInputError(f"{what} {text!r}; expected bytes as 4096, 500k, 50M or 2G, or as 50MiB; 0 is off")
    if found[3]:
        return int(float(found[1]) * SIZES_OF_TWO[_unit(found[3])])
    return int(float(found[1]) * SIZES[_unit(found[2])])


def _unit(letter: str) -> str:
    return "k" if letter in "kK" and letter else letter.upper()


def age(span: timedelta) -> str:
    """Return an age as `parse_age` takes it, in the longest unit that divides it.

    >>> age(timedelta(days=30)), age(timedelta(weeks=4)), age(timedelta(seconds=1.5))
    ('30d', '4w', '1.5s')
    """
    for letter, name in AGES.items():
        if span and not span % timedelta(**{name: 1}):
            return f"{span // timedelta(**{name: 1})}{letter}"
    return f"{span.total_seconds():.6f}".rstrip("0").rstrip(".") + "s"


def rules_as_options(rules: Retention) -> str:
    """Return rules as one writes them on the command line."""
    parts: list[str] = []
    for name in rules.to_fields():
        value = getattr(rules, name)
        parts.append(f"--{name.replace('_', '-')} {age(value) if isinstance(value, timedelta) else value}")
    return " ".join(parts) or "all stays"


def rules_as_document(rules: Retention | None) -> dict[str, Any] | None:
    """Return rules for programs: those that aren't at their default, ages in seconds."""
    if rules is None:
        return None
    named = {name: getattr(rules, name) for name in rules.to_fields()}
    return {name: value.total_seconds() if isinstance(value, timedelta) else value for name, value in named.items()}
