"""Docs say what is so: generated pages are fresh, and links lead somewhere."""

import re
from pathlib import Path

import pytest

from bench import report, sections

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


def test_the_page_on_scaling_quotes_the_committed_results() -> None:
    page = " ".join((ROOT / "docs" / "scaling.md").read_text().split())
    page = page.replace("\N{MULTIPLICATION SIGN}", "x")
    result = sections.load("postgres")
    ours, theirs = (result["taken"][name] for name in ("deltastore_postgres", "postgres"))
    threads, tasks = (result["together"][way]["deltastore_postgres"]["64"]["median"] for way in ("threads", "tasks"))
    quoted = [
        f"| processor of the client, ms | {ours['client_ms']:.2f} | {theirs['client_ms']:.2f} |",
        f"| processor of the server, ms | {ours['server_ms']:.2f} | {theirs['server_ms']:.2f} |",
        f"| log of the server, bytes | {ours['log_bytes']:,} | {theirs['log_bytes']:,} |",
        f"| tables with indexes, bytes | {ours['table_bytes']:,} | {theirs['table_bytes']:,} |",
        f"some {round(threads, -1):,.0f} puts a second with threads, {round(tasks, -2):,.0f} with tasks",
        f"10 M threads x 10 puts x {ours['table_bytes']:,} bytes | {ours['table_bytes'] / 10:g} GB |",
        f"x {theirs['table_bytes']:,} bytes | {theirs['table_bytes'] / 10:g} GB |",
        f"10,000 puts x {ours['server_ms']:.2f} ms | {ours['server_ms'] * 10:.0f} cores |",
        f"10,000 puts x {ours['client_ms']:.2f} ms | {ours['client_ms'] * 10:.0f} cores |",
    ]
    assert [each for each in quoted if each not in page] == []


def test_the_guide_to_agents_quotes_the_committed_results() -> None:
    guide = " ".join((ROOT / "docs" / "agent.md").read_text().split())
    resume, kills, rounds = (sections.load(f"agent_{name}") for name in ("resume", "kills", "rounds"))
    saved = {prompt: each["saved"] for prompt, each in resume["rounds"].items()}
    identical = sum(each["identical"] for each in resume["rounds"].values())
    points = sum(each["kill_points"] for each in resume["rounds"].values())
    long = {what: f"{each['p50_ms']:.0f}" for what, each in resume["long"]["ms"].items()}
    count, blind = kills["counts"]["look up"], kills["counts"]["make again"]
    largest, all_ = (
        {
            policy: {way: f"{each[key] / unit:.{digits}f}" for way, each in ways.items()}
            for policy, ways in rounds["policies"].items()
        }
        for key, unit, digits in (("largest_bytes", 1e3, 0), ("stored_bytes", 1e6, 1))
    )
    each_round, third, tools = (largest[policy] for policy in ("every round", "every third", "after tools"))
    sums, most = all_["every round"], all_["after tools"]
    quoted = [
        f"{identical} of {points} resumes end as a run that nobody killed",
        f"{saved['the conversation']['median']:.0%} are saved in the median where each prompt is the whole",
        f"{saved['the last message']['median']:.0%} where it is the last message",
        f"The least is {saved['the conversation']['least']:.0%},",
        f"{long['next step']} ms in the median, of which the processor was busy for {long['processor']}.",
        f"{kills['points']} runs, {count['kills']} random kills, {count['effects']:,} effects",
        f"{count['completed']} calls were completed when a kill came",
        f"{count['in doubt, done']} look-ups found the effect",
        f"left {blind['twice']} effects twice",
        f"{each_round['deltastore']} KB with a checkpoint after every round, {third['deltastore']} after every third,",
        f"{tools['deltastore']} after each tool's result",
        f"SqliteSaver adds {each_round['sqlite']}, JSON files {each_round['json']}.",
        f"All is {sums['deltastore']} MB, where they take {sums['sqlite']} and {sums['json']},",
        f"and {most['deltastore']} with a checkpoint after each tool's result,",
        f"where they take {most['sqlite']} and {most['json']}.",
    ]
    assert [each for each in quoted if each not in guide] == []
