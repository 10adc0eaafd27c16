"""Anchor or delta, and when to pack."""

import pytest

from deltastore.log import policy
from deltastore.log.policy import Decision, Reason, decide


@pytest.mark.parametrize(
    ("named", "stored", "tip", "depth", "frequency", "decision"),
    [
        (False, False, False, 0, 50, Decision(True, Reason.FIRST)),
        (True, False, False, 0, 50, Decision(True, Reason.PARENT_MISSING)),
        (True, True, False, 0, 50, Decision(True, Reason.FORK)),
        (True, True, False, 49, 50, Decision(True, Reason.FORK)),
        (True, True, True, 0, 50, Decision(False, Reason.CHANGED)),
        (True, True, True, 48, 50, Decision(False, Reason.CHANGED)),
        (True, True, True, 49, 50, Decision(True, Reason.DUE)),
        (True, True, True, 50, 50, Decision(True, Reason.DUE)),
        (True, True, True, 0, 1, Decision(True, Reason.DUE)),
        (True, True, True, 0, 2, Decision(False, Reason.CHANGED)),
        (True, True, True, 1, 2, Decision(True, Reason.DUE)),
        (True, True, True, 9_998, policy.MAX_SNAPSHOT_FREQUENCY, Decision(False, Reason.CHANGED)),
    ],
)
def test_an_anchor_is_written_at_the_start_at_a_fork_and_when_due(
    named: bool, stored: bool, tip: bool, depth: int, frequency: int, decision: Decision
) -> None:
    found = decide(
        parent_named=named, parent_stored=stored, parent_is_tip=tip, parent_depth=depth, snapshot_frequency=frequency
    )
    assert found == decision


@pytest.mark.parametrize("frequency", [1, 2, 3, 50])
def test_of_puts_in_a_row_each_nth_is_an_anchor(frequency: int) -> None:
    depth, anchors = 0, []
    for put in range(4 * frequency):
        made = decide(
            parent_named=put > 0,
            parent_stored=True,
            parent_is_tip=True,
            parent_depth=depth,
            snapshot_frequency=frequency,
        )
        depth = 0 if made.anchor else depth + 1
        anchors += [put] * made.anchor
    assert anchors == [0, frequency, 2 * frequency, 3 * frequency]


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
