"""The parts of docs/benchmarks.md on agents' runs."""

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from bench.agent_kills import LOOK
from bench.agent_savers import PRODUCT, WAYS
from bench.sections import load
from bench.tables import WIDTH, figure

ROUNDS = """
Five rounds of a model and three tools (search, extract, summarise, send mail), killed with kill -9 at each moment after
the third reply was recorded, and resumed by a fresh process. Identical: messages, state, tools' results, token counts
and mails are those of a run that wasn't killed. Saved: of the tokens that starting over takes, those that the resume
didn't. Resume: from opening the store until the next call is made, or the end.
"""
LONG = """
A run of {steps} steps, each with a model's call, a tool's and a checkpoint, killed within a tool's call: until the
store was open, the run restored, and its next call made, in ms, by fresh processes that had imported all; how much of
that the processor was busy; and what the imports take. Median, least and most.
"""
KILLS = """
{points} runs of {orders} orders, each order a row of an SQLite database and a mail in a file, neither of which refuses
a second one; seed {seed}. Half of the kills come from within, at a moment before or after a write to the store or an
effect; half from outside, at a random time. Calls in doubt are looked up; or, to see that the kills hit, made again.
Completed calls are those that were recorded as done at a kill; answered: not made again by a later life.
"""
SAVES = """
{rounds} rounds, each a question, three replies, four tool results, and changes of a plan, a scratchpad and documents.
deltastore is `deltastore.agent` with its journal and its records of calls; the others save messages and state as a
whole at the same places. Largest: what one save adds. A save is durable; median, 95th percentile and most. Processor:
how long it was busy in a save, median. Journal: what it adds to each call, median. Resume: a fresh process opens what
is there and reads the latest state, imports apart; median, least and most. Memory: at the peak, beside what was there
before.
"""
KILL_COLUMNS = {
    "kills": "kills",
    "effects": "effects",
    "there twice": "twice",
    "lost": "lost",
    "in doubt, was done": "in doubt, done",
    "in doubt, wasn't": "in doubt, not done",
    "completed calls": "completed",
}


def resumed() -> list[str]:
    """Return the part on resumes."""
    result = load("agent_resume")
    if not result:
        return []
    rows = [
        (
            prompt,
            f"{each['kill_points']}",
            f"{each['identical'] / each['kill_points']:.0%}",
            "{median:.0%} ({least:.0%} to {most:.0%})".format(**each["saved"]),
            _spread(each["resume"]),
        )
        for prompt, each in result["rounds"].items()
    ]
    long = result["long"]
    times = [_spread(each) for each in (*long["ms"].values(), result["import"])]
    return [
        "## Agents killed and resumed",
        "",
        *_text(ROUNDS),
        *_table(("prompt", "kill points", "identical", "tokens saved", "resume, ms"), rows),
        *_text(LONG.format(**long)),
        *_table(("steps", "open", "restored", "next call", "processor", "import"), [(f"{long['steps']}", *times)]),
    ]


def killed() -> list[str]:
    """Return the part on random kills."""
    result = load("agent_kills")
    if not result:
        return []
    rows = []
    for policy, count in result["counts"].items():
        answered = count["completed"] - count["completed, made again"]
        cells = [
            f"{count[what]:,}" if policy == LOOK or not what.startswith("in doubt") else ""
            for what in KILL_COLUMNS.values()
        ]
        rows.append((policy, *cells, f"{answered / max(1, count['completed']):.0%}"))
    return [
        "## Agents killed at random",
        "",
        *_text(KILLS.format(**result)),
        *_table(("calls in doubt", *KILL_COLUMNS, "answered"), rows),
    ]


def saved() -> list[str]:
    """Return the part on what checkpoints cost."""
    result = load("agent_rounds")
    if not result:
        return []
    columns = (
        "policy",
        "saved by",
        "checkpoints",
        "wrong",
        "largest, KB",
        "all, MB",
        "a save, ms",
        "processor, ms",
        "journal, ms",
        "resume, ms",
        "memory, MB",
    )
    rows = [
        (policy, WAYS[way].label, *_saves(way, each, ways[PRODUCT]))
        for policy, ways in result["policies"].items()
        for way, each in ways.items()
    ]
    return ["## Agents' checkpoints", "", *_text(SAVES.format(**result)), *_table(columns, rows, texts=2)]


def _saves(way: str, each: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    return [
        f"{each['checkpoints']:,}",
        f"{each['differing'] or 'none'}",
        _against(each["largest_bytes"], ours["largest_bytes"], 1e3),
        _against(each["stored_bytes"], ours["stored_bytes"], 1e6),
        ", ".join(figure(each["save"][which]) for which in ("p50_ms", "p95_ms", "most_ms")),
        figure(each["processor"]["p50_ms"]),
        figure(each["call"]["p50_ms"]) if way == PRODUCT else "",
        _spread(each["resume"]),
        figure(each["peak_bytes"] / 1e6),
    ]


def _text(paragraph: str) -> list[str]:
    return [*textwrap.wrap(paragraph.strip(), WIDTH), ""]


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> list[str]:
    """Return a table whose first columns are texts, and the others figures."""
    rule = " --- |" * texts + " ---: |" * (len(columns) - texts)
    return [f"| {' | '.join(columns)} |", f"|{rule}", *(f"| {' | '.join(row)} |" for row in rows), ""]


def _spread(found: dict[str, Any]) -> str:
    return f"{figure(found['p50_ms'])} ({figure(found['least_ms'])} to {figure(found['most_ms'])})"


def _against(size: int, ours: int, unit: float) -> str:
    ratio = "" if size == ours else f" ({figure(size / ours)} x)"
    return f"{size / unit:,.2f}{ratio}"
