"""What a store, or one thread of it, is told to keep: the rules as a value, and the row that holds them.

Nothing here deletes: `upkeep` does, by these rules. Imports keys and rows. The invariant: what is stored was validated,
and is validated again when it is read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Literal

import ormsgpack

from deltastore.errors import ChecksumError, InvalidInputError
from deltastore.log import keys, rows
from deltastore.storage.port import ReadTransaction, WriteTransaction

DEFAULT_STRAY_AGE = timedelta(days=7)
"""When writes count as stray if nothing else is said: their checkpoint comes within seconds, or after a node that may
take hours, so a week is beyond doubt."""
MAX_AGE = timedelta(days=36_500)
"""The longest age: a century, so that a time less an age is still a time."""
MAX_COUNT = 1 << 53
"""The greatest number: what other languages' readers of a store can hold too."""
OFF = timedelta(0)

KeepForks = Literal["all", "latest"] | timedelta

_COUNTS = ("keep_last", "keep_hourly", "keep_daily", "keep_weekly", "max_bytes")
_AGES = ("keep_within", "drop_idle", "stray_writes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What is kept. All rules are off by default; 0 is off too.

    With any `keep_` number or age on, a checkpoint goes unless one of them keeps it. They apply to each namespace, its
    checkpoints ordered by id. Always kept are each namespace's latest checkpoint, tagged ones, and the ends of branches
    that have pending writes, such as an interrupt that waits for its answer. A LangGraph sub-graph call goes with the
    root checkpoint that it started from, and not before.

    `keep_last`: the newest so many. `keep_within`: those not older. `keep_hourly`, `keep_daily`, `keep_weekly`: the
    newest of each of the last so many hours, days, weeks (from Monday) that have one, in UTC.
    `keep_forks`: of the ends of branches beside the latest checkpoint's, keep all, none, or those not older; of a
    branch that isn't kept, what no kept branch shares goes, unless it is tagged.
    `max_bytes`: a thread's oldest checkpoints go, also those that a rule keeps, until what the others name is within.
    `drop_idle`: a thread goes whole, whatever it holds, when nothing was put to it for longer.
    `stray_writes`: pending writes whose checkpoint never came go when older; by default `DEFAULT_STRAY_AGE` once any
    other rule is on.

    Raises InvalidInputError naming the field.

    >>> import deltastore
    >>> deltastore.Retention(keep_last=20, keep_daily=7).is_off
    False
    """

    keep_last: int = 0
    keep_within: timedelta | None = None
    keep_hourly: int = 0
    keep_daily: int = 0
    keep_weekly: int = 0
    keep_forks: KeepForks = "all"
    max_bytes: int = 0
    drop_idle: timedelta | None = None
    stray_writes: timedelta | None = None

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value <= MAX_COUNT:
                raise InvalidInputError(f"{name}={value!r}; expected an int from 0, which is off, to {MAX_COUNT}")
        for name in _AGES:
            value = getattr(self, name)
            if value is not None and not (isinstance(value, timedelta) and OFF <= value <= MAX_AGE):
                raise InvalidInputError(
                    f"{name}={value!r}; expected None or a timedelta from 0, which is off, to {MAX_AGE.days} days"
                )
        forks = self.keep_forks
        if forks not in ("all", "latest") and not (isinstance(forks, timedelta) and OFF < forks <= MAX_AGE):
            raise InvalidInputError(
                f"keep_forks={forks!r}; expected 'all', 'latest', or a timedelta above 0 and up to {MAX_AGE.days} days"
            )

    @property
    def keeps_some(self) -> bool:
        """Whether checkpoints expire unless a rule keeps them."""
        counts = self.keep_last or self.keep_hourly or self.keep_daily or self.keep_weekly
        return bool(counts or self.keep_within)

    @property
    def looks_at_checkpoints(self) -> bool:
        """Whether any rule is about single checkpoints, rather than whole threads or writes."""
        return bool(self.keeps_some or self.keep_forks != "all" or self.max_bytes)

    @property
    def is_off(self) -> bool:
        """Whether nothing ever goes."""
        return not (self.looks_at_checkpoints or self.drop_idle or self.stray_writes)

    @property
    def stray_age(self) -> timedelta:
        """From which age on stray writes go; 0: never."""
        if self.is_off:
            return OFF
        return DEFAULT_STRAY_AGE if self.stray_writes is None else self.stray_writes

    def to_fields(self) -> dict[str, int | str]:
        """Return the rules that aren't at their default, ages in microseconds."""
        out: dict[str, int | str] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                out[field.name] = value // timedelta(microseconds=1) if isinstance(value, timedelta) else value
        return out

    @classmethod
    def from_fields(cls, found: Mapping[str, Any]) -> "Retention":
        """Undo `to_fields`. Raises InvalidInputError."""
        unknown = sorted(found.keys() - {field.name for field in fields(cls)})
        if unknown:
            raise InvalidInputError(f"rules {unknown} are unknown to this release")
        ages = {name: value for name, value in found.items() if name in _AGES or name == "keep_forks"}
        spans = {name: timedelta(microseconds=value) for name, value in ages.items() if type(value) is int}
        return cls(**{**found, **spans})


def check_rules(rules: Retention | None) -> Retention | None:
    """Raise InvalidInputError unless these are retention rules, or None."""
    if rules is not None and not isinstance(rules, Retention):
        raise InvalidInputError(f"retention of type {type(rules).__name__}; expected a deltastore.Retention, or None")
    return rules


def key_of(thread: int | None) -> bytes:
    """Return where a thread's own rules stand; the store's without a thread."""
    return keys.RETENTION if thread is None else keys.retention(thread)


def decode(key: bytes, data: bytes) -> Retention:
    """Parse a row of rules. Raises ChecksumError."""
    found = rows.parse(key, data)
    try:
        if isinstance(found, dict) and all(isinstance(name, str) for name in found):
            return Retention.from_fields(found)
    except (InvalidInputError, OverflowError) as error:
        raise ChecksumError(f"row {key.hex()} is no row of retention rules: {error}") from error
    raise ChecksumError(f"row {key.hex()} is no row of retention rules")


def load(tx: ReadTransaction, thread: int | None) -> Retention | None:
    """Return the rules stored for the store, or for a thread alone; None where there are none. Raises ChecksumError."""
    key = key_of(thread)
    row = rows.get(tx, key)
    return None if row is None else decode(key, row)


def store(tx: WriteTransaction, thread: int | None, retention: Retention | None) -> None:
    """Store rules for the store, or for a thread alone; None removes them."""
    key = key_of(thread)
    if retention is None:
        tx.delete(key)
    else:
        rows.put(tx, key, ormsgpack.packb(retention.to_fields()))
