"""Profiles, seeds, and stores that are checked when a test ends."""

import random
import signal
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import deltastore
from deltastore import Store, check
from deltastore.storage.memory import MemoryStorage
from tests import postgres_server
from tests.postgres_server import PostgresServer

SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"
"""Real transcripts, beside the project where they are at hand; tests that need them skip elsewhere."""

MACHINE_STEPS = {"quick": 2_000, "ci": 50_000, "deep": 1_000_000}
"""Steps that each profile gives to the state machines, in all."""
STEPS_PER_EXAMPLE = 50
LEAST_EXAMPLES = 60
"""Examples of each property in the quick profile, which stays under ten minutes on two cores; deeper ones have more."""
UNSAFE = ("fsync=off", "full_page_writes=off", "synchronous_commit=on", "max_connections=300")
"""How the server that most tests share is run: it is never to survive a power cut, and each of many threads has handles
of its own."""
ON_POSTGRES = (
    "test_store.py",
    "test_fencing.py",
    "langgraph/test_conformance.py",
    "langgraph/test_saver.py",
    "upkeep/test_retention.py",
    "upkeep/test_statistics.py",
)
"""Modules whose tests run on PostgreSQL too in the quick profile; in the others all do that open the test's store."""
NEVER_ON_POSTGRES = ("upkeep/test_backup.py",)
"""A server has means of its own for that."""
_schemas = count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--profile", default="quick", choices=sorted(MACHINE_STEPS), help="how long property tests search")


def pytest_configure(config: pytest.Config) -> None:
    # processes that run tests for others ignore it, and so would their children
    signal.signal(signal.SIGINT, signal.default_int_handler)
    profile = config.getoption("--profile")
    for name, steps in MACHINE_STEPS.items():
        settings.register_profile(
            name,
            max_examples=max(LEAST_EXAMPLES, steps // 100),
            deadline=None,  # a timed assertion would fail on a busy machine
            print_blob=True,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        )
    settings.load_profile(profile)
    if config.getoption("--hypothesis-seed", default=None) is None:
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(2**32))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    is_quick = config.getoption("--profile") == "quick"
    here = Path(__file__).parent

    def stays(item: pytest.Item) -> bool:
        callspec = getattr(item, "callspec", None)
        if callspec is None or callspec.params.get("open_store") != "postgres":
            return True
        module = item.path.relative_to(here).as_posix()
        return module not in NEVER_ON_POSTGRES and (module in ON_POSTGRES or not is_quick)

    gone = [item for item in items if not stays(item)]
    if gone:
        config.hook.pytest_deselected(items=gone)
        items[:] = [item for item in items if stays(item)]


def pytest_report_header(config: pytest.Config) -> str:
    profile = config.getoption("--profile")
    seed = config.getoption("--hypothesis-seed", default="unknown")
    return f"profile: {profile} ({MACHINE_STEPS[profile]} machine steps), --hypothesis-seed={seed}"


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server for all tests of this process; they are skipped where none is installed."""
    if not postgres_server.is_installed():
        pytest.skip("PostgreSQL isn't installed: there is no initdb on PATH or below /usr/lib/postgresql")
    with postgres_server.running(settings=UNSAFE) as server:
        yield server


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> str:
    """The URL of a store that isn't there yet, in a schema of its own."""
    return f"{postgres.url}?schema=s{next(_schemas)}"


OpenStore = Callable[..., Store]


@pytest.fixture(params=["memory", "lmdb", "postgres"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenStore]:
    """Open the test's one store, as often as wanted, on each storage; at the end it is checked."""
    memory = MemoryStorage()
    place = request.getfixturevalue("postgres_url") if request.param == "postgres" else tmp_path / "store.ds"
    opened: list[Store] = []

    def open_(**options: Any) -> Store:
        store = Store(memory, **options) if request.param == "memory" else deltastore.open(place, **options)
        opened.append(store)
        return store

    yield open_
    reducers = [reducer for store in opened for reducer in store.log.registry.registered]
    for store in opened if request.param != "memory" else ():
        store.close()
    if opened:
        with open_(reducers={reducer.name: reducer for reducer in reducers}.values()) as store:
            report = check(store)
        assert report.ok, report.problems


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    """An open store on each storage."""
    return open_store()


@pytest.fixture
def shared_data() -> Path:
    """The folder of real transcripts; the test is skipped where it is missing."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the real transcripts aren't beside the project")
    return SHARED_DATA
