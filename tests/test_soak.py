"""The soak of bench/, run for a short time; by hand it runs for long."""

import random
from pathlib import Path

import deltastore
from bench import soak_roles
from bench.soak import Soak
from bench.soak_roles import NATIVE, Native, Step
from tests.conftest import MACHINE_STEPS

THINGS = {"quick": 2_000, "ci": 5_000, "deep": 100_000}
"""Things done by all processes together, by profile."""


def test_nothing_is_wrong_after_a_short_soak(tmp_path: Path, request) -> None:
    assert THINGS.keys() == MACHINE_STEPS.keys()
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    soak = Soak(tmp_path / "store.ds", seed, "none")
    soak.run(things=THINGS[request.config.getoption("--profile")])
    found = soak.summary()
    print(found)
    assert (found["mismatches"], found["failures"]) == ([], [])
    assert found["kills"]
    assert {"puts", "reads"} <= found["operations"].keys()  # the others come about in longer runs
    assert found["checkpoints_compared"]
    assert found["file_mb"]["most"] < 30
    assert found["own_memory_mb"]["most"] < 200


def test_what_is_lost_or_wrong_is_noticed(tmp_path: Path) -> None:
    """What the soak would say of a store that lost a checkpoint, kept another value, or mixed two states."""
    with deltastore.open(tmp_path / "store.ds") as store:
        front, soak = Native(store), Soak(tmp_path / "store.ds", 1)
        state = {"messages": [1], "doc": "text", "count": 1}
        state["check"] = soak_roles.digest(state)
        id_ = front.put(NATIVE, Step(state, {}, None, None, 1, {}))
        soak.model[NATIVE] = {id_: state["check"]}
        soak.judge(store, [NATIVE])
        assert (soak.mismatches, soak.compared) == ([], 1)
        soak.model[NATIVE] = {id_: "another"}
        soak.judge(store, [NATIVE])
        assert "another state" in soak.mismatches.pop()
        soak.model[NATIVE] = {id_: state["check"], f"{id_[:-1]}{'1' if id_[-1] == '0' else '0'}": "lost"}
        soak.judge(store, [NATIVE])
        assert "missing" in soak.mismatches.pop()
        front.store.thread(NATIVE).append({"messages": ["nobody's"]})
        soak.model[NATIVE] = {id_: state["check"]}
        soak.judge(store, [NATIVE])
        assert "digest" in soak.mismatches.pop()
