"""What a repair says: what it would do and why, what is lost, and the row changes behind it.

Pure; imports nothing of the project but keys and rows. The invariant: a plan holds all that applying it needs, and each
row as it was when it was made.
"""

from dataclasses import dataclass, field

from deltastore.log import keys, rows

QUARANTINED, REBUILT, NAMED, CUT = "quarantined", "rebuilt", "named", "cut"
"""A row or checkpoint taken out of its place, as found; an index or count made anew of what it is about; a thread or
namespace given a name again; a history that ends with an error from now on, for what it needs was lost."""


@dataclass(frozen=True, slots=True)
class RepairAction:
    """What becomes of one thing, and why. `action`: quarantined, rebuilt, named or cut."""

    where: str
    thing: str
    action: str
    reason: str


@dataclass(frozen=True, slots=True)
class LostCheckpoint:
    """A checkpoint that can't be rebuilt. `channels`: which ones, as far as that is known; empty: all of it."""

    thread: str
    namespace: str
    id: str
    channels: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Change:
    """A row as it was seen, and as it is to be; None: no row."""

    key: bytes
    before: bytes | None
    after: bytes | None


def quarantined_by(changes: tuple[Change, ...]) -> int:
    """Return how many rows changes put into quarantine."""
    kinds = (change.key[keys.THREAD_BYTES : keys.THREAD_BYTES + 1] for change in changes if change.before is None)
    return sum(kind == b"q" for kind in kinds)


@dataclass(slots=True)
class Notes:
    """What is found out on the way."""

    actions: list[RepairAction] = field(default_factory=list)
    lost: list[LostCheckpoint] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def note(self, where: str, thing: str, action: str, reason: object) -> None:
        """Note an action."""
        self.actions.append(RepairAction(where, thing, action, str(reason)))


@dataclass(frozen=True, slots=True)
class StorePart:
    """What becomes of the store's own rows, and of those of numbers that are no thread's: all or nothing of it.

    `counters`: kinds of names with the number that none given from now on may be below.
    """

    changes: tuple[Change, ...]
    counters: tuple[tuple[bytes, int], ...]
    notes: Notes


@dataclass(frozen=True, slots=True)
class ThreadPart:
    """What becomes of one thread's rows. `seen`: its header as found; `header`: as it is to be, but for its counts of
    changes, which go on from what it says.
    """

    number: int
    name: str
    seen: bytes | None
    header: rows.Header
    changes: tuple[Change, ...]
    notes: Notes


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """What a repair would do; nothing of it is done. `left`: problems that it has no remedy for."""

    store: StorePart | None
    threads: tuple[ThreadPart, ...]
    left: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do. Problems may be left all the same."""
        return self.store is None and not self.threads

    @property
    def actions(self) -> tuple[RepairAction, ...]:
        """All that would be done, the store's own rows first."""
        return tuple(action for notes in self._notes() for action in notes.actions)

    @property
    def lost(self) -> tuple[LostCheckpoint, ...]:
        """The checkpoints that can't be rebuilt."""
        return tuple(lost for notes in self._notes() for lost in notes.lost)

    @property
    def quarantined(self) -> int:
        """How many rows would be taken out of their places."""
        return sum(quarantined_by(part.changes) for part in (self.store, *self.threads) if part is not None)

    def _notes(self) -> list[Notes]:
        return [part.notes for part in (self.store, *self.threads) if part is not None]


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What a repair did. `skipped`: what others changed meanwhile, left as it was, with the store itself as `store`.

    `left`: problems that it has no remedy for.
    """

    actions: tuple[RepairAction, ...]
    lost: tuple[LostCheckpoint, ...]
    quarantined: int
    skipped: tuple[str, ...]
    left: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong any more; checkpoints may be lost all the same."""
        return not self.skipped and not self.left

    @property
    def is_lossless(self) -> bool:
        """Whether all that it did was to make anew what other rows tell."""
        return all(action.action in (REBUILT, NAMED) for action in self.actions)
