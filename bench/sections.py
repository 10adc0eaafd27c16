"""The parts of docs/benchmarks.md that come from one result each, and where everything was measured."""

import json
from typing import Any

from bench.machine import RESULTS
from bench.savers import PRODUCT
from bench.tables import figure

COMPACTED_COLUMNS = (
    "checkpoints",
    "live, MB",
    "compacted",
    "times the floor",
    "SqliteSaver",
    "ratio",
    "dictionary of content",
    "latest only, times its floor",
    "seconds",
    "wrong",
)
OTHERS = (
    "compaction",
    "commits",
    "frequency",
    "opening",
    "importing",
    "costs",
    "agent_resume",
    "agent_kills",
    "agent_rounds",
    "postgres",
)
"""Results that aren't of bench.compare."""


def load(name: str) -> dict[str, Any]:
    """Return a committed result; an empty one where there is none."""
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def compacted(summaries: dict[str, str]) -> list[str]:
    """Return the part on what is left after compaction."""
    result = load("compaction")
    if not result:
        return []
    lines = [
        "## After compaction",
        "",
        "`deltastore compact --shrink` with the full history. The floor is what `zstd -19 --long` makes of every",
        "distinct leaf of the state larger than 100 bytes, once: no ids, no metadata, no order. All checkpoints are",
        "read before and after.",
        "",
        f"| workload | {' | '.join(COMPACTED_COLUMNS)} |",
        f"| --- |{' ---: |' * len(COMPACTED_COLUMNS)}",
    ]
    for name, found in result["workloads"].items():
        ours, theirs, content = found["compacted_bytes"], found.get("peer_bytes"), found.get("content_bytes")
        cells = [
            f"{found['checkpoints']:,}",
            f"{found['live_bytes'] / 1e6:.2f}",
            f"{ours / 1e6:.2f}",
            f"{ours / found['floor_bytes']:.2f}",
            f"{theirs / 1e6:,.1f}" if theirs else "",
            f"1/{theirs / ours:,.1f}" if theirs else "",
            f"{content / 1e6:.2f}" if content else "",
            f"{found['latest_bytes'] / found['latest_floor_bytes']:.2f}",
            f"{found['compact_s']:.1f}",
            f"{found['differing'] or 'none'}",
        ]
        lines.append(f"| **{name}**: {summaries[name]} | {' | '.join(cells)} |")
    return [*lines, ""]


def commits() -> list[str]:
    """Return the part on writers that put at the same time."""
    result = load("commits")
    if not result:
        return []
    lines = [
        "## Shared commits",
        "",
        "Puts per second, durable on return, of one thread, and of 64 with a conversation each; median,",
        "least and most of the rounds. The second part makes each of deltastore's commits take 5 ms longer.",
        "",
        "| commits | saver | one thread | 64 threads | ratio | ratio to SqliteSaver |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for label, found in result["commits"].items():
        for saver in ("deltastore", "sqlite"):
            if not found[saver]:
                continue
            one, many = (found[saver][threads] for threads in ("1", "64"))
            cells = [f"{rates['median']:,.0f} ({rates['least']:,.0f} to {rates['most']:,.0f})" for rates in (one, many)]
            against = found.get("ratio_to_sqlite", "") if saver == PRODUCT else ""
            lines.append(
                f"| {label} | {saver} | {' | '.join(cells)} | {many['median'] / one['median']:.1f} | {against} |"
            )
    return [*lines, ""]


def frequency(result: dict[str, Any]) -> list[str]:
    """Return the part on anchors."""
    lines = [
        "## Anchors",
        "",
        "By `snapshot_frequency`: bytes, a put, and reading any checkpoint of a store that was just opened, without",
        "caches; medians.",
        "",
        "| workload | turns | frequency | MB | put, ms | any checkpoint, ms |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, found in result["workloads"].items():
        for every, each in found["frequencies"].items():
            size, put, read = each["stored_bytes"] / 1e6, each["put"]["p50_ms"], each["historic"]["p50_ms"]
            lines.append(f"| {name} | {found['turns']} | {every} | {size:.2f} | {figure(put)} | {figure(read)} |")
    return [*lines, ""]


def opening(result: dict[str, Any]) -> list[str]:
    """Return the part on opening."""
    lines = [
        "## Opening",
        "",
        "By the number of checkpoints in the store: opening it, and reading the state of a thread of a thousand",
        "checkpoints as well. Each by fresh processes, whose imports aren't counted; median, least and most.",
        "",
        "| checkpoints | MB | open, ms | open and read, ms |",
        "| ---: | ---: | ---: | ---: |",
    ]
    for each in result["sizes"]:
        cells = [
            f"{figure(found['p50_ms'])} ({figure(found['least_ms'])} to {figure(found['most_ms'])})"
            for found in (each["open"], each["open and read"])
        ]
        lines.append(f"| {each['checkpoints']:,} | {each['stored_bytes'] / 1e6:.1f} | {' | '.join(cells)} |")
    return [*lines, ""]


def costs(result: dict[str, Any]) -> list[str]:
    """Return the part on what puts are made of."""
    parts, floors = next(iter(result["workloads"].values())).values()
    columns = [*(part for part in parts if part != "all"), "**all**", *floors]
    lines = [
        "## What a put is made of",
        "",
        "Puts that change messages, at the end of a workload, in ms, medians, timed in place; and the least that a put",
        "could be: its new messages serialised by LangGraph's serializer, and three small rows committed by LMDB with",
        "its two flushes, and with the one that deltastore needs for few rows; and SqliteSaver's put of the same.",
        "",
        f"| workload | {' | '.join(columns)} |",
        f"| --- |{' ---: |' * len(columns)}",
    ]
    for name, each in result["workloads"].items():
        figures = each["parts_ms"] | {"**all**": each["parts_ms"]["all"]} | each["floors_ms"]
        lines.append(f"| {name} | {' | '.join(figure(figures[column]) for column in columns)} |")
    return [*lines, ""]


def importing(result: dict[str, Any]) -> list[str]:
    """Return the part on imports."""
    found = result["milliseconds"]
    cells = [
        f"{figure(each['median'])} ({figure(each['least'])})"
        for each in (found["with"]["langgraph"], *(found["with"][what] for what in ("import", "open", "first steps")))
    ]
    return [
        "## Importing",
        "",
        "What a fresh process spends, in ms, median and least: LangGraph's own imports; then deltastore's; opening a",
        "new store; a first put, its writes, a read and a list. Compiled modules are there.",
        "",
        "| LangGraph | `deltastore.langgraph` | open | first steps |",
        "| ---: | ---: | ---: | ---: |",
        f"| {' | '.join(cells)} |",
        "",
    ]


def provenance(workloads: list[str]) -> list[str]:
    """Return where all was measured, with what, and by which commands."""
    results = [result for name in (*workloads, *OTHERS) if (result := load(name))]
    machines = dict.fromkeys(", ".join(result["machine"].values()) for result in results)
    versions = dict.fromkeys(f"{name} {version}" for each in results for name, version in each["versions"].items())
    return [
        f"Machine: {'; '.join(machines)}.",
        f"Versions: {', '.join(sorted(versions))}.",
        "",
        "Commands:",
        "",
        *(f"    {result['command']}" for result in results),
        "",
    ]
