"""What a check found: problems, counts, and the tally that collects them.

Pure; imports nothing of the project.
"""

from dataclasses import dataclass, field

MAX_PROBLEMS = 1000
"""Problems that a report lists at most: a store damaged all over needs no longer list."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong: where, and what was found instead of what."""

    where: str
    what: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a check saw. Sizes are plain bytes, before compression.

    `file_damaged`: the storage's own file is damaged, so that its rows can't be looked at, and no repair helps.
    """

    threads: int
    checkpoints: int
    hidden: int
    chunks: int
    chunk_bytes: int
    garbage_chunks: int
    garbage_bytes: int
    garbage_records: int
    writes_without_checkpoint: int
    queued_threads: int
    quarantined: int
    max_depth: int
    problems: tuple[Problem, ...]
    file_damaged: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong. Garbage and quarantined rows aren't wrong."""
        return not self.problems


@dataclass(slots=True)
class Tally:
    """A report in the making."""

    threads: int = 0
    checkpoints: int = 0
    hidden: int = 0
    chunks: int = 0
    chunk_bytes: int = 0
    garbage_chunks: int = 0
    garbage_bytes: int = 0
    garbage_records: int = 0
    writes_without_checkpoint: int = 0
    queued_threads: int = 0
    quarantined: int = 0
    max_depth: int = 0
    problems: list[Problem] = field(default_factory=list)
    file_damaged: bool = False

    def problem(self, where: str, what: object) -> None:
        """Note a problem, as far as the report has room."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(where, str(what)))

    def report(self) -> CheckReport:
        """Return what was tallied."""
        counts = {name: getattr(self, name) for name in self.__slots__ if name != "problems"}
        return CheckReport(**counts, problems=tuple(self.problems))
