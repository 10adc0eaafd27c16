"""What a result must say about where it was measured, and the file that it is kept in."""

import importlib.metadata
import json
import os
import platform
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ENGINE_DISTRIBUTIONS = ("langgraph", "langgraph-checkpoint", "langchain-core", "lmdb", "ormsgpack", "zstandard")


RESULTS = Path(__file__).with_name("results")


def write_result(name: str, module: str, found: dict[str, Any]) -> None:
    """Write bench/results/NAME.json: the command of this process, machine, versions, and what it found."""
    result = {
        "command": " ".join([f"python -m {module}", shlex.join(sys.argv[1:])]).strip(),
        "machine": describe_machine(),
        "versions": distribution_versions(()),
        **found,
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")


def describe_machine() -> dict[str, str]:
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": f"{os.cpu_count()} x {_processor()}",
        "memory": f"{memory_gib:.1f} GiB",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or "unknown processor"


def distribution_versions(distributions: Iterable[str]) -> dict[str, str]:
    return {name: _version(name) for name in sorted({*distributions, *ENGINE_DISTRIBUTIONS})}


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:  # the project itself, run from its tree
        return "not installed"
