"""How the demo tells its story: with colours and progress bars on a terminal, in plain lines anywhere else."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

LABEL_WIDTH = 20
PLAIN_WIDTH = 100


class Teller:
    """Writes to standard output, or to standard error where standard output is for something else."""

    def __init__(self, *, to_stderr: bool = False) -> None:
        stream = sys.stderr if to_stderr else sys.stdout
        on_terminal = stream.isatty()
        # Said outright, because rich would also take variables like FORCE_COLOR for a terminal.
        self._console = Console(
            file=stream,
            force_terminal=on_terminal,
            width=None if on_terminal else PLAIN_WIDTH,
            highlight=False,
            markup=False,
            emoji=False,
        )
        self._live = on_terminal and not self._console.is_dumb_terminal
        self._number = 0

    def say(self, text: str = "", style: str = "") -> None:
        self._print(Text(text, style=style))

    def section(self, title: str, text: str) -> None:
        """Begin a section with what happens in it and why it matters."""
        self._number += 1
        self.say()
        self._print(Text.assemble((f"{self._number}. {title}. ", "bold"), text))

    def line(self, label: str, text: str, style: str = "") -> None:
        told = Text.assemble("   ", (f"{label:<{LABEL_WIDTH}} ", "cyan"), (text, style))
        self._print(told, soft_wrap=True)

    @contextmanager
    def progress(self, text: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show how far something is, by what the yielded function is told; it leaves nothing on the screen."""
        if not self._live:
            yield lambda _: None
            return
        columns = (TextColumn("   {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._console, transient=True) as bar:
            task = bar.add_task(text, total=total)
            yield lambda done: bar.update(task, completed=done)

    def table(self, heads: Sequence[str], sections: Sequence[Sequence[Sequence[str]]]) -> None:
        table = Table(box=box.SIMPLE_HEAD if self._live else box.MARKDOWN, header_style="bold")
        for place, head in enumerate(heads):
            table.add_column(head, justify="right" if place else "left", style="green" if head == "ratio" else "")
        for rows in sections:
            for row in rows:
                table.add_row(*row)
            if self._live:
                table.add_section()
        self._print(table)

    def _print(self, item: Text | Table, *, soft_wrap: bool = False) -> None:
        if self._console.is_terminal:
            self._console.print(item, soft_wrap=soft_wrap)
            return
        with self._console.capture() as printed:
            self._console.print(item, soft_wrap=soft_wrap)
        for line in printed.get().splitlines():
            print(line.rstrip(), file=self._console.file, flush=True)
