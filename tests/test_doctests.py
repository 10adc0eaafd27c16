"""What the documentation shows runs, and gives what it says."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

import deltastore

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    if page.exists()
    for number, block in enumerate(BLOCK.findall(page.read_text()), 1)
]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "deltastore").rglob("*.py")
    if ">>> " in path.read_text()
)


def test_the_front_door_has_an_example() -> None:
    assert doctest.testmod(importlib.import_module("deltastore.store")).attempted > 0


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("block", BLOCKS)
def test_examples_in_pages(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if "langgraph" in block:
        pytest.importorskip("langgraph.checkpoint.base")
    if ">>>" in block:
        example = doctest.DocTestParser().get_doctest(block, {}, "page", None, 0)
        assert doctest.DocTestRunner().run(example).failed == 0
    else:
        exec(compile(block, "page", "exec"), {"__name__": "page"})


def test_the_example_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, _, example = (deltastore.__doc__ or "").partition("\n\n")
    exec(compile("import deltastore\n" + example, "deltastore", "exec"), {})
    with deltastore.open("runs.ds") as store:
        assert store.thread("user-42").state() == {"messages": [{"role": "user", "content": "hi"}]}
