"""The guide's agents are complete and short; tests/test_doctests.py runs them."""

from tests.test_doctests import BLOCK, ROOT

LINES = 60
NEEDS = ("scripted_model", "chat.completions.create", "asyncio.gather")


def test_a_complete_loop_takes_less_than_sixty_lines() -> None:
    blocks = BLOCK.findall((ROOT / "docs" / "agent.md").read_text())
    for block, needs in zip(blocks, NEEDS, strict=False):
        assert needs in block
        assert "manager.run(" in block or "manager.arun(" in block
        assert len(block.splitlines()) < LINES
