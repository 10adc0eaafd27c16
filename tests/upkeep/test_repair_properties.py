"""Repair of stores damaged at random: what could be read is read as before, and nothing else is."""

import random
from functools import cache
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from deltastore import CorruptionError, Retention, Store, apply_retention, check, compact, plan_repair, repair
from deltastore.langgraph import DeltaSaver
from deltastore.log import rows
from deltastore.storage.memory import MemoryStorage
from deltastore.ulid import to_text
from deltastore.upkeep import training
from tests.langgraph.comparing import checkpoint, config
from tests.raw import rows_of
from tests.upkeep import both_fronts
from tests.upkeep.damaging import GONE, MISSING, Open, Place, Read, copy_of, damage, opener, places, read


def expect_repaired(found: dict[bytes, bytes], open_: Open, chance: random.Random, count: int, channels: Any) -> None:
    """Damage a copy of a store, repair it, and compare all that it gives with what it gave."""
    whole = open_(copy_of(found))
    fronts = places(whole)
    expected = {place: read(whole, place, fronts[place], channels) for place in fronts}
    storage = copy_of(found)
    done = damage(storage, chance, count)
    told = "\n".join(done)
    try:
        damaged = open_(copy_of(rows_of(storage)))
    except CorruptionError:  # a registered reducer's name
        before = dict.fromkeys(fronts, MISSING)
    else:
        before = {place: read(damaged, place, fronts[place], channels) for place in fronts}
    store = Store(storage)  # as the command line has it
    report = repair(store)
    if report.left and all("has no name" in what for what in report.left):
        assert not check(store).ok, told  # both rows of a name are lost: nothing but a backup tells it
        return
    assert report.ok, (told, report)
    checked = check(store)
    assert checked.ok, (told, checked.problems)
    assert plan_repair(store).is_empty, (told, plan_repair(store).actions)
    store = open_(storage)
    after = places(store)
    renamed = {place for place in after if place not in fronts}
    assert all("recovered-" in name or "recovered-" in space for name, space, _ in renamed), (told, renamed)
    # what a deletion had not yet collected may come back where its queue row was lost, but under no name of its own
    ids = {id_ for _, _, id_ in fronts} | {to_text(key[-16:]) for key in found if key[6:7] == b"r"}
    assert {id_ for _, _, id_ in after} <= ids, told
    fresh = open_(copy_of(rows_of(storage)))
    writes_removed = any(" b'w' " in line for line in done)
    for place in fronts:
        got = read(fresh, place, fronts[place], channels) if place in after else MISSING
        expect_no_less(place, before[place], got, expected[place], told, writes_removed)
    for name, _, id_ in after.keys() - fronts.keys():
        assert id_ in ids, (told, name)
    expect_puts(store, after, told)


def expect_no_less(place: Place, before: Read, got: Read, expected: Read, told: str, writes_removed: bool) -> None:
    told = f"{place}\n{told}\n{before}\n{got}\n{expected}"
    if got.is_whole:
        assert got.state == expected.state, told
        assert got.writes <= expected.writes, told
        if not writes_removed:
            assert got.history == expected.history or got.history.startswith("raised"), told
    if before.is_whole:
        assert before.state == expected.state, told
        assert got.state == before.state, told
        assert got.writes == before.writes, told
    assert got.is_whole or got.state in (GONE, "raised checksum"), told


def expect_puts(store: Store, after: dict[Place, int], told: str) -> None:
    for name in {name for name, _, _ in after}:
        spaces = {
            space: front for thread, space, front in ((p[0], p[1], f) for p, f in after.items()) if thread == name
        }
        for space, front in spaces.items():
            if front == rows.NATIVE:
                thread = store.thread(name, namespace=space)
                state = thread.state()
                put = thread.append({"new": ["new"]})
                assert repr(thread.state(at=put)) == repr({**state, "new": [*state.get("new", []), "new"]}), told
            else:
                saver = DeltaSaver(store)
                latest: Any = saver.get_tuple(config(name, ns=space))
                versions = latest.checkpoint["channel_versions"] | {"new": "9"}
                values = latest.checkpoint["channel_values"] | {"new": ["new"]}
                put = saver.put(latest.config, checkpoint("zz-new", versions, values), {"step": 99}, {"new": "9"})
                saver.put_writes(put, [("new", ["more"])], "task of its own")
                found = saver.get_tuple(config(name, ns=space))
                assert found is not None, told
                assert repr(found.checkpoint["channel_values"]) == repr(values), told
                assert found.parent_config == latest.config, told
    assert check(store).ok, (told, check(store).problems)
    report = apply_retention(store, Retention(keep_last=2, keep_forks="latest"))
    assert not report.damaged, (told, report.damaged)
    compact(store, erase=True, level=1)
    checked = check(store)
    assert checked.ok, (told, checked.problems)
    assert (checked.quarantined, checked.garbage_chunks) == (0, 0), told


@cache
def filled(compacted: bool) -> dict[bytes, bytes]:
    """Return a store's rows; compacted, they need a dictionary, and later ones another."""
    storage = MemoryStorage()
    store = Store(storage, snapshot_frequency=4)
    both_fronts.fill(store)
    if compacted:
        for content in (b"source loop step parents messages", b"writes checkpoint text nth messages"):
            training.apply(store, training.Training("shape", content * 3, "as a test wants it"))
            compact(store, level=3, threads=["g", "docs"])
            store.thread("docs").put_state({"doc": both_fronts.document(3), "n": content.decode()})
    return rows_of(storage)


@given(st.integers(0, 2**32), st.integers(1, 6), st.booleans())
def test_a_store_of_both_fronts(seed: int, count: int, compacted: bool) -> None:
    found = filled(compacted)
    expect_repaired(found, opener(snapshot_frequency=4), random.Random(seed), count, both_fronts.DELTA_CHANNELS)
