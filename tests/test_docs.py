"""Docs say what is so: generated pages are fresh, and links lead somewhere."""

import re
from pathlib import Path

import pytest

from bench import report

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def test_the_benchmark_page_is_what_the_results_say() -> None:
    assert report.PAGE.read_text() == report.page(), "run python -m bench.report"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    targets = [target for target in re.findall(r"\]\(([^)#]+)", page.read_text()) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_readme_quotes_the_committed_size() -> None:
    quoted = re.search(r"takes ([\d.]+) MB on disk", (ROOT / "README.md").read_text())
    assert quoted is not None
    assert f"| {quoted[1]} |" in report.PAGE.read_text()
