"""Processes on one server, some of them killed, beside compactions: nothing acknowledged is lost, nothing differs."""

import random
import threading

import pytest

import deltastore
from deltastore import compact
from tests import fleet, workers
from tests.fleet import Fleet, judge, run_all
from tests.workers import Job

PROCESSES, WRITERS, READERS = 4, 8, 8
PUTS = {"quick": 1, "ci": 20, "deep": 200}
KILLS = {"quick": 3, "ci": 20, "deep": 200}


@pytest.fixture
def profile(request: pytest.FixtureRequest) -> str:
    return request.config.getoption("--profile")


@pytest.mark.parametrize("front", workers.FRONTS)
def test_many_threads_of_many_processes(postgres_url: str, front: str, profile: str) -> None:
    over = threading.Event()

    def keep_compacting() -> None:
        with deltastore.open(postgres_url) as store:
            while not over.is_set():
                compact(store, level=1)

    beside = threading.Thread(target=keep_compacting)
    beside.start()
    try:
        jobs = fleet.crews(
            postgres_url,
            front,
            processes=PROCESSES,
            writers=WRITERS,
            readers=READERS,
            puts=PUTS[profile],
            shared=front != "native",  # appends of all to one thread are stale as often as there are writers
        )
        done = run_all(*jobs)
    finally:
        over.set()
        beside.join()
    assert judge(postgres_url, front, done) == PROCESSES * WRITERS * PUTS[profile]


@pytest.mark.parametrize("front", workers.FRONTS)
def test_processes_killed_at_random(postgres_url: str, front: str, profile: str) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with Fleet() as crews:
        crews.launch(*fleet.crews(postgres_url, front, processes=3, writers=2, readers=1, shared=True))
        for number in range(KILLS[profile]):
            for _ in range(chance.randint(1, 20)):
                assert crews.listen() is not None
            crews.kill(chance.choice(crews.alive))
            crews.launch(Job(postgres_url, front, 3 + number, writers=2, readers=1, shared=True))
        crews.finish()
    judge(postgres_url, front, crews)
