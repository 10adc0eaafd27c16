"""Many native checkpoints deleted at once: what stays reads as before, and knows its way up."""

import pytest

from deltastore import Reducer, Store, check
from deltastore.log import choosing, deleting, names
from deltastore.storage.memory import MemoryStorage
from tests.raw import states


def longest(value: str, write: str) -> str:
    return max(value, write, key=len)


def delete_all_but(store: Store, kept: list[str]) -> deleting.Outcome:
    choose = choosing.all_but(lambda _: choosing.Kept({1: kept}, ()))
    return names.in_write(store.log.storage, (), lambda tx: deleting.delete(tx, "t", choose))


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("frequency", [1, 5, 50])
def test_what_stays_reads_as_before(frequency: int, own: bool) -> None:
    store = Store(
        MemoryStorage(),
        snapshot_frequency=frequency,
        reducers=[Reducer("longest", 1, longest, str)],
        channels={"own": "longest"} if own else None,
    )
    thread = store.thread("t")
    line = [thread.append({"log": [number], "own": "x" * (number % 7)}).id for number in range(120)]
    fork = thread.append({"log": ["fork"]}, at=line[10]).id
    before, parents = states(thread), {found.id: found.parent_id for found in thread.history()}
    kept = [line[3], *line[40:44], line[77], line[119], fork]
    outcome = delete_all_but(store, kept)
    assert outcome.deleted == 121 - len(kept)
    assert states(thread) == {id_: before[id_] for id_ in sorted(kept, reverse=True)}
    assert {found.id: found.parent_id for found in thread.history()} == {id_: parents[id_] for id_ in kept}
    report = check(store)
    assert report.ok, report.problems
    assert report.garbage_records == 0
    assert bool(report.hidden) == (own and frequency > 1)
    delete_all_but(store, kept[-2:])
    assert states(thread) == {id_: before[id_] for id_ in sorted(kept[-2:], reverse=True)}
    thread.append({"log": ["on"]}, at=line[119])
    assert check(store).ok
