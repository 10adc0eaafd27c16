"""What a handle tells of what it did."""

import random
import statistics

from hypothesis import given
from hypothesis import strategies as st

from deltastore import Store
from deltastore.langgraph import DeltaSaver
from deltastore.log import policy
from deltastore.log.metering import Meter
from deltastore.storage.memory import MemoryStorage
from tests.langgraph.comparing import checkpoint, config


@given(st.lists(st.floats(1e-6, 1e4), min_size=1))
def test_percentiles_are_right_to_within_a_bucket(durations: list[float]) -> None:
    meter = Meter()
    for seconds in durations:
        meter.record(seconds)
    found = meter.timing()
    ranked = sorted(durations)
    assert found.count == len(durations)
    assert found.max_ms == ranked[-1] * 1e3
    for share, told in ((0.5, found.p50_ms), (0.99, found.p99_ms)):
        true = next(each for place, each in enumerate(ranked, 1) if place >= share * len(ranked)) * 1e3
        assert true * 0.999 <= told <= true * 1.26 + 0.001


def test_odd_durations_do_no_harm() -> None:
    meter = Meter()
    for seconds in (0.0, -1.0, 1e12):
        meter.record(seconds)
    assert meter.timing().count == 3


def test_a_store_tells_what_its_handle_did(store: Store) -> None:
    before = store.stats().activity
    assert (before.puts.count, before.gets.count, before.commits, before.put_bytes) == (0, 0, 0, 0)
    thread = store.thread("t")
    made = [thread.append({"log": [random.Random(n).randbytes(100)]}) for n in range(20)]
    thread.put_writes(made[-1], {"log": ["pending"]}, task="a")
    for at in made:
        thread.state(at=at)
    found = store.stats()
    activity = found.activity
    assert (activity.puts.count, activity.put_writes.count, activity.gets.count) == (20, 1, 20)
    assert activity.commits == 21
    assert (activity.puts_per_commit, activity.largest_commit) == (1, 1)
    assert activity.put_bytes > 20 * 100
    assert activity.longest_chain == policy.MIN_SMALL
    assert activity.cache_hits
    assert activity.cache_misses
    assert activity.cache_bytes > 0
    assert 0 < activity.puts.p50_ms <= activity.puts.p99_ms <= activity.puts.max_ms
    assert found.storage.used_bytes == store.info().used_bytes
    assert 0 <= found.map_use <= 1


def test_savers_count_too() -> None:
    store = Store(MemoryStorage())
    saver = DeltaSaver(store)
    saver.put(config("t"), checkpoint("1", {"n": "1"}, {"n": 1}), {"step": 0}, {"n": "1"})
    assert saver.get_tuple(config("t")) is not None
    activity = store.stats().activity
    assert (activity.puts.count, activity.gets.count) == (1, 1)


def test_the_mean_is_the_mean() -> None:
    meter = Meter()
    durations = [0.001, 0.002, 0.006]
    for seconds in durations:
        meter.record(seconds, size=10)
    assert abs(meter.timing().mean_ms - statistics.mean(durations) * 1e3) < 1e-9
    assert meter.bytes == 30
