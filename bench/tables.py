"""The tables that compare savers: a workload a row, a saver a column, from the results of bench.compare."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from bench.recording import PUT_OF_MESSAGES
from bench.savers import PRODUCT, REFERENCE, SAVERS

Results = dict[str, dict[str, Any]]
"""By workload."""
Cell = Callable[[dict[str, Any]], str]
"""What stands in a table of one saver's figures. Raises KeyError where they have none of it."""
NONE = ""
WIDTH = 120
"""Of the page's lines."""
READS = {
    "the latest checkpoint": "latest",
    "any checkpoint": "historic",
    "a list of 10": "list of 10",
}


def figure(number: float) -> str:
    """Return three digits of a number, or all before the point."""
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def compared(results: Results) -> list[str]:
    """Return the savers of any result, in the order of SAVERS."""
    return [name for name in SAVERS if any(name in result["savers"] for result in results.values())]


def table(results: Results, savers: Sequence[str], cell: Cell) -> list[str]:
    """Return a table, without workloads of which no saver has figures; no lines where none has."""
    rows = {
        name: [_cell(result["savers"].get(saver, {}), cell) for saver in savers] for name, result in results.items()
    }
    shown = [f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items() if any(cells)]
    labels = " | ".join(SAVERS[saver].label for saver in savers)
    return [f"| workload | {labels} |", f"| --- |{' ---: |' * len(savers)}", *shown, ""] if shown else []


def _cell(found: dict[str, Any], cell: Cell) -> str:
    try:
        return cell(found)
    except KeyError:
        return NONE


def sizes(results: Results, summaries: dict[str, str]) -> list[str]:
    """Return the table of stored bytes, with how many times as much as the product each saver takes."""
    savers = [name for name in compared(results) if SAVERS[name].persistent]
    labels = " | ".join(f"{SAVERS[saver].label}, MB" for saver in savers)
    lines = [f"| workload | turns | checkpoints | {labels} |", f"| --- |{' ---: |' * (len(savers) + 2)}"]
    for name, result in results.items():
        ours = result["savers"][PRODUCT].get("write", {}).get("stored_bytes")
        cells = [_cell(result["savers"].get(saver, {}), partial(_size, ours)) for saver in savers]
        lines.append(
            f"| **{name}**: {summaries[name]} | {result['turns']:,} | {result['recorded']['put']:,} "
            f"| {' | '.join(cells)} |"
        )
    return [*lines, ""]


def _size(ours: int | None, found: dict[str, Any]) -> str:
    stored = found["write"]["stored_bytes"]
    if ours is None or stored == ours:
        return f"{stored / 1e6:.2f}"
    return f"{stored / 1e6:,.1f} ({figure(stored / ours)} x)"


def writes(results: Results) -> list[str]:
    """Return the tables of puts, of all calls, and of memory."""
    savers = compared(results)
    return [
        *_titled(
            "A put, in ms: median, and in brackets the 10th and 90th percentile.",
            table(results, savers, lambda found: _spread(found["write"]["calls"]["put"])),
        ),
        *_titled(
            "The same at the end, in ms: the median of the last tenth of those puts that change messages.",
            table(results, savers, lambda found: figure(found["write"]["calls"][PUT_OF_MESSAGES]["end_p50_ms"])),
        ),
        *_titled(
            "All calls, in s: the median of the runs, in brackets the least and the most where there were several.",
            table(results, savers, lambda found: _total(found["write"])),
        ),
        *_titled(
            "Memory that the calls took at the peak, in MB. Of savers that map their file, pages of it count; a\n"
            "server's own memory doesn't.",
            table(results, savers, lambda found: figure(found["write"]["peak_bytes"] / 1e6)),
        ),
    ]


def reads(results: Results) -> list[str]:
    """Return the tables of resuming, of reads, and of histories without values."""
    savers = compared(results)
    lines = _titled(
        "Resuming, in ms: a fresh process opens the store and reads the latest state; imports aren't counted. Median,\n"
        "least and most of the processes.",
        table(results, savers, lambda found: _extremes(found["resume"]["open and read"])),
    )
    for title, what in READS.items():
        found = table(results, savers, lambda found, what=what: figure(found["read"][what]["p50_ms"]))
        lines += _titled(f"Reading {title}, in ms, median.", found)
    return [
        *lines,
        *_titled(
            "Listing the whole thread that was put to last, in ms, without a look at values.",
            table(results, savers, lambda found: figure(found["history"]["list_ms"])),
        ),
        *_titled(
            "Its ids, parents and metadata alone, in ms, median: by `DeltaSaver.history`; the others have nothing but\n"
            "`list`.",
            table(results, [PRODUCT], lambda found: figure(found["history"]["metadata"]["p50_ms"])),
        ),
    ]


def graphs(results: Results) -> list[str]:
    """Return the tables of the compiled graph."""
    savers = compared(results)
    return [
        *_titled(
            "An invocation, in ms: median, and in brackets the 10th and 90th percentile.",
            table(results, savers, lambda found: _spread(found["graph"]["calls"]["invoke"])),
        ),
        *_titled(
            "A put within, in ms, the same.",
            table(results, savers, lambda found: _spread(found["graph"]["calls"]["put"])),
        ),
        *_titled("All invocations, in s.", table(results, savers, lambda found: figure(found["graph"]["total_s"]))),
    ]


def answers(results: Results) -> list[str]:
    """Return the table of what differs from the reference."""
    savers = [name for name in compared(results) if name != REFERENCE]

    def differing(found: dict[str, Any]) -> str:
        return ", ".join(f"{part}: {count:,}" for part, count in sorted(found["differing"].items())) or "none"

    return table(results, savers, differing)


def failures(results: Results) -> list[str]:
    """Return a line for each phase that has no figures."""
    lines = [
        f"- {name}, {SAVERS[saver].label}, {phase}: {error}"
        for name, result in results.items()
        for saver, found in result["savers"].items()
        for phase, error in found["errors"].items()
    ]
    return [*lines, ""] if lines else []


def _titled(title: str, lines: list[str]) -> list[str]:
    return [*title.split("\n"), "", *lines] if lines else []


def _spread(summary: dict[str, float]) -> str:
    return f"{figure(summary['p50_ms'])} ({figure(summary['p10_ms'])} to {figure(summary['p90_ms'])})"


def _extremes(summary: dict[str, float]) -> str:
    return f"{figure(summary['p50_ms'])} ({figure(summary['least_ms'])} to {figure(summary['most_ms'])})"


def _total(write: dict[str, Any]) -> str:
    totals = write.get("totals_s", [])
    spread = f" ({figure(min(totals))} to {figure(max(totals))})" if len(totals) > 1 else ""
    return figure(write["total_s"]) + spread
