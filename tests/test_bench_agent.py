"""The benches of agents' runs, shortened: what they count is right, and what the page makes of it."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from bench import agent_kills, agent_resume, agent_rounds, plots, report, sections
from bench.agent_kills import LOOK, RETRY, WRONG, Kill
from bench.agent_savers import POLICIES, WAYS
from bench.apart import preload
from tests.conftest import MACHINE_STEPS

KILLS = {"quick": 6, "ci": 200, "deep": 2_000}
"""Runs that are killed, by profile."""
ROUNDS = 4


@pytest.fixture(scope="module", autouse=True)
def fresh_processes() -> None:
    preload("tests.workers", "deltastore.agent")  # the first is what other tests want of the same server


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the page finds results."""
    monkeypatch.setattr(sections, "RESULTS", tmp_path)
    return tmp_path


def put(folder: Path, name: str, found: dict[str, Any]) -> None:
    about = {"machine": {"python": "any"}, "versions": {}, "command": "a test"}
    (folder / f"{name}.json").write_text(json.dumps(found | about))


def test_a_resumed_run_ends_as_one_that_was_not_killed(results: Path) -> None:
    found = agent_resume.measure(every=4, steps=12, processes=2)
    for each in found["rounds"].values():
        assert each["kill_points"] >= 5
        assert each["identical"] == each["kill_points"]
        assert 0 < each["saved"]["least"] <= each["saved"]["median"] <= each["saved"]["most"] == 1
    assert found["long"]["ms"].keys() == {"open", "restored", "next step", "processor"}
    put(results, "agent_resume", found)
    page = report.page()
    assert "## Agents killed and resumed" in page
    assert "| the conversation | " in page
    assert "| 12 | " in page


def test_no_effect_is_there_twice_or_lost_wherever_an_agent_is_killed(
    results: Path, request: pytest.FixtureRequest
) -> None:
    assert KILLS.keys() == MACHINE_STEPS.keys()
    points, seed = KILLS[request.config.getoption("--profile")], random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    found = agent_kills.measure(points, seed, orders=2)
    count = found["counts"][LOOK]
    assert count["kills"] >= points
    assert count["effects"] == points * 4
    assert {what: count[what] for what in WRONG} == dict.fromkeys(WRONG, 0)
    put(results, "agent_kills", found)
    assert f"| {LOOK} | {count['kills']} | {count['effects']} | 0 | 0 |" in report.page()


@pytest.mark.parametrize(("policy", "twice"), [(LOOK, 0), (RETRY, 1)])
def test_a_kill_between_effect_and_record_is_found_by_the_look_alone(tmp_path: Path, policy: str, twice: int) -> None:
    agent_kills.open_shop(tmp_path / "whole")
    assert agent_kills.live(agent_kills.life, tmp_path / "whole", agent_kills.NEVER, policy, 1) == 0
    (whole,) = agent_kills.notes(tmp_path / "whole" / "ended")
    kill = Kill(whole["moments"].index("after the mail"))
    count = agent_kills.trial(tmp_path / "killed", [kill], policy, 1)
    assert (count["kills"], count["twice"], count["lost"], count["wrong ends"]) == (1, twice, 0, 0)
    assert count["in doubt, done"] == (policy == LOOK)


def test_every_saved_state_is_the_models(results: Path) -> None:
    found = agent_rounds.measure(ROUNDS, repeat=1, resumes=1)
    assert found["policies"].keys() == POLICIES.keys()
    checkpoints = {"every round": ROUNDS, "every third": ROUNDS // 3, "after tools": ROUNDS * 5}
    for policy, ways in found["policies"].items():
        assert ways.keys() == WAYS.keys()
        for each in ways.values():
            assert (each["checkpoints"], each["differing"]) == (checkpoints[policy], 0)
            assert 0 < each["largest_bytes"] < each["stored_bytes"]
            assert [round_ for round_, _ in each["growth_bytes"]] == [1, 2, 3, 4]
    put(results, "agent_rounds", found)
    page = report.page()
    assert "| every third | JSON files | 1 | none |" in page
    assert "plots/agents.svg" in page
    assert plots.agents(found).keys() == POLICIES.keys()


def test_a_state_that_differs_is_counted(tmp_path: Path) -> None:
    with WAYS["json"].open(tmp_path, POLICIES["every round"]) as opened:
        agent_rounds.dialogue(opened.run, 2)
    (tmp_path / "000001.json").write_text('{"messages": [], "state": {}}')
    found = dict(agent_rounds.verify("json", "every round", tmp_path, 2))
    assert found == {"checkpoints": 2, "differing": 1}
    (tmp_path / "000002.json").unlink()
    assert dict(agent_rounds.verify("json", "every round", tmp_path, 2)) == {"checkpoints": 1, "differing": 2}


def test_the_plot_has_a_curve_for_each_way() -> None:
    pytest.importorskip("matplotlib")
    growth = {way: {"growth_bytes": [(1, 10.0), (2, 20.0)]} for way in WAYS}
    drawn = plots.draw(plots.agents({"policies": {"every round": growth}}))
    assert all(way.label in drawn for way in WAYS.values())
