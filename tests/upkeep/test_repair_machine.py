"""Repair of stores that were made by a random mix of operations in both fronts, and then damaged at random."""

import random
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.graph_machine import DELTA, GraphMachine
from tests.raw import rows_of
from tests.store_machine import run
from tests.test_machine import CHANNELS, REDUCERS, NativeMachine
from tests.upkeep.damaging import opener
from tests.upkeep.test_repair_properties import expect_repaired
from tests.vocabulary import picks


class DamagedNativeMachine(NativeMachine):
    """Native threads; each damage is done to a copy, repaired and compared."""

    @rule(seed=picks, count=st.integers(1, 4))
    def damage_a_copy(self, seed: int, count: int) -> None:
        found = rows_of(self.handles[0].log.storage)
        open_ = opener(channels=CHANNELS, reducers=REDUCERS, snapshot_frequency=4)
        expect_repaired(found, open_, random.Random(seed), count, ())


class DamagedGraphMachine(GraphMachine):
    """LangGraph threads, some with DeltaChannels."""

    @rule(seed=picks, count=st.integers(1, 4))
    def damage_a_copy(self, seed: int, count: int) -> None:
        found = rows_of(self.handles[0].log.storage)
        expect_repaired(found, opener(snapshot_frequency=4), random.Random(seed), count, list(DELTA))


@pytest.mark.parametrize("machine", [DamagedNativeMachine, DamagedGraphMachine])
def test_machine(machine: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    run(machine, "memory", request, monkeypatch, share=0.25)
