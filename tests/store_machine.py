"""What every machine does: open a store through two handles, reopen them, and check all at the end."""

import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import deltastore
from deltastore import Store, check
from deltastore.log import dictionaries, policy
from deltastore.storage.memory import MemoryStorage
from deltastore.upkeep import repacking, training
from deltastore.upkeep.compaction import compact
from deltastore.upkeep.shrinking import shrink
from tests.conftest import MACHINE_STEPS, STEPS_PER_EXAMPLE
from tests.vocabulary import picks


class StoreMachine(RuleBasedStateMachine):
    """Two handles on one store; after each step `check` must find nothing."""

    kind = "memory"
    server = ""
    """The URL of the server, for machines on PostgreSQL: each example has a schema of its own."""
    options: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="deltastore-machine-"))
        self.memory = MemoryStorage()
        self.url = f"{self.server}?schema=m{secrets.token_hex(8)}"
        self.handles: list[Store] = []

    @initialize(first=st.integers(1, 7), second=st.integers(1, 7))
    def open_both(self, first: int, second: int) -> None:
        self.handles = [self._open(first), self._open(second)]

    def _open(self, frequency: int) -> Store:
        if self.kind == "memory":
            return Store(self.memory, snapshot_frequency=frequency, **self.options)
        if self.kind == "postgres":
            return deltastore.open(self.url, snapshot_frequency=frequency, **self.options)
        return deltastore.open(self.folder / "store.ds", sync="none", snapshot_frequency=frequency, **self.options)

    def handle(self, pick: int) -> Store:
        return self.handles[pick % 2]

    @rule(pick=picks, frequency=st.integers(1, 7))
    def reopen(self, pick: int, frequency: int) -> None:
        if self.kind != "memory":
            self.handle(pick).close()
        self.handles[pick % 2] = self._open(frequency)

    @rule(pick=picks, erase=st.booleans())
    def compact(self, pick: int, erase: bool) -> None:
        compact(self.handle(pick), erase=erase, level=1)
        if erase:
            assert check(self.handle(pick + 1)).garbage_chunks == 0

    @rule(pick=picks, kind=st.sampled_from(dictionaries.KINDS), content=st.none() | st.binary(min_size=8, max_size=400))
    def use_dictionary(self, pick: int, kind: str, content: bytes | None) -> None:
        """A trained one is made of more rows than a machine puts; any bytes will do."""
        training.apply(self.handle(pick), training.Training(kind, content, "as a test wants it"))

    @rule(pick=picks)
    def shrink(self, pick: int) -> None:
        if self.handle(pick).info().kind == "lmdb":
            shrink(self.handle(pick))

    @invariant()
    def nothing_is_wrong(self) -> None:
        if self.handles:
            report = check(self.handles[0])
            assert report.ok, report.problems

    def teardown(self) -> None:
        try:
            if self.handles:
                self.compare_everything()
        finally:
            for handle in self.handles:
                handle.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def counts(self) -> dict[str, int]:
        """Return how many checkpoints each thread has that has any."""
        raise NotImplementedError

    def compare(self, handle: Store) -> None:
        """Compare all that a handle reads with the model."""
        raise NotImplementedError

    def compare_everything(self) -> None:
        for handle in self.handles:
            assert {info.name: info.checkpoints for info in handle.threads()} == self.counts()
            self.compare(handle)


SMALL_PACKS = (
    (policy, "MIN_SMALL", 5),
    (policy, "MIN_LOOSE_ROWS", 4),
    (policy, "MIN_LOOSE_BYTES", 20_000),
    (policy, "MAX_PACK_BYTES", 40_000),
    (policy, "MAX_PACK_RECORDS", 8),
    (repacking, "MAX_PACK_BYTES", 60_000),
    (repacking, "MAX_PACK_RECORDS", 20),
)
"""Limits of packs, so small that a few dozen steps make many of them, and change what is in them."""


def run(
    machine: type[StoreMachine],
    kind: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    *,
    share: float = 0.5,
) -> None:
    """Run a machine on one storage, for its share of the profile's steps: half of them, for there are two storages."""
    for module, name, value in SMALL_PACKS:
        monkeypatch.setattr(module, name, value)
    server = request.getfixturevalue("postgres").url if kind == "postgres" else ""
    steps = int(MACHINE_STEPS[request.config.getoption("--profile")] * share)
    run_state_machine_as_test(
        type(f"{machine.__name__}On{kind}", (machine,), {"kind": kind, "server": server}),
        settings=settings(
            max_examples=steps // STEPS_PER_EXAMPLE,
            stateful_step_count=STEPS_PER_EXAMPLE,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
