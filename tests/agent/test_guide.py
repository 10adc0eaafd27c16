"""The guide's agents are complete and short; tests/test_doctests.py runs them."""

from pathlib import Path

import pytest

from tests.test_doctests import BLOCK, ROOT

LINES = 60
NEEDS = ("scripted_model", "chat.completions.create", "asyncio.gather")


def test_a_complete_loop_takes_less_than_sixty_lines() -> None:
    blocks = BLOCK.findall((ROOT / "docs" / "agent.md").read_text())
    for block, needs in zip(blocks, NEEDS, strict=False):
        assert needs in block
        assert "manager.run(" in block or "manager.arun(" in block
        assert len(block.splitlines()) < LINES


def test_the_first_agent_may_be_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    first = BLOCK.findall((ROOT / "docs" / "agent.md").read_text())[0]
    exec(compile(first, "page", "exec"), {"__name__": "page"})
    before = capsys.readouterr().out
    exec(compile(first, "page", "exec"), {"__name__": "page"})
    assert "waits" in before
    assert capsys.readouterr().out.startswith("The book is on its way.")
