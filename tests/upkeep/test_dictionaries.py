"""Dictionaries: trained, used, replaced and removed, while everything reads as before."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

import deltastore
from deltastore import Store, check
from deltastore.codec.primitives import unseal
from deltastore.errors import ChecksumError, ConflictError, InvalidInputError
from deltastore.langgraph import DeltaSaver
from deltastore.log import dictionaries, keys
from deltastore.storage.memory import MemoryStorage
from deltastore.upkeep import training
from deltastore.upkeep.compaction import compact
from tests.langgraph.deleting import agent, runs
from tests.raw import Interrupted, everything, put_raw, rows_of

CANARY = "the sealed tender names Brigadoon Shipping as the lowest bidder"
WORDS = "harbour crane quay ledger manifest tonnage pilot berth lantern cargo tide signal rope hull".split()


def state(number: int, step: int) -> dict[str, Any]:
    chance = random.Random(number * 100 + step)
    return {
        "messages": [
            {
                "role": "assistant",
                "content": " ".join(chance.choices(WORDS, k=6)),
                "usage_metadata": {"input_tokens": n},
            }
            for n in range(step + 1)
        ],
        "profile": {"customer_of_the_harbour": number, "status": "open", "note": CANARY if step == 2 else ""},
        f"path/{CANARY}": {"content": CANARY},
    }


def fill(store: Store, threads: int = 40, steps: int = 3) -> None:
    for number in range(threads):
        thread = store.thread(f"thread {number}")
        for step in range(steps):
            thread.put_state(state(number, step), metadata={"source": "loop", "step": step, "note": CANARY})


def contents(store: Store) -> list[bytes]:
    with store.log.storage.read() as tx:
        return [stored.content for stored in dictionaries.all_of(tx)]


def needed(store: Store) -> list[int]:
    """Return the dictionaries that rows need, one entry a row."""
    rows = rows_of(store.log.storage)
    threads = {key: row for key, row in rows.items() if any(key[: keys.THREAD_BYTES])}
    return [number for key, row in threads.items() for number in dictionaries.needed_by(key, unseal(key, row))]


def runs_of(text: str) -> Iterator[bytes]:
    data = text.encode()
    return (data[start : start + 12] for start in range(len(data) - 11))


class TestTraining:
    def test_a_dictionary_of_shape_holds_no_run_of_what_was_written(self, store: Store) -> None:
        fill(store)
        before = everything(store)
        report = compact(store, level=3)
        (content,) = contents(store)
        assert "saves" in report.dictionary
        assert not any(run in content for run in runs_of(CANARY))
        assert b"customer_of_" not in content
        assert b"usage_metadata" in content
        assert needed(store)
        assert everything(store) == before
        assert check(store).ok

    def test_a_dictionary_of_content_is_made_only_when_asked_for(self, store: Store) -> None:
        fill(store)
        before = everything(store)
        small = compact(store, level=3).bytes_after
        report = compact(store, level=3, dictionary="content")
        (content,) = contents(store)  # the other is gone, for no row needs it any more
        assert any(run in content for run in runs_of(CANARY))
        assert report.bytes_after < small
        assert everything(store) == before
        assert compact(store, level=3).dictionary == "the dictionary in use stays (content)"

    def test_graphs_are_shortened_too(self, store: Store) -> None:
        saver = DeltaSaver(store)
        for number in range(12):
            runs(agent(saver, steps=2), f"graph {number}", range(2))
        configs = [found.config for found in saver.list(None)]
        before = [saver.get_tuple(config) for config in configs]
        compact(store, level=3)
        assert len(contents(store)) == 1
        assert [saver.get_tuple(config) for config in configs] == before
        runs(agent(saver, steps=2), "graph 0", range(2, 4))
        assert check(store).ok

    def test_few_threads_or_rows_without_anything_in_common_get_none(self) -> None:
        store = Store(MemoryStorage())
        fill(store, threads=7)
        assert "7 threads, of at least 8" in compact(store, level=1).dictionary
        store = Store(MemoryStorage())
        for number in range(20):
            store.thread(str(number)).put_state({"n": random.Random(number).randbytes(400)})
        assert "no dictionary" in compact(store, level=1).dictionary
        assert contents(store) == []

    def test_an_unknown_kind_is_refused(self, store: Store) -> None:
        with pytest.raises(InvalidInputError, match="shape, content, none"):
            compact(store, dictionary="shapes")

    def test_damaged_threads_teach_nothing_and_keep_nobody_from_compacting(self) -> None:
        store = Store(MemoryStorage())
        fill(store)
        row = keys.thread(3) + b"r"
        key = next(key for key in rows_of(store.log.storage) if key.startswith(row))
        put_raw(store.log.storage, key, b"damaged")
        report = compact(store, level=1)
        assert list(report.damaged) == ["thread 2"]
        assert report.threads == 39
        assert len(contents(store)) == 1


class TestUse:
    def test_new_rows_are_shortened_from_then_on(self, store: Store) -> None:
        fill(store)
        compact(store, level=3)
        before = len(needed(store))
        thread = store.thread("new")
        made = [thread.put_state(state(99, step)) for step in range(3)]
        thread.put_writes(made[-1], {"messages": [{"role": "tool", "content": " ".join(WORDS)}]}, task="t")
        assert len(needed(store)) >= before + 3
        assert [thread.state(at=checkpoint) for checkpoint in made] == [state(99, step) for step in range(3)]

    def test_it_takes_another_handle_to_see_it_too(self, tmp_path: Any) -> None:
        with deltastore.open(tmp_path / "s.ds") as store, deltastore.open(tmp_path / "s.ds") as other:
            fill(store, threads=20)
            before = everything(other)
            compact(other, level=3)
            assert everything(store) == before
            store.thread("new").put_state(state(5, 1))
            assert other.thread("new").state() == state(5, 1)
        with deltastore.open(tmp_path / "s.ds") as store:
            assert store.thread("new").state() == state(5, 1)

    def test_a_put_prepared_with_a_dictionary_that_went_out_of_use_is_prepared_again(self) -> None:
        storage = Interrupted(MemoryStorage())
        store = Store(storage)
        fill(store, threads=20)
        compact(store, level=3)
        other = Store(storage.inner)

        def replace() -> None:
            compact(other, level=3, dictionary="none")

        for put in (
            lambda: store.thread("thread 3").put_state(state(99, 2)),
            lambda: store.thread("thread 4").put_writes(
                next(iter(store.thread("thread 4").history())), {"messages": [" ".join(WORDS * 3)]}, task="t"
            ),
        ):
            training.apply(store, training.Training("shape", " ".join(WORDS).encode(), "of these words"))
            storage.after_snapshot.append(replace)
            put()
            assert contents(store) == [b""]
            assert check(store).ok
        assert store.thread("thread 3").state() == state(99, 2)

    def test_copies_of_rows_keep_the_dictionary_that_they_need(self) -> None:
        storage = Interrupted(MemoryStorage())
        store = Store(storage)
        fill(store, threads=20)
        compact(store, level=3)
        training.apply(store, training.Training("shape", None, "none any more"))
        store.copy("thread 1", "copy")  # of rows that need what is out of use
        assert store.thread("copy").state() == store.thread("thread 1").state()
        assert training.remove_unneeded(store) == 0
        other = Store(storage.inner)
        storage.after_snapshot.append(lambda: compact(other, level=3, dictionary="none"))
        with pytest.raises(ConflictError, match="copy again"):
            store.copy("thread 1", "another")
        store.copy("thread 1", "another")
        assert (contents(store), check(store).ok) == ([b""], True)

    def test_a_dictionary_isnt_removed_where_a_copy_came_between(self) -> None:
        storage = Interrupted(MemoryStorage())
        store = Store(storage)
        fill(store, threads=20)
        compact(store, level=3)
        with storage.read() as tx:
            (stored,) = dictionaries.all_of(tx)
        training.apply(store, training.Training("shape", None, "none any more"))
        with storage.write() as tx:
            (seen,) = dictionaries.all_of(tx)
            dictionaries.touch(tx, {stored.number})
            assert dictionaries.remove(tx, [seen]) == 0
        assert len(contents(store)) == 1

    def test_without_its_dictionary_a_row_is_damage(self) -> None:
        store = Store(MemoryStorage())
        fill(store)
        compact(store, level=3)
        put_raw(store.log.storage, keys.dictionary(1), None)
        fresh = Store(store.log.storage)
        with pytest.raises(ChecksumError, match="dictionary 1, which is missing"):
            everything(fresh)
        assert not check(fresh).ok


class TestErasing:
    def test_text_that_only_a_dictionary_still_holds_goes(self, store: Store) -> None:
        fill(store)
        compact(store, level=3, dictionary="content")
        for found in list(store.threads()):
            thread = store.thread(found.name)
            for checkpoint in list(thread.history()):
                thread.delete(checkpoint)
            thread.put_state({"messages": [{"role": "user", "content": " ".join(WORDS)}]})
        before = everything(store)
        with pytest.raises(InvalidInputError, match="Compact all threads"):
            compact(store, threads=["thread 1"], erase=True)
        compact(store, erase=True, level=3)
        assert not any(run in content for run in runs_of(CANARY) for content in contents(store))
        assert everything(store) == before

    def test_none_takes_it_away_from_all_rows(self, store: Store) -> None:
        fill(store)
        compact(store, level=3)
        before = everything(store)
        assert compact(store, level=3, dictionary="none").dictionary == "no dictionary, as asked for"
        assert (needed(store), contents(store)) == ([], [b""])
        assert everything(store) == before
        store.thread("another").put_state(state(1, 2))
        assert compact(store, level=3).dictionary == "no dictionary, as asked for"
        assert needed(store) == []
