"""What an import of the saver brings along: all that putting and reading needs, and nothing of what else there is."""

import importlib.util
import json
import subprocess
import sys
from typing import Any

import pytest

import deltastore

SEEN = """
import dataclasses, json, sys

def loaded():
    return sorted(name for name in sys.modules if name.partition(".")[0] == "deltastore")

def frozen():
    return sorted({
        value.__qualname__
        for name in loaded()
        for value in vars(sys.modules[name]).values()
        if isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__ == name
        and value.__dataclass_params__.frozen
    })
"""

SAVER = (
    SEEN
    + """
from langgraph.checkpoint.base import empty_checkpoint
from deltastore.langgraph import DeltaSaver

imported, records = loaded(), frozen()
saver = DeltaSaver.from_path(sys.argv[1])
opened = loaded()
config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
for number in (1, 2):
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"], checkpoint["channel_versions"] = {"n": [number]}, {"n": str(number)}
    config = saver.put(config, checkpoint, {"source": "loop", "step": number}, {"n": str(number)})
    saver.put_writes(config, [("n", number)], "task")
    assert saver.get_tuple(config).checkpoint["channel_values"] == {"n": [number]}
assert len(list(saver.list({"configurable": {"thread_id": "t"}}))) == 2
used = loaded()
saver.close()
print(json.dumps({"imported": imported, "opened": opened, "used": used, "records": records}))
"""
)

ASKED_FOR = [
    "deltastore.cli",
    "deltastore.diffing",
    "deltastore.langgraph.deletions",
    "deltastore.langgraph.differing",
    "deltastore.langgraph.threads",
    "deltastore.langgraph.validating",
    "deltastore.log.activity",
    "deltastore.log.choosing",
    "deltastore.log.copying",
    "deltastore.log.deleting",
    "deltastore.log.erasing",
    "deltastore.log.forks",
    "deltastore.log.keeping",
    "deltastore.log.listing",
    "deltastore.log.removing",
    "deltastore.log.retention",
    "deltastore.log.surviving",
    "deltastore.log.tagging",
    "deltastore.log.walking",
    "deltastore.storage.info",
    "deltastore.storage.moving",
    "deltastore.upkeep",
]
"""Modules, or packages, that are imported when somebody asks for what they do."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process has loaded once it imported the saver, opened a store, and put and read."""
    path = tmp_path_factory.mktemp("importing") / "store.ds"
    done = subprocess.run([sys.executable, "-c", SAVER, path], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("module", ASKED_FOR)
def test_putting_and_reading_load_nothing_of(module: str, seen: dict[str, Any]) -> None:
    assert importlib.util.find_spec(module) is not None
    assert [name for name in seen["used"] if name == module or name.startswith(f"{module}.")] == []


def test_opening_imports_the_storage_alone(seen: dict[str, Any]) -> None:
    later = set(seen["opened"]) - set(seen["imported"])
    assert later
    assert [name for name in later if not name.startswith("deltastore.storage.")] == []


def test_the_first_put_and_read_import_nothing(seen: dict[str, Any]) -> None:
    assert seen["used"] == seen["opened"]


def test_only_what_callers_are_given_are_frozen_dataclasses(seen: dict[str, Any]) -> None:
    """A named tuple does between modules, and takes a tenth of the time to be made."""
    assert seen["records"]
    assert set(seen["records"]) <= set(deltastore.__all__)


def test_every_public_name_is_there_when_asked_for() -> None:
    script = "import deltastore\nfor name in deltastore.__all__: getattr(deltastore, name)"
    subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
