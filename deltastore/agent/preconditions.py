"""Preconditions: what a stored result rests on, and whether that still is so.

A precondition is taken when the result is stored, with what was found then, and compared before a restored run executes
anything. Imports values and errors; looks at files and the clock. The invariant: of one condition what was found last
counts, so a run that changes a file itself, and says so, doesn't rot by it, nor one that took a new token in time.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

from deltastore.agent.values import Values
from deltastore.errors import InvalidInputError, RottenResultError

_DIGEST_BYTES: Final = 16
MISSING: Final = "missing"
"""What is found of a file that isn't there."""


@dataclass(frozen=True, slots=True)
class FileIs:
    """The file has the content that it has when the result is stored, or is as absent as then."""

    path: str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class ValidUntil:
    """It isn't later than this: a time with its zone, or seconds since 1970."""

    when: datetime | float


@dataclass(frozen=True, slots=True)
class Registered:
    """The function registered by this name (`manager.precondition(name)`) returns for the argument what it did then."""

    name: str
    argument: Any = None


Condition = FileIs | ValidUntil | Registered
Checks = Mapping[str, Callable[[Any], Any]]


class Taken(NamedTuple):
    """A condition as it was taken, with the name of the call whose result rests on it, and what that was asked for."""

    call: str
    asked: str
    condition: Mapping[str, Any]


def take(condition: Condition, checks: Checks, values: Values) -> dict[str, Any]:
    """Return a condition with what is found of it now, as plain data. Raises InvalidInputError, EncodeError."""
    if isinstance(condition, FileIs):
        path = os.path.abspath(os.fspath(condition.path))  # noqa: PTH100 - a link is looked through, not resolved
        return {"kind": "file", "subject": path, "found": _digest(path)}
    if isinstance(condition, ValidUntil):
        when = condition.when
        seconds = when.timestamp() if isinstance(when, datetime) else float(when)
        return {"kind": "until", "subject": seconds, "found": None}
    if isinstance(condition, Registered):
        argument = values.encode(condition.argument, f"precondition {condition.name!r}: argument")
        found = values.encode(_ask(condition.name, condition.argument, checks), f"precondition {condition.name!r}")
        return {"kind": "registered", "name": condition.name, "subject": argument, "found": found}
    raise _unknown(condition)


def validate(holds: Sequence[Condition] | Callable[[Any], Any], checks: Checks) -> None:
    """Look whether these conditions can be taken, before anything is done for them. Raises InvalidInputError."""
    for condition in () if callable(holds) else holds:
        if not isinstance(condition, (FileIs, ValidUntil, Registered)):
            raise _unknown(condition)
        if isinstance(condition, Registered) and condition.name not in checks:
            raise _unregistered(condition.name)


def check(run_id: str, taken: Iterable[Taken], checks: Checks, values: Values) -> None:
    """Compare conditions with what is found now.

    Raises RottenResultError on the first that differs, InvalidInputError on a name that isn't registered.
    """
    latest = {_subject(one): (one.call, one.condition) for one in taken}
    for call, condition in latest.values():
        expected, found = condition["found"], _find(condition, checks, values)
        if expected != found:
            what = _describe(condition)
            was, is_ = values.decode(expected), values.decode(found)
            raise RottenResultError(
                f"run {run_id!r}: the stored result of {call!r} rests on {what}, which was {was!r} and is {is_!r} now; "
                "nothing was executed. Restore an earlier checkpoint, or with check=False to go on all the same",
                run_id=run_id,
                condition=what,
                expected=was,
                found=is_,
            )


def _subject(taken: Taken) -> tuple[Any, ...]:
    """Return what a condition is about: a later one about the same stands in its place."""
    condition = taken.condition
    if condition["kind"] == "until":  # a call that is made anew has a new limit
        return ("until", taken.call, taken.asked)
    return (condition["kind"], condition.get("name"), repr(condition["subject"]))


def _unknown(condition: object) -> InvalidInputError:
    return InvalidInputError(
        f"a precondition of type {type(condition).__name__}; FileIs, ValidUntil and Registered are taken"
    )


def _unregistered(name: str) -> InvalidInputError:
    return InvalidInputError(f"no precondition {name!r} is registered; register it with manager.precondition")


def _find(condition: Mapping[str, Any], checks: Checks, values: Values) -> Any:
    subject = condition["subject"]
    if condition["kind"] == "file":
        return _digest(subject)
    if condition["kind"] == "until":
        now = time.time()
        return None if now <= subject else f"past since {_iso(subject)}"
    argument = values.decode(subject)
    return values.encode(_ask(condition["name"], argument, checks), f"precondition {condition['name']!r}")


def _describe(condition: Mapping[str, Any]) -> str:
    if condition["kind"] == "file":
        return f"file {condition['subject']}"
    if condition["kind"] == "until":
        return f"a time limit, {_iso(condition['subject'])}"
    return f"precondition {condition['name']!r}"


def _ask(name: str, argument: Any, checks: Checks) -> Any:
    if name not in checks:
        raise _unregistered(name)
    return checks[name](argument)


def _digest(path: str) -> str:
    digest = blake2b(digest_size=_DIGEST_BYTES)
    try:
        with Path(path).open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except FileNotFoundError:
        return MISSING
    return digest.hexdigest()


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
