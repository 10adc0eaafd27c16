"""The part of docs/benchmarks.md on PostgreSQL."""

from collections.abc import Callable, Iterator
from typing import Any

from bench.markdown import spread, table, text
from bench.recording import PUT_OF_MESSAGES
from bench.savers import ON_POSTGRES, SAVERS
from bench.sections import load
from bench.tables import figure

PEER = "postgres"
WORKLOADS = ("chat500", "short")
RATES = ("median", "least", "most")
RECORDED = """
deltastore and PostgresSaver on a PostgreSQL server as it is installed, a new one for each: recorded calls of real
graphs one by one, and the graph itself. Bytes are the tables' with indexes and TOAST. Times in ms are medians.
"""
TOGETHER = """
Puts per second, durable on return, one after the other and 64 at the same time, each with a conversation: threads with
the synchronous savers, tasks with the asynchronous ones, threads with longer conversations, of 40 messages of 500
characters before, and threads in conversations like chat500's, after 100 turns. LangGraph's have a pool of 16
connections. Median, least and most of the rounds.
"""
TAKEN = """
What a put takes where 64 threads put: ms of the processor, in the client and in all of the server's processes; bytes of
the server's log, and of its tables.
"""
AFAR = """
Single calls on a conversation of 400 messages, through a proxy whose answers come as much later as is said: what a trip
to the server costs. A new handle was connected before. Median, least and most, in ms.
"""
Cell = Callable[[dict[str, Any]], float]
FIGURES: dict[str, Cell] = {
    "bytes, MB": lambda found: found["write"]["stored_bytes"] / 1e6,
    "put of messages, at the end": lambda found: found["write"]["calls"][PUT_OF_MESSAGES]["end_p50_ms"],
    "the latest checkpoint": lambda found: found["read"]["latest"]["p50_ms"],
    "the same, fresh process, opening included": lambda found: found["resume"]["open and read"]["p50_ms"],
    "any checkpoint": lambda found: found["read"]["historic"]["p50_ms"],
    "a list of 10": lambda found: found["read"]["list of 10"]["p50_ms"],
    "all recorded calls, s": lambda found: found["write"]["total_s"],
    "through the graph, s": lambda found: found["graph"]["total_s"],
}


def on_postgres() -> list[str]:
    """Return the part; no lines where there is no result."""
    result = load("postgres")
    if not result:
        return []
    both = {name: found["savers"] for name in WORKLOADS if (found := load(name)) and ON_POSTGRES in found["savers"]}
    labels = {name: SAVERS[name].label for name in (ON_POSTGRES, PEER)}
    compared = [row for workload, savers in both.items() for row in _compared(workload, savers)]
    together = [
        (
            way,
            labels[name],
            *(spread(by_count[count], RATES) for count in ("1", "64")),
            _times(by_count, by_saver[PEER]),
        )
        for way, by_saver in result["together"].items()
        for name, by_count in by_saver.items()
    ]
    taken = [(labels[name], *map(figure, each.values())) for name, each in result["taken"].items()]
    afar = [
        (later, labels[name], *map(spread, by_call.values()))
        for later, by_saver in result["afar"].items()
        for name, by_call in by_saver.items()
    ]
    return [
        "## On PostgreSQL",
        "",
        *text(RECORDED),
        *table(("workload", "", *labels.values(), "ratio"), compared, texts=2),
        *text(TOGETHER),
        *table(("as", "saver", "one", "64", "64, times PostgresSaver's"), together, texts=2),
        *text(TAKEN),
        *table(("saver", "client, ms", "server, ms", "log", "tables"), taken),
        *text(AFAR),
        *table(("answers later by", "saver", "put", "latest", "latest, new handle"), afar, texts=2),
    ]


def _compared(workload: str, savers: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    ours, theirs = savers[ON_POSTGRES], savers[PEER]
    for what, cell in FIGURES.items():
        mine, other = cell(ours), cell(theirs)
        yield workload, what, figure(mine), figure(other), _ratio(mine, other)
    differing = sum((ours.get("differing") or {}).values())
    yield workload, "checkpoints that differ from InMemorySaver's", f"{differing or 'none'}", "", ""


def _times(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    return figure(ours["64"]["median"] / theirs["64"]["median"])


def _ratio(ours: float, theirs: float) -> str:
    return f"1/{figure(theirs / ours)}" if theirs >= ours else figure(ours / theirs)
