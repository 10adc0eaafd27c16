"""Run LangGraph's own persistence tests with DeltaSaver, and with InMemorySaver as the reference.

CHECKOUT is a copy of LangGraph's public repository: a work tree, or a git directory, whose HEAD is then taken. The
release of which it is the source is installed from PyPI, with this project, in an environment of its own
(.venv-upstream). Nothing in CHECKOUT is changed. Exit status: 1 if a test fails with DeltaSaver that passes with
InMemorySaver, 2 if the tests couldn't be run.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
VENV = ROOT / ".venv-upstream"
PYTHON = VENV / "bin" / "python"
RESULT = ROOT / "bench" / "results" / "upstream_suite.json"
COMMAND = "tools/upstream_suite CHECKOUT"
FREQUENCIES = (1, 3, 50)
LIBRARY = Path("libs", "langgraph")
CONFORMANCE = Path("libs", "checkpoint-conformance")
SUITE = (
    "test_checkpoint_migration.py",
    "test_delta_channel_*.py",
    "test_interrupt_migration.py",
    "test_interruption.py",
    "test_large_cases*.py",
    "test_parent_command*.py",
    "test_pregel.py",
    "test_pregel_async.py",
    "test_pregel_debug.py",
    "test_subgraph_persistence*.py",
    "test_time_travel*.py",
)
TEST_REQUIREMENTS = (
    # What the tests and their conftest import, whether or not they have the servers.
    "httpx",
    "langgraph-checkpoint-postgres",
    "langgraph-checkpoint-sqlite",
    "psycopg[binary]",
    "pycryptodome",
    "pytest>=8.2",
    "pytest-mock",
    "redis",
    "syrupy",
    # A saver that blocks fails its test, instead of keeping the run from ending.
    "pytest-timeout",
    # Builds the project.
    "hatchling>=1.24",
)
TIMEOUT_S = 120
NO_TESTS_FAILED, TESTS_FAILED = 0, 1
"""The exit statuses with which pytest has run all tests."""
SETTINGS = ("LANGCHAIN_", "LANGGRAPH_", "LANGSMITH_", "PYTEST_", "PYTHONPATH")
"""Environment variables that would change what is tested."""


class SuiteError(Exception):
    """The suite couldn't be run."""


class Source(NamedTuple):
    """A copy of what is used of a checkout."""

    directory: Path
    version: str
    commit: str | None


# --- the checkout and the environment -----------------------------------------


def git(*arguments: str) -> str | None:
    """Return what git says, or None where it fails or is missing."""
    try:
        found = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return found.stdout.strip() if found.returncode == 0 else None


def copy_checkout(checkout: Path, directory: Path) -> Source:
    if (checkout / LIBRARY / "tests").is_dir():
        for part in (LIBRARY / "tests", CONFORMANCE):
            if (checkout / part).is_dir():
                shutil.copytree(checkout / part, directory / part, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        shutil.copy(checkout / LIBRARY / "pyproject.toml", directory / LIBRARY)
        # An unpacked archive may lie within another repository, whose commit it hasn't.
        commit = git("-C", str(checkout), "rev-parse", "HEAD") if (checkout / ".git").exists() else None
    else:
        commit = git("--git-dir", str(checkout), "rev-parse", "HEAD")
        parts = [
            str(part)
            for part in (LIBRARY, CONFORMANCE)
            if git("--git-dir", str(checkout), "ls-tree", "HEAD", f"{part}/")
        ]
        archive = directory / "archive.tar"
        if not parts or git("--git-dir", str(checkout), "archive", "-o", str(archive), "HEAD", *parts) is None:
            raise SuiteError(f"{checkout} is no copy of LangGraph's repository: found no {LIBRARY}/tests in it")
        shutil.unpack_archive(archive, directory, filter="data")
    project = tomllib.loads((directory / LIBRARY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    # The conftest alone is to decide how the tests run.
    (directory / LIBRARY / "pyproject.toml").unlink()
    return Source(directory, project["version"], commit)


def pip(*arguments: str) -> None:
    # Twice quiet leaves errors only: warnings there are about pip's own configuration.
    command = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "install", "-qq", *arguments]
    if subprocess.run(command, check=False).returncode:
        raise SuiteError(f"pip couldn't install {' '.join(arguments)}")


def prepare_environment(version: str) -> None:
    """Have LangGraph's release and what its tests need installed, and this project as it is now."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = [f"langgraph=={version}", *TEST_REQUIREMENTS]
    requirements += [*project["dependencies"], *project["optional-dependencies"]["langgraph"]]
    stamp = VENV / "installed"
    wanted = "\n".join([str(ROOT), sys.version, *requirements])
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != wanted:
        print(f"Setting up {VENV.name} with LangGraph {version} (needed once, takes a minute or two) …", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
        (VENV / ".gitignore").write_text("*\n", encoding="utf-8")
        pip(*requirements)
        stamp.write_text(wanted, encoding="utf-8")
    # Not editable: a run tests one state of the project, whatever is edited meanwhile.
    pip("--no-deps", "--force-reinstall", "--no-build-isolation", str(ROOT))


def child_environment(*paths: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    return kept | {"NO_DOCKER": "true", "PYTHONPATH": os.pathsep.join(str(path) for path in (ROOT / "tools", *paths))}


# --- running ------------------------------------------------------------------


def run_tests(source: Source, frequency: int | None, selected: str | None) -> dict[str, Any]:
    """Run the tests with one saver, and return the versions used, and each test's outcome by its name."""
    library = source.directory / LIBRARY
    files = sorted({path for pattern in SUITE for path in (library / "tests").glob(pattern)})
    if not files:
        raise SuiteError(f"{LIBRARY}/tests has none of the files {', '.join(SUITE)}")
    outcomes = source.directory / "outcomes.jsonl"
    command = [str(PYTHON), "-m", "pytest", "-p", "_upstream.plugin", f"--outcomes={outcomes}"]
    # Traces go to the outcomes alone. Snapshots are compared with InMemorySaver only: with DeltaSaver some are unused.
    command += ["-q", "--no-header", "--no-summary", "--disable-warnings", "--snapshot-warn-unused"]
    command += ["--tb=short", "-o", "verbosity_assertions=2", "-p", "no:cacheprovider"]
    command += ["--strict-markers", f"--rootdir={library}", f"--timeout={TIMEOUT_S}"]
    command += [] if frequency is None else [f"--snapshot-frequency={frequency}"]
    command += ["-k", selected] if selected else []
    command += [str(path.relative_to(library)) for path in files]
    started = time.monotonic()
    status = subprocess.run(command, cwd=library, env=child_environment(), check=False).returncode
    if status not in {NO_TESTS_FAILED, TESTS_FAILED}:
        raise SuiteError(f"pytest didn't run the tests: exit status {status}")
    lines = [json.loads(line) for line in outcomes.read_text(encoding="utf-8").splitlines()]
    return {
        "versions": lines[0]["versions"],
        "tests": {line["test"]: line for line in lines[1:]},
        "seconds": round(time.monotonic() - started, 1),
    }


def run_conformance(source: Source, frequency: int) -> dict[str, Any] | None:
    """Return what passed and failed of the checkout's conformance tests; None where it has none that run."""
    directory = source.directory / CONFORMANCE
    if not directory.is_dir():
        return None
    command = [str(PYTHON), "-m", "_upstream.conformance", str(frequency)]
    environment = child_environment(directory)
    ran = subprocess.run(command, cwd=source.directory, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if ran.returncode:
        print(f"{CONFORMANCE} didn't run: exit status {ran.returncode}", flush=True)
        return None
    results: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return results


# --- comparing ----------------------------------------------------------------


def passed_names(tests: dict[str, Any], saver: str) -> list[str]:
    return sorted(name for name, test in tests.items() if test["saver"] == saver and test["outcome"] == "passed")


def compare(reference: dict[str, Any], found: dict[str, Any], saver: str) -> dict[str, Any]:
    """Say what of the tests that pass with the reference passes, and name the others."""
    expected = passed_names(reference["tests"], saver)
    failed = [name for name in expected if found["tests"].get(name, {}).get("outcome") != "passed"]
    return {"passed": len(expected) - len(failed), "failed": failed}


def describe_reference(reference: dict[str, Any], saver: str) -> dict[str, Any]:
    tests = {name: test for name, test in reference["tests"].items() if test["saver"] == saver}
    return {
        "passed": len(passed_names(tests, saver)),
        "failed": sorted(name for name, test in tests.items() if test["outcome"] == "failed"),
        "skipped": sum(test["outcome"] == "skipped" for test in tests.values()),
    }


def describe_project() -> dict[str, Any]:
    return {
        "commit": git("-C", str(ROOT), "rev-parse", "HEAD"),
        "modified": bool(git("-C", str(ROOT), "status", "--porcelain", "--", "deltastore")),
    }


# --- output -------------------------------------------------------------------


def print_failures(found: dict[str, Any], names: Iterable[str]) -> None:
    for name in names:
        test = found["tests"].get(name, {"outcome": "didn't run", "message": ""})
        message = test["message"].partition("\n")[0]
        print(f"  {test['outcome']}: {name}" + (f"\n    {message[:200]}" if message else ""))


def print_table(report: dict[str, Any]) -> None:
    print(f"\nLangGraph {report['langgraph']['version']}, commit {report['langgraph']['commit'] or 'unknown'}")
    print(f"{'':28}{'saver by fixture':>18}{'saver by test':>18}{'conformance':>16}")
    rows = {"InMemorySaver": report["reference"]}
    rows |= {f"DeltaSaver, every {frequency}": row for frequency, row in report["frequencies"].items()}
    for name, row in rows.items():
        cells = [f"{row[saver]['passed']:,} / {len(row[saver]['failed']):,}" for saver in ("fixture", "test")]
        if conformance := row.get("conformance"):
            passed = sum(result["passed"] for result in conformance.values())
            cells.append(f"{passed:,} / {sum(len(result['failed']) for result in conformance.values()):,}")
        print(f"{name:28}{cells[0]:>18}{cells[1]:>18}{cells[2] if len(cells) > 2 else '':>16}")
    print("passed / failed; for DeltaSaver, of the tests that pass with InMemorySaver")


def write_traces(path: Path, runs: dict[str, dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for run, found in runs.items():
            for name, test in found["tests"].items():
                if test["trace"]:
                    print(f"==== {run}: {name}\n{test['trace']}\n", file=file)


def run(source: Source, project: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    print("\nInMemorySaver", flush=True)
    reference = run_tests(source, None, options.k)
    report: dict[str, Any] = {
        "command": COMMAND,
        "langgraph": {"version": source.version, "commit": source.commit},
        "deltastore": project,
        "python": sys.version.split()[0],
        "versions": reference["versions"],
        "reference": {saver: describe_reference(reference, saver) for saver in ("fixture", "test")},
        "frequencies": {},
    }
    report["reference"]["seconds"] = reference["seconds"]
    runs = {"InMemorySaver": reference}
    for frequency in options.snapshot_frequency or FREQUENCIES:
        print(f"\nDeltaSaver, snapshot_frequency {frequency}", flush=True)
        found = runs[f"DeltaSaver, snapshot_frequency {frequency}"] = run_tests(source, frequency, options.k)
        row = {saver: compare(reference, found, saver) for saver in ("fixture", "test")}
        for saver in row.values():
            print_failures(found, saver["failed"])
        report["frequencies"][str(frequency)] = {
            **row,
            "conformance": run_conformance(source, frequency),
            "seconds": found["seconds"],
        }
    if options.traces:
        write_traces(options.traces, runs)
    return report


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/upstream_suite", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", metavar="CHECKOUT", type=Path)
    parser.add_argument(
        "--snapshot-frequency",
        type=int,
        action="append",
        help=f"may be given several times; default: {', '.join(map(str, FREQUENCIES))}",
    )
    parser.add_argument("-k", metavar="EXPRESSION", help="only these tests, as pytest's -k")
    parser.add_argument("--traces", metavar="FILE", type=Path, help="write the failed tests' traces to this file")
    options = parser.parse_args()
    # A part of the suite isn't its result.
    options.whole = not options.k and not options.snapshot_frequency
    return options


def main() -> int:
    options = parse_arguments()
    try:
        with tempfile.TemporaryDirectory(prefix="upstream-suite-") as directory:
            source = copy_checkout(options.checkout.resolve(), Path(directory))
            project = describe_project()
            prepare_environment(source.version)
            report = run(source, project, options)
    except SuiteError as error:
        print(error, file=sys.stderr)
        return 2
    print_table(report)
    if options.whole:
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        print(f"written to {RESULT.relative_to(ROOT)}")
    return 1 if any(row["fixture"]["failed"] for row in report["frequencies"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
