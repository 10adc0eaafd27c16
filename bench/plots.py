"""Draw docs/plots/ from the committed results: the same results give the same bytes, with one release of matplotlib.

The page needs no matplotlib to know which plots there are.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.agent_savers import WAYS
from bench.savers import SAVERS
from bench.tables import Results

DIRECTORY = Path(__file__).parents[1] / "docs" / "plots"
SHOWN = ("chat500", "agent50", "edit200")
"""Workloads that have a panel, where they are measured: those with one thread."""
COLOURS = {
    "deltastore": "#c0392b",
    "deltastore_postgres": "#17a2a2",
    "sqlite": "#2c6fbb",
    "postgres": "#3b8132",
    "lmdb": "#8e5ea2",
    "objectstorage": "#c98a1b",
    "inmemory": "#7f7f7f",
    "json": "#7f7f7f",
}
PANEL_INCHES, LEGEND_INCHES = (3.6, 3.0), 1.5
SALT = "deltastore"
"""In place of a random one, from which matplotlib makes the ids in an SVG."""

Panels = dict[str, Callable[[Any], None]]
"""What draws on each panel's axes, by the panel's title."""


def growth(results: Results) -> Panels:
    return _curves(results, "growth_bytes", "MB stored", 1e-6)


def latency(results: Results) -> Panels:
    return _curves(results, "put_curve_ms", "ms a put of messages", 1.0)


def frequency(found: dict[str, Any]) -> Panels:
    """Return the panels of bench.frequency: bytes, and reads, by the frequency."""
    workloads = found.get("workloads", {})

    def panel(label: str, value: Callable[[dict[str, Any]], float]) -> Callable[[Any], None]:
        def draw(axes: Any) -> None:
            for name, each in workloads.items():
                points = [(int(every), value(row)) for every, row in each["frequencies"].items()]
                axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name)
            frequencies = sorted({int(every) for each in workloads.values() for every in each["frequencies"]})
            axes.set(xscale="log", xlabel="snapshot_frequency", ylabel=label)
            axes.set_xticks(frequencies, [str(every) for every in frequencies])
            axes.minorticks_off()
            axes.set_ylim(bottom=0)

        return draw

    if not workloads:
        return {}
    return {
        "size": panel("MB stored", lambda row: row["stored_bytes"] / 1e6),
        "reading any checkpoint": panel("ms", lambda row: row["historic"]["p50_ms"]),
    }


def agents(found: dict[str, Any]) -> Panels:
    """Return the panels of bench.agent_rounds: bytes by rounds, for each policy."""
    panels = {}
    for policy, ways in found.get("policies", {}).items():
        curves = {way: each["growth_bytes"] for way, each in ways.items()}
        panels[policy] = _lines(curves, {way: WAYS[way].label for way in ways}, "rounds", "MB stored", 1e-6)
    return panels


def _curves(results: Results, key: str, label: str, scale: float) -> Panels:
    """Return a panel for each shown workload of which there are curves, with one of each saver."""
    labels = {saver: contender.label for saver, contender in SAVERS.items()}
    panels = {}
    for name in SHOWN:
        savers = results.get(name, {}).get("savers", {})
        curves = {saver: savers[saver].get("write", {}).get(key) for saver in SAVERS if saver in savers}
        if curves := {saver: points for saver, points in curves.items() if points}:
            panels[name] = _lines(curves, labels, "puts", label, scale)
    return panels


def _lines(
    curves: dict[str, list[tuple[int, float]]], labels: dict[str, str], along: str, label: str, scale: float
) -> Callable[[Any], None]:
    """Return what draws a curve for each name."""

    def draw(axes: Any) -> None:
        for name, points in curves.items():
            places, values = zip(*points, strict=True)
            axes.plot(places, [value * scale for value in values], color=COLOURS[name], label=labels[name])
        axes.set(yscale="log", xlabel=along, ylabel=label)

    return draw


def draw_all(plots: dict[str, Panels]) -> None:
    """Write docs/plots/NAME.svg of each plot that has panels, and remove that of any other."""
    DIRECTORY.mkdir(exist_ok=True)
    for name, panels in plots.items():
        path = DIRECTORY / f"{name}.svg"
        if panels:
            path.write_text(draw(panels))
        else:
            path.unlink(missing_ok=True)


def draw(panels: Panels) -> str:
    """Return the SVG of panels side by side. Needs matplotlib, of the extra `bench`."""
    import io

    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": SALT, "svg.fonttype": "none", "font.size": 9}):
        width, height = PANEL_INCHES
        drawing = Figure(figsize=(width * len(panels) + LEGEND_INCHES, height), layout="constrained")
        all_axes = drawing.subplots(1, len(panels), squeeze=False)[0]
        for axes, (title, draw_on) in zip(all_axes, panels.items(), strict=True):
            draw_on(axes)
            axes.set_title(title)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.3)
        drawing.legend(*all_axes[0].get_legend_handles_labels(), loc="outside right upper", frameon=False)
        out = io.StringIO()
        # no date and no release, so that a plot changes when its figures do
        drawing.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"
