"""The comparison of bench/, shortened: its phases, what its limits end, and what the page and plots make of results."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import compare, plots, report, sections, tables
from bench.apart import Limits, call_apart, preload
from bench.recording import PUT_OF_MESSAGES
from bench.savers import PRODUCT, REFERENCE, SAVERS

LIMITS = Limits(seconds=120, rss_gib=4)
MEASURED = [PRODUCT, "sqlite", REFERENCE]
WORKLOAD = "agent50_delta"
"""Has all there is: parallel writes, other channels than messages, and a DeltaChannel."""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What a run finds, as it comes back from its file."""
    preload("tests.workers")  # which other tests want, whose processes come from the same server
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare, "RESUMES", 1)
        result = compare.compare(WORKLOAD, 4, MEASURED, 1, None, LIMITS)
    return json.loads(json.dumps(result | {"machine": {"python": "any"}, "versions": {}, "command": "a test"}))


def test_every_phase_has_figures_and_nothing_differs(found: dict[str, Any]) -> None:
    puts = found["recorded"]["put"]
    for name in MEASURED:
        each = found["savers"][name]
        assert each["errors"] == {}
        assert each["differing"] == {}
        write = each["write"]
        assert write["stored_bytes"] > 0
        assert write["peak_bytes"] > 0
        assert write["totals_s"] == [write["total_s"]]
        assert {"put", "put_writes", "get_tuple", "get_delta_channel_history", PUT_OF_MESSAGES} == write["calls"].keys()
        assert write["calls"]["put"]["n"] == puts
        assert [place for place, _ in write["growth_bytes"]][-1] == puts
        assert len(write["put_curve_ms"]) > 10
        assert ("resume" in each) == SAVERS[name].persistent
        assert each["read"].keys() == {"latest", "historic", "list of 10"}
        assert each["history"]["n"] == puts
        assert ("metadata" in each["history"]) == (name == PRODUCT)
        assert each["graph"]["calls"]["invoke"]["n"] == 4
        assert each["graph"]["calls"]["put"]["n"] == puts


def test_of_several_writes_the_median_counts_with_the_bytes_of_the_last() -> None:
    runs = [{"total_s": total, "stored_bytes": int(total)} for total in (5.0, 1.0)]
    found = compare.median_of([*runs, None], {"total_s": 3.0, "stored_bytes": 7})
    assert found == {"total_s": 3.0, "totals_s": [5.0, 1.0, 3.0], "stored_bytes": 7}


def test_a_wrong_answer_is_counted() -> None:
    def saver(values: str, listed: str, state: str) -> dict[str, Any]:
        verified = {"t||1": {"values": values}, "t||2": {"values": "same"}}
        return {"errors": {}, "verify": verified, "history": {"listed": listed}, "graph": {"states": [state, "same"]}}

    savers = {REFERENCE: saver("right", "both", "right"), PRODUCT: saver("wrong", "one", "wrong")}
    compare.replace_digests(savers)
    assert savers[PRODUCT]["differing"] == {"values": 1, "list": 1, "graph state": 1}
    assert savers[REFERENCE]["differing"] == {}


def test_what_was_not_verified_counts_as_no_answer() -> None:
    savers: dict[str, Any] = {
        REFERENCE: {"errors": {}, "verify": {}},
        PRODUCT: {"errors": {"write": "ended after 1 s"}},
    }
    compare.replace_digests(savers)
    assert "differing" not in savers[PRODUCT]
    savers = {PRODUCT: {"errors": {}, "verify": {}}}
    compare.replace_digests(savers)
    assert savers[PRODUCT] == {"errors": {"verify": "nothing to compare with"}}


def sleep_long() -> Iterator[tuple[str, int]]:
    yield "before", 1
    time.sleep(60)


def take_memory() -> Iterator[tuple[str, int]]:
    held = bytearray(b"x") * (600 << 20)
    time.sleep(60)
    yield "after", len(held)


def fail() -> Iterator[tuple[str, int]]:
    yield "before", 1
    raise ValueError("not today")


@pytest.mark.parametrize(
    ("call", "limits", "expected"),
    [
        (sleep_long, Limits(5, 4), {"before": 1, "error": "ended after 5 s"}),
        (take_memory, Limits(60, 0.5), {"error": "ended at 0.5 GiB of memory"}),
        (fail, LIMITS, {"before": 1, "error": "ValueError: not today"}),
    ],
)
def test_a_process_that_takes_too_much_or_fails_says_so(
    call: Any, limits: Limits, expected: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    assert call_apart(call, limits=limits) == expected


def test_the_page_is_made_of_what_is_there(
    found: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sections, "RESULTS", tmp_path)
    found["savers"]["sqlite"]["errors"]["graph"] = "ended after 1 s"
    found["savers"]["postgres"] = {"errors": {"write": "ended at 1 GiB of memory"}}
    (tmp_path / f"{WORKLOAD}.json").write_text(json.dumps(found))
    page = report.page()
    headings = [line for line in page.splitlines() if line.startswith("## ")]
    assert headings == ["## Size", "## Writes", "## Reads", "## Through the graph", "## Right answers"]
    assert f"- {WORKLOAD}, SqliteSaver, graph: ended after 1 s" in page
    assert f"- {WORKLOAD}, PostgresSaver, write: ended at 1 GiB of memory" in page
    assert f"| {WORKLOAD} | none | none |  |" in page
    assert "    a test" in page


def test_plots_are_the_same_bytes_each_time(found: dict[str, Any]) -> None:
    pytest.importorskip("matplotlib")
    results: tables.Results = {"chat500": found, "agent50": found}
    for panels in (plots.growth(results), plots.latency(results)):
        assert panels.keys() == {"chat500", "agent50"}
        assert plots.draw(panels) == plots.draw(panels)
