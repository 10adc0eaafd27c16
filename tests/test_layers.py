"""The layers of docs/design.md: who may import whom, and which module may import which library.

Every import counts, wherever it stands: in a function, or for type checking alone.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import deltastore

PROJECT = "deltastore"
PACKAGE = Path(deltastore.__file__).parent
FRONT = "__init__"
"""The layer name of deltastore/__init__.py."""

_BELOW_LOG = {"errors", "ulid", "storage", "codec", "reducers"}
_BELOW_UPKEEP = _BELOW_LOG | {"log", "terms", "diffing", "store", "opening"}

LAYERS: dict[str, set[str]] = {
    "errors": set(),
    "ulid": {"errors"},
    "storage": {"errors"},
    "codec": {"errors", "ulid"},
    "reducers": {"errors", "ulid", "codec"},
    "log": _BELOW_LOG,
    "terms": _BELOW_LOG | {"log"},
    "diffing": _BELOW_LOG | {"log", "terms"},
    "store": _BELOW_LOG | {"log", "terms", "diffing"},
    "opening": _BELOW_LOG | {"log", "terms", "store"},
    "upkeep": _BELOW_UPKEEP,
    FRONT: _BELOW_UPKEEP | {"upkeep"},
    "langgraph": _BELOW_UPKEEP | {"upkeep", FRONT},
    "agent": _BELOW_UPKEEP | {"upkeep", FRONT},
    "cli": _BELOW_UPKEEP | {"upkeep", FRONT, "langgraph", "agent"},
    "__main__": {"cli"},
}
"""What each layer may import, besides itself."""

LIBRARIES: dict[str, set[str]] = {
    "lmdb": {"storage"},
    "psycopg": {"storage"},
    "ormsgpack": {"storage", "codec", "log", "store", "upkeep", "langgraph"},
    "xxhash": {"storage", "codec"},
    "zstandard": {"codec"},
    # Optional, so never needed by `import deltastore`.
    "langchain_core": {"langgraph"},
    "langgraph": {"langgraph"},
    "rich": {"cli"},
    "typer": {"cli"},
}
"""The layers that may import each library; one that isn't here is a dependency that nobody decided on."""

OPTIONAL = ("langchain", "langchain_core", "langgraph", "langsmith", "psycopg", "rich", "typer")


class Import(NamedTuple):
    line: int
    name: str
    """A dotted name as far as it can be told: a module, or a name within one."""


def imports(source: str, package: str) -> Iterator[Import]:
    """Find the absolute names that a module of `package` imports."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=aliases):
                yield from (Import(node.lineno, alias.name) for alias in aliases)
            case ast.ImportFrom(module=module, names=aliases, level=level):
                base = module or ""
                if level:
                    parents = package.split(".")
                    base = ".".join([*parents[: len(parents) - level + 1], *([module] if module else [])])
                yield from (Import(node.lineno, f"{base}.{alias.name}") for alias in aliases)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield Import(node.lineno, name)


def layer_of(parts: list[str]) -> str:
    """Return the layer of a module of ours, or of a name imported from the front."""
    return parts[1] if len(parts) > 1 and parts[1] in LAYERS else FRONT


def violations(source: str, relative: str) -> list[str]:
    """List the imports of a module, given by its path below deltastore/, that the tables don't allow."""
    path = Path(relative)
    layer = path.with_suffix("").parts[0]
    if layer not in LAYERS:
        return [f"{relative}: {layer} has no place in the layer table"]
    package = ".".join([PROJECT, *path.parts[:-1]])
    found = []
    for line, name in imports(source, package):
        parts = name.split(".")
        if parts[0] == PROJECT:
            target = layer_of(parts)
            allowed = target in LAYERS[layer] | {layer}
        elif parts[0] in sys.stdlib_module_names:
            continue
        else:
            target = parts[0]
            allowed = layer in LIBRARIES.get(target, set())
        if not allowed:
            found.append(f"{relative}:{line}: {layer} may not import {target} ({name})")
    return found


MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("relative", MODULES)
def test_imports_go_downwards(relative: str) -> None:
    assert violations((PACKAGE / relative).read_text(), relative) == []


def test_the_layer_table_has_no_cycle() -> None:
    placed: set[str] = set()
    while placed != LAYERS.keys():
        ready = {layer for layer, below in LAYERS.items() if below <= placed} - placed
        assert ready, f"a cycle among {LAYERS.keys() - placed}"
        placed |= ready


def test_upkeep_is_never_imported_by_the_store_or_below() -> None:
    assert all("upkeep" not in LAYERS[layer] for layer in ("store", "log", "reducers", "codec", "storage"))


@pytest.mark.parametrize(
    ("relative", "source", "complaint"),
    [
        ("codec/frames.py", "from deltastore.storage.port import Row", "codec may not import storage"),
        ("codec/frames.py", "from ..storage import port", "codec may not import storage"),
        ("codec/frames.py", "from .. import reducers", "codec may not import reducers"),
        ("storage/lmdb.py", "import deltastore.ulid", "storage may not import ulid"),
        ("store.py", "def prune():\n    from deltastore import upkeep", "store may not import upkeep"),
        ("log/put.py", "if TYPE_CHECKING:\n    from deltastore.store import Store", "log may not import store"),
        ("log/put.py", "from deltastore import Store", "log may not import __init__"),
        ("__init__.py", "from .langgraph import DeltaSaver", "__init__ may not import langgraph"),
        ("__init__.py", "import_module('deltastore.cli')", "__init__ may not import cli"),
        ("agent/run.py", "from deltastore.langgraph import DeltaSaver", "agent may not import langgraph"),
        ("log/put.py", "import lmdb", "log may not import lmdb"),
        ("log/put.py", "importlib.import_module('lmdb')", "log may not import lmdb"),
        ("store.py", "from langgraph.types import Send", "store may not import langgraph"),
        ("errors.py", "import requests", "errors may not import requests"),
        ("helpers.py", "import os", "helpers has no place in the layer table"),
    ],
)
def test_the_checker_catches(relative: str, source: str, complaint: str) -> None:
    found = violations(source, relative)
    assert len(found) == 1
    assert complaint in found[0]


@pytest.mark.parametrize(
    ("relative", "source"),
    [
        ("ulid.py", "import os\nfrom deltastore.errors import InvalidIdError"),
        ("reducers.py", "from .codec import spans"),
        ("storage/lmdb.py", "import lmdb\nfrom .port import Storage"),
        ("langgraph/saver.py", "from langgraph.types import Send\nfrom deltastore import Store"),
        ("cli/main.py", "import argparse, deltastore\nfrom deltastore.upkeep import check"),
    ],
)
def test_the_checker_allows(relative: str, source: str) -> None:
    assert violations(source, relative) == []


def test_importing_deltastore_imports_no_optional_library() -> None:
    script = f"import deltastore, sys; print(*sorted({{name.split('.')[0] for name in sys.modules}} & {set(OPTIONAL)}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
