"""Parts of docs/benchmarks.md that several sections are made of: paragraphs, tables, figures with their spread."""

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from bench.tables import WIDTH, figure


def text(paragraph: str) -> list[str]:
    """Return a paragraph, wrapped."""
    return [*textwrap.wrap(paragraph.strip(), WIDTH), ""]


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> list[str]:
    """Return a table whose first columns are texts, and the others figures."""
    rule = " --- |" * texts + " ---: |" * (len(columns) - texts)
    return [f"| {' | '.join(columns)} |", f"|{rule}", *(f"| {' | '.join(row)} |" for row in rows), ""]


def spread(found: dict[str, Any], names: Sequence[str] = ("p50_ms", "least_ms", "most_ms")) -> str:
    """Return a median with the least and the most."""
    middle, least, most = (figure(found[name]) for name in names)
    return f"{middle} ({least} to {most})"
