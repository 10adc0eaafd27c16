"""One run of the command line: its streams, and whether they are a terminal's.

Imports rich for progress alone. The invariant: nothing but the answer goes to standard output, and no escape code
anywhere but to a terminal.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TextIO, TypeVar

from deltastore.errors import InvalidInputError
from deltastore.upkeep.progress import Progress

T = TypeVar("T")

COLOURS = {"added": "32", "removed": "31", "heading": "1", "mark": "33"}
"""Terminal colours by what they mean: green, red, bold, yellow."""


@dataclass(slots=True)
class Session:
    """The streams of a run, and what the user asked of all commands. `code` is what the run ends with."""

    out: TextIO
    err: TextIO
    input: TextIO
    environment: Mapping[str, str] = field(default_factory=dict)
    debug: bool = False
    code: int = 0
    _answer: Callable[[], object] | None = None

    def answer(self, as_json: bool, document: Mapping[str, Any], lines: Iterable[str], *, aside: bool = False) -> None:
        """Let the run end with the document, or with the lines for people; these are made only if they are wanted.

        `aside`: standard output is for something else, so they go to standard error.
        """
        stream = self.err if aside else self.out

        def write() -> None:
            if as_json:
                # ASCII, so that any surrogate in a name and any encoding of the terminal is all the same
                stream.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
            else:
                stream.writelines(line + "\n" for line in lines)

        self._answer = write

    def answer_raw(self, data: bytes) -> None:
        """Let the run end with these bytes."""
        self._answer = lambda: self.out.buffer.write(data)

    def finish(self) -> None:
        """Write the answer: after the store is closed and typer has returned, which has its own mind about pipes."""
        if self._answer is not None:
            self._answer()
        self.out.flush()

    def note(self, text: str) -> None:
        """Tell people something beside the answer."""
        self.err.write(f"{text}\n")

    def styled(self, text: str, meaning: str) -> str:
        """Return text in its colour on a terminal, as it is elsewhere, and where NO_COLOR is set."""
        if not self.out.isatty() or self.environment.get("NO_COLOR") or self.environment.get("TERM") == "dumb":
            return text
        return f"\x1b[{COLOURS[meaning]}m{text}\x1b[0m"

    def confirm(self, question: str, *, yes: bool, first: Iterable[str] = ()) -> bool:
        """Ask before something is deleted, showing the lines that come first; `yes`: it is answered already.

        Raises InvalidInputError where nobody can be asked.
        """
        if yes:
            return True
        if not (self.input.isatty() and self.err.isatty()):
            raise InvalidInputError(f"{question} Nobody can be asked here: give --yes, or --dry-run to see what goes")
        self.err.writelines(f"{line}\n" for line in first)
        self.err.write(f"{question} [y/N] ")
        self.err.flush()
        return self.input.readline().strip().lower() in ("y", "yes")

    def counted(self, what: str, items: Iterable[T], total: int | None = None) -> Iterator[T]:
        """Iterate over items, with progress."""
        with self.progress(what) as progress:
            for done, item in enumerate(items):
                if progress is not None:
                    progress(done, total)
                yield item

    @contextmanager
    def progress(self, what: str) -> Iterator[Progress | None]:
        """Give a function to tell progress to, which draws a bar; None where that isn't a terminal."""
        if not self.err.isatty():
            yield None
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        parts = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Bar(*parts, console=Console(file=self.err), transient=True) as bar:
            task = bar.add_task(what, total=None)
            tell: Callable[[int, int | None], object] = lambda done, total: bar.update(  # noqa: E731
                task, completed=done, total=total
            )
            yield tell
