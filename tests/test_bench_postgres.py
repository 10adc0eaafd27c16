"""The bench on PostgreSQL, shortened: what it compares is right, and what the page makes of it."""

import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("langgraph.checkpoint.postgres.aio", reason="LangGraph's PostgresSaver isn't installed")

from bench import compare, report, sections
from bench import postgres as bench
from bench.apart import Limits, preload
from bench.savers import ON_POSTGRES, PRODUCT, REFERENCE
from tests.postgres_server import PostgresServer

LIMITS = Limits(seconds=120, rss_gib=4)


def test_both_savers_are_measured_and_ours_is_right(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preload("bench.far", "tests.workers")
    monkeypatch.setattr(bench, "COUNTS", (1, 64))
    monkeypatch.setattr(bench, "CALLS", 2)
    monkeypatch.setattr(bench, "CHAT_TURNS", 5)
    monkeypatch.setattr(sections, "RESULTS", tmp_path)
    databases = bench.Databases(postgres.url)
    found = {
        "together": bench.together(databases, rounds=1, puts=64 * 10),
        "taken": bench.taken(databases, 64),
        "afar": bench.from_afar(databases, urlsplit(postgres.url).port or 0),
    }
    compared = compare.compare("short", 1, [PRODUCT, ON_POSTGRES, bench.PEER, REFERENCE], 1, None, LIMITS)
    assert compared["savers"][ON_POSTGRES]["differing"] == {}
    assert all(figure > 0 for figure in found["taken"][ON_POSTGRES].values())
    later = found["afar"]["1 ms"][ON_POSTGRES]
    assert all(each["least_ms"] >= 1 for each in later.values())
    about = {"machine": {"python": "any"}, "versions": {}, "command": "a test"}
    (tmp_path / "postgres.json").write_text(json.dumps(found | about))
    (tmp_path / "short.json").write_text(json.dumps(compared | about))
    page = report.page()
    assert "## On PostgreSQL" in page
    assert "| short | checkpoints that differ from InMemorySaver's | none |  |  |" in page
