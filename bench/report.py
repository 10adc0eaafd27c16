"""Write docs/benchmarks.md from the committed results.

python -m bench.report            writes the page
python -m bench.report --check    fails where the page isn't what the results say
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
WORKLOADS = {
    "chat500": "a conversation of 500 turns, 16 KB of new text each, add_messages",
    "agent50": "an agent with parallel tools, a plan, a scratchpad and 60 KB of documents",
    "edit200": "small edits of a 200 KB nested value",
    "research": "LangChain's workload A with words as payload, 100 turns of a coding and search agent",
    "many": "2,000 threads of 5 checkpoints",
    "chat500_delta": "chat500 with DeltaChannel, a snapshot every 50 updates",
    "agent50_delta": "agent50 with DeltaChannel for the messages",
    "research_delta": "research with DeltaChannel, a snapshot every 50 updates",
}
COMPACTED = {
    "chat500": WORKLOADS["chat500"],
    "agent50": WORKLOADS["agent50"],
    "edit200": WORKLOADS["edit200"],
    "many": WORKLOADS["many"],
    "short": "200 threads of 10 turns, two messages of 300 characters each",
    "transcripts": "200 real runs of τ-bench's airline agent with gpt-4o, 5,308 messages",
}
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
PRODUCT, PEER, REFERENCE = "deltastore", "sqlite", "inmemory"
PUT_OF_MESSAGES = "put of messages"
INTRODUCTION = """\
# Benchmarks

Made by `python -m bench.report` from `bench/results/`; each result names machine, versions, seed and command. Recorded
calls of real LangGraph runs are replayed on each saver in a process of its own, one after the other, with default
settings (both durable on return). Bytes are the blocks of the whole directory, with all checkpoints and all pending
writes. Times of one run compare with each other and with nothing else: the machine had other work.

| workload | checkpoints | deltastore, MB | SqliteSaver, MB | ratio | wrong checkpoints |
| --- | ---: | ---: | ---: | ---: | ---: |"""


def page() -> str:
    """Return the page."""
    results = {name: json.loads((RESULTS / f"{name}.json").read_text()) for name in WORKLOADS}
    lines = [INTRODUCTION]
    for name, summary in WORKLOADS.items():
        savers = results[name]["savers"]
        ours, theirs = savers[PRODUCT]["stored_bytes"], savers[PEER]["stored_bytes"]
        checkpoints, wrong = results[name]["recorded"]["put"], savers[PRODUCT]["differing"] or "none"
        lines.append(
            f"| **{name}**: {summary} | {checkpoints:,} | {ours / 1e6:.2f} | {theirs / 1e6:,.1f} "
            f"| 1/{theirs / ours:,.1f} | {wrong} |"
        )
    lines += [
        "",
        '"Wrong" counts checkpoints that differ from InMemorySaver\'s after reopening, in values, frame, metadata,',
        "parent or writes in their order.",
        "",
        "| workload | put, ms: deltastore | SqliteSaver | at the end: deltastore | SqliteSaver |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name in WORKLOADS:
        savers = results[name]["savers"]
        cells = [_spread(savers[saver], end) for end in (False, True) for saver in (PRODUCT, PEER)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", "Median, and in brackets the 10th and 90th percentile; the end is the last tenth of the calls.", ""]
    lines += [*reads(results), "", *compacted(), "", *commits(), ""]
    first = results["chat500"]
    machine, versions = first["machine"], first["versions"]
    lines += [
        f"Machine: {machine['system']}, {machine['processor']}, {machine['memory']}, {machine['python']}.",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + ".",
        "",
        "Commands:",
        "",
        *(f"    {result['command']}" for result in (*results.values(), _compaction(), _commits())),
        "",
    ]
    return "\n".join(lines)


def reads(results: dict[str, Any]) -> list[str]:
    """Return the part on reads, and on the puts that change a conversation, beside both peers."""
    lines = [
        "## Puts of messages, and reads",
        "",
        "Medians in milliseconds, deltastore / SqliteSaver / InMemorySaver: the puts of the last tenth that change the",
        "messages, or all of it where none does; the latest checkpoint, random ones, and the latest ten, of",
        "the finished store, in the process that wrote it. InMemorySaver keeps nothing.",
        "",
        "| workload | put of messages, at the end | all calls, s | latest | any checkpoint | list of 10 |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in WORKLOADS:
        found = [results[name]["savers"][saver] for saver in (PRODUCT, PEER, REFERENCE)]
        calls = [saver["calls"] for saver in found]
        cells = [
            [each.get(PUT_OF_MESSAGES, each["put"])["end_p50_ms"] for each in calls],
            [sum(series["total_s"] for what, series in each.items() if what != PUT_OF_MESSAGES) for each in calls],
            *([saver["reads"][what]["p50_ms"] for saver in found] for what in ("latest", "historic", "list of 10")),
        ]
        lines.append(f"| {name} | {' | '.join(' / '.join(f'{figure:,.3g}' for figure in cell) for cell in cells)} |")
    return lines


def compacted() -> list[str]:
    """Return the part on what is left after compaction."""
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
    for name, summary in COMPACTED.items():
        found = _compaction()["workloads"][name]
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
        lines.append(f"| **{name}**: {summary} | {' | '.join(cells)} |")
    return lines


def commits() -> list[str]:
    """Return the part on writers that put at the same time."""
    found = _commits()["commits"]
    lines = [
        "## Shared commits",
        "",
        "Puts per second, durable on return, of one thread, and of 64 with a conversation each; median,",
        "least and most of the rounds. The second part makes each of deltastore's commits take 5 ms longer.",
        "",
        "| commits | saver | one thread | 64 threads | ratio | ratio to SqliteSaver |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for label, result in found.items():
        for saver in ("deltastore", "sqlite"):
            if not result[saver]:
                continue
            one, many = (result[saver][threads] for threads in ("1", "64"))
            cells = [f"{rates['median']:,.0f} ({rates['least']:,.0f} to {rates['most']:,.0f})" for rates in (one, many)]
            against = result.get("ratio_to_sqlite", "") if saver == PRODUCT else ""
            lines.append(
                f"| {label} | {saver} | {' | '.join(cells)} | {many['median'] / one['median']:.1f} | {against} |"
            )
    return lines


def _compaction() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / "compaction.json").read_text())
    return found


def _commits() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / "commits.json").read_text())
    return found


def _spread(saver: dict[str, Any], end: bool) -> str:
    put = saver["calls"]["put"]
    if end:
        return f"{put['end_p50_ms']:.1f}"
    return f"{put['p50_ms']:.1f} ({put['p10_ms']:.1f} to {put['p90_ms']:.1f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the page is stale")
    text = page()
    if not parser.parse_args().check:
        PAGE.write_text(text)
        return 0
    if PAGE.exists() and PAGE.read_text() == text:
        return 0
    print(f"{PAGE.relative_to(ROOT)} is stale: run python -m bench.report", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
