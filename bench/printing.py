"""What a comparison prints while it runs."""

from typing import Any

from bench.timing import PERCENTILES

COLUMNS = [*PERCENTILES, "start_p50", "end_p50"]


def print_heading(machine: dict[str, str], versions: dict[str, str]) -> None:
    print("machine    " + ", ".join(machine.values()))
    print("versions   " + ", ".join(f"{name} {version}" for name, version in versions.items()))


def print_saver(name: str, found: dict[str, Any]) -> None:
    """Print what each phase of one saver found."""
    print(f"\n{name}")
    for phase, error in found["errors"].items():
        print(f"  {phase}: {error}")
    if write := found.get("write"):
        memory, totals = write["peak_bytes"] / 1e6, ", ".join(f"{total:g}" for total in write["totals_s"])
        print(
            f"  {write['stored_bytes']:,} bytes stored; all calls {totals} s; {memory:,.0f} MB more memory at the peak"
        )
        _print_calls("write", write["calls"])
    for what, spread in found.get("resume", {}).items():
        print(f"  {what:<29}{spread['p50_ms']:>11.3f} ms ({spread['least_ms']:g} to {spread['most_ms']:g})")
    if "read" in found:
        _print_calls("read", found["read"])
    if history := found.get("history"):
        metadata = f", without values {history['metadata']['p50_ms']:,.3f} ms" if "metadata" in history else ""
        print(f"  a thread of {history['n']:,} checkpoints listed in {history['list_ms']:,.3f} ms{metadata}")
    if "graph" in found:
        print(f"  {found['graph']['total_s']:g} s for all invocations of the graph")
        _print_calls("graph", found["graph"]["calls"])


def _print_calls(phase: str, calls: dict[str, dict[str, Any]]) -> None:
    print(f"  {phase + ', ms':<29}{'calls':>7}" + "".join(f"{column:>11}" for column in COLUMNS))
    for method, summary in calls.items():
        figures = "".join(f"{summary[f'{column}_ms']:>11.3f}" for column in COLUMNS)
        print(f"  {method:<29}{summary['n']:>7,}{figures}")
