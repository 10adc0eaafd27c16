"""Anchor or delta, and when to pack."""

import pytest

from deltastore.log import policy
from deltastore.log.policy import Decision, Reason, decide


@pytest.mark.parametrize(
    ("named", "stored", "tip", "depth", "spans", "frequency", "decision"),
    [
        (False, False, False, 0, None, 50, Decision(True, Reason.FIRST)),
        (True, False, False, 0, None, 50, Decision(True, Reason.PARENT_MISSING)),
        (True, True, False, 0, None, 50, Decision(True, Reason.FORK)),
        (True, True, False, 49, None, 50, Decision(True, Reason.FORK)),
        (True, True, True, 0, None, 50, Decision(False, Reason.CHANGED)),
        (True, True, True, 48, None, 50, Decision(False, Reason.CHANGED)),
        (True, True, True, 49, None, 50, Decision(True, Reason.DUE)),
        (True, True, True, 50, None, 50, Decision(True, Reason.DUE)),
        (True, True, True, 0, None, 1, Decision(True, Reason.DUE)),
        (True, True, True, 0, None, 2, Decision(False, Reason.CHANGED)),
        (True, True, True, 1, None, 2, Decision(True, Reason.DUE)),
        (True, True, True, policy.MIN_SMALL - 2, 0, 50, Decision(False, Reason.CHANGED)),
        (True, True, True, policy.MIN_SMALL - 1, 0, 50, Decision(True, Reason.SMALL)),
        (True, True, True, 20, 22 * policy.SMALL_SPANS, 50, Decision(False, Reason.CHANGED)),
        (True, True, True, 21, 22 * policy.SMALL_SPANS, 50, Decision(True, Reason.SMALL)),
        (True, True, True, 49, 60 * policy.SMALL_SPANS, 50, Decision(True, Reason.DUE)),
        (True, True, True, 9_998, None, policy.MAX_SNAPSHOT_FREQUENCY, Decision(False, Reason.CHANGED)),
    ],
)
def test_an_anchor_is_written_at_the_start_at_a_fork_when_due_and_while_it_is_little(
    named: bool, stored: bool, tip: bool, depth: int, spans: int | None, frequency: int, decision: Decision
) -> None:
    found = decide(
        parent_named=named,
        parent_stored=stored,
        parent_is_tip=tip,
        parent_depth=depth,
        parent_spans=spans,
        snapshot_frequency=frequency,
    )
    assert found == decision


@pytest.mark.parametrize(("spans", "frequency", "each"), [(None, 50, 50), (10_000, 50, 50), (0, 3, 3), (0, 50, 4)])
def test_of_puts_in_a_row_each_nth_is_an_anchor(spans: int | None, frequency: int, each: int) -> None:
    depth, anchors = 0, []
    for put in range(4 * each):
        made = decide(
            parent_named=put > 0,
            parent_stored=True,
            parent_is_tip=True,
            parent_depth=depth,
            parent_spans=spans,
            snapshot_frequency=frequency,
        )
        depth = 0 if made.anchor else depth + 1
        anchors += [put] * made.anchor
    assert anchors == [0, each, 2 * each, 3 * each]


@pytest.mark.parametrize(
    ("rows", "size", "pack"),
    [
        (0, 0, False),
        (1, policy.MIN_LOOSE_BYTES, False),  # one row stays as it is
        (2, policy.MIN_LOOSE_BYTES - 1, False),
        (2, policy.MIN_LOOSE_BYTES, True),
        (policy.MIN_LOOSE_ROWS - 1, 0, False),
        (policy.MIN_LOOSE_ROWS, 0, True),
    ],
)
def test_chunks_are_packed_by_rows_or_bytes(rows: int, size: int, pack: bool) -> None:
    assert policy.should_pack_chunks(rows, size) is pack


def test_records_are_packed_by_how_many_stand_before_the_anchor() -> None:
    assert not policy.should_pack_records(policy.MIN_LOOSE_ROWS - 1)
    assert policy.should_pack_records(policy.MIN_LOOSE_ROWS)
