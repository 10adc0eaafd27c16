"""Write docs/benchmarks.md and docs/plots/ from the committed results; what isn't measured is left out.

python -m bench.report            writes the page, and the plots where there is matplotlib
python -m bench.report --check    fails where the page isn't what the results say
"""

import argparse
import importlib.util
import sys
import textwrap
from pathlib import Path

from bench import agent_sections, plots, sections, tables
from bench.savers import SAVERS
from bench.tables import WIDTH, Results

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
WORKLOADS = {
    "chat500": "a conversation, 16 KB of new text a turn, add_messages",
    "agent50": "an agent with parallel tools, a plan, a scratchpad and 60 KB of documents",
    "edit200": "small edits of a 200 KB nested value",
    "research": "LangChain's workload A with words as payload, a coding and search agent",
    "many": "threads of 5 checkpoints",
    "short": "threads of 10 turns, two messages of 300 characters each",
    "transcripts": "real runs of τ-bench's airline agent with gpt-4o",
    "chat500_delta": "chat500 with DeltaChannel, a snapshot every 50 updates",
    "agent50_delta": "agent50 with DeltaChannel for the messages",
    "research_delta": "research with DeltaChannel, a snapshot every 50 updates",
}
INTRODUCTION = """\
# Benchmarks

Made by `tools/bench` from `bench/results/`; each result names machine, versions, seed and command. Recorded calls of
real LangGraph runs are replayed on each saver in a process of its own, one after the other, with default settings.
Times of one run compare with each other and with nothing else: the machine had other work.
"""
SIZES = """\
## Size

All checkpoints and all pending writes: the blocks of the saver's whole directory after closing, for PostgresSaver the
tables with their indexes, without the write-ahead log. A turn of a workload of many threads is a thread.
"""
ANSWERS = """\
## Right answers

Every checkpoint is read after reopening and compared with InMemorySaver's, in values, frame, metadata, parent and
writes, the orders of keys and of writes included; of graphs with DeltaChannels some states are rebuilt. The table
counts the checkpoints in which a part differs. With DeltaChannels, a saver that stores whole checkpoints doesn't repeat
a snapshot in later ones: a difference in values is harmless there as long as no rebuilt state differs.
"""


def page() -> str:
    """Return the page."""
    results = comparisons()
    drawn = plots_of(results)
    costs, frequency, opening, importing = (
        sections.load(name) for name in ("costs", "frequency", "opening", "importing")
    )
    lines = [*INTRODUCTION.split("\n"), *_durability(results), *SIZES.split("\n"), *tables.sizes(results, WORKLOADS)]
    lines += _plot(drawn, "growth", "Bytes stored, by the number of puts")
    lines += _section("## Writes", [*tables.writes(results), *_plot(drawn, "latency", "How long a put takes, by puts")])
    lines += _section("## Reads", tables.reads(results))
    lines += _section("## Through the graph", tables.graphs(results))
    lines += [*ANSWERS.split("\n"), *tables.answers(results)]
    lines += _section("What has no figures:", tables.failures(results))
    if costs:
        lines += sections.costs(costs)
    lines += sections.compacted(WORKLOADS) + sections.commits()
    if frequency:
        lines += [*sections.frequency(frequency), *_plot(drawn, "frequency", "Size and reads by snapshot_frequency")]
    if opening:
        lines += sections.opening(opening)
    if importing:
        lines += sections.importing(importing)
    lines += agent_sections.resumed() + agent_sections.killed() + agent_sections.saved()
    lines += _plot(drawn, "agents", "Bytes stored, by the number of rounds")
    return "\n".join([*lines, *sections.provenance(list(results))])


def comparisons() -> Results:
    """Return the results of bench.compare, by workload."""
    found = {name: sections.load(name) for name in WORKLOADS}
    return {name: result for name, result in found.items() if result}


def plots_of(results: Results) -> dict[str, plots.Panels]:
    """Return all plots, those without panels too."""
    return {
        "growth": plots.growth(results),
        "latency": plots.latency(results),
        "frequency": plots.frequency(sections.load("frequency")),
        "agents": plots.agents(sections.load("agent_rounds")),
    }


def _durability(results: Results) -> list[str]:
    savers = "; ".join(f"{SAVERS[name].label}, {SAVERS[name].survives}" for name in tables.compared(results))
    return [*textwrap.wrap(f"What a put that returned has survived: {savers}.", WIDTH), ""]


def _section(heading: str, lines: list[str]) -> list[str]:
    return [heading, "", *lines] if lines else []


def _plot(drawn: dict[str, plots.Panels], name: str, title: str) -> list[str]:
    return [f"![{title}](plots/{name}.svg)", ""] if drawn[name] else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the page is stale")
    text = page()
    if not parser.parse_args().check:
        PAGE.write_text(text)
        if importlib.util.find_spec("matplotlib"):
            plots.draw_all(plots_of(comparisons()))
        return 0
    if PAGE.exists() and PAGE.read_text() == text:
        return 0
    print(f"{PAGE.relative_to(ROOT)} is stale: run python -m bench.report", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
