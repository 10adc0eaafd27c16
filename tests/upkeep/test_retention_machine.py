"""Retention among all else that is done to LangGraph threads, also those with DeltaChannels, which are rebuilt."""

from datetime import timedelta

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from deltastore import Retention, apply_retention, plan_retention
from tests.graph_machine import ALL_THREADS, CALL, SPACES, GraphMachine
from tests.store_machine import run
from tests.vocabulary import picks

rules_of = st.builds(
    Retention,
    keep_last=st.integers(0, 4),
    keep_forks=st.sampled_from(["all", "latest"]),
    max_bytes=st.sampled_from([0, 0, 1, 2_000]),
    stray_writes=st.just(timedelta(0)),  # the clock is real
)


class RetainingMachine(GraphMachine):
    """The model takes the plan's word for what goes: what the rules say is tested elsewhere."""

    @rule(name=st.sampled_from(ALL_THREADS), pick=picks, rules=rules_of)
    def retain(self, name: str, pick: int, rules: Retention) -> None:
        store, saver = self.handle(pick), self._saver(pick)
        planned = plan_retention(store, rules, threads=[name])
        doomed: dict[str, set[str]] = {}
        dropped: set[str] = set()
        for thread in planned.threads:
            for one in thread.checkpoints:
                if not one.stays:
                    doomed.setdefault(one.namespace, set()).add(one.id)
            dropped = {call.namespace for call in thread.calls if not call.stays}
        for space in SPACES:
            known = self.graph.get((name, space), {})
            kept = {max(known, default=""), *self.tags.get((name, space), {}).values()}
            assert not kept & doomed.get(space, set())
        assert dropped <= {CALL}
        with self._same_histories(saver, name, doomed, dropped):
            report = apply_retention(store, rules, threads=[name])
            self._gone(name, doomed, dropped)
        assert (report.checkpoints, report.damaged) == (planned.going, [])
        assert apply_retention(store, rules, threads=[name]).changed == 0


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_machine(kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    run(RetainingMachine, kind, request, monkeypatch)
