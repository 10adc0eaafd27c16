"""The pytest plugin that gives LangGraph's tests another saver, and reports what became of each test.

LangGraph's conftest stays as it is: its "memory" saver is made by a function that its fixtures look up when they
run, and that name alone is replaced. Tests that construct an InMemorySaver themselves find another class under
that name in their own module, while they run.
"""

import importlib.metadata
import json
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver

from deltastore.langgraph import DeltaSaver

FIXTURES = ("sync_checkpointer", "async_checkpointer")
PARAMETER = "memory"
"""The parameter of these fixtures that stands for InMemorySaver."""
MAKER = "_checkpointer_memory"
"""What LangGraph's conftest makes that saver with."""
SAVER_NAMES = ("InMemorySaver", "MemorySaver")
BY_FIXTURE, BY_TEST = "fixture", "test"
"""Who makes a test's saver."""
DISTRIBUTIONS = (
    "deltastore",
    "langchain-core",
    "langgraph",
    "langgraph-checkpoint",
    "langgraph-prebuilt",
    "lmdb",
    "ormsgpack",
    "pytest",
    "syrupy",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("upstream suite")
    group.addoption("--snapshot-frequency", type=int, help="use DeltaSaver, with this; default: InMemorySaver")
    group.addoption("--outcomes", type=Path, required=True, help="where to write each test's outcome, as JSON lines")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Run(config.getoption("snapshot_frequency"), config.getoption("outcomes")))


@contextmanager
def new_delta_saver(frequency: int) -> Iterator[DeltaSaver]:
    """Give a saver on a store of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="upstream-store-") as directory,
        DeltaSaver.from_path(Path(directory, "store"), snapshot_frequency=frequency) as saver,
    ):
        yield saver


class Run:
    """One run of the tests with one saver."""

    def __init__(self, frequency: int | None, outcomes: Path) -> None:
        self.frequency = frequency
        self.path = outcomes
        self.file: IO[str]
        self.opened = ExitStack()
        self.stand_in = self.make_stand_in()
        self.forget_test()

    def forget_test(self) -> None:
        self.savers_made = 0
        """How many savers the running test has got from here."""
        self.phases: dict[str, str] = {}
        self.trace = ""
        self.message = ""

    def make_stand_in(self) -> type[BaseCheckpointSaver[Any]]:
        """Return the class that a test finds where it expects InMemorySaver; one that tells when it is used."""
        run = self
        if self.frequency is None:

            class CountedInMemorySaver(InMemorySaver):
                def __init__(self, **options: Any) -> None:
                    run.savers_made += 1
                    super().__init__(**options)

            return CountedInMemorySaver

        frequency = self.frequency

        class OwnDeltaSaver(DeltaSaver):
            def __init__(self, **options: Any) -> None:
                run.savers_made += 1
                super().__init__(run.opened.enter_context(new_delta_saver(frequency)).store, **options)

        return OwnDeltaSaver

    # --- which tests run

    def pytest_sessionstart(self) -> None:
        self.file = self.path.open("w", encoding="utf-8")
        self.write(versions={name: importlib.metadata.version(name) for name in DISTRIBUTIONS})

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        kept = [item for item in items if self.concerns_us(item)]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
        items[:] = kept
        if self.frequency is not None:
            self.replace_maker(config, self.frequency)

    def concerns_us(self, item: pytest.Item) -> bool:
        if not isinstance(item, pytest.Function):
            return False
        if fixtures := [name for name in FIXTURES if name in item.fixturenames]:
            parameters: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
            return all(parameters.get(name) == PARAMETER for name in fixtures)
        return any(hasattr(item.module, name) for name in SAVER_NAMES)

    def replace_maker(self, config: pytest.Config, frequency: int) -> None:
        makers = [plugin for plugin in config.pluginmanager.get_plugins() if hasattr(plugin, MAKER)]
        if len(makers) != 1:
            raise pytest.UsageError(
                f"expected one conftest with the function {MAKER}, found {len(makers)}: "
                "the fixtures of this checkout aren't built as this tool expects"
            )

        def make() -> Any:
            self.savers_made += 1
            return new_delta_saver(frequency)

        setattr(makers[0], MAKER, make)

    # --- what becomes of a test

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.forget_test()
        by_fixture = any(name in FIXTURES for name in getattr(item, "fixturenames", ()))
        with self.opened, pytest.MonkeyPatch.context() as patch:
            module = getattr(item, "module", None)
            # A test with the fixture compares with InMemorySaver's own class.
            for name in () if by_fixture else SAVER_NAMES:
                if hasattr(module, name):
                    patch.setattr(module, name, self.stand_in)
            result = yield
        # A test of the fixture that hasn't met DeltaSaver after all is then missing, not passed.
        if self.savers_made or (by_fixture and self.frequency is None):
            self.write(
                test=item.nodeid,
                saver=BY_FIXTURE if by_fixture else BY_TEST,
                outcome=self.outcome(),
                message=self.message,
                trace=self.trace,
            )
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.phases[str(report.when)] = report.outcome
        if report.failed:
            self.trace += report.longreprtext
            crash = getattr(report.longrepr, "reprcrash", None)
            self.message = self.message or (f"{Path(crash.path).name}:{crash.lineno}: {crash.message}" if crash else "")

    def outcome(self) -> str:
        found = set(self.phases.values())
        return "failed" if "failed" in found else "skipped" if "skipped" in found else "passed"

    def pytest_sessionfinish(self) -> None:
        self.file.close()

    def write(self, **facts: Any) -> None:
        print(json.dumps(facts), file=self.file, flush=True)
