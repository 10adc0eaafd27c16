"""A compaction changes no meaning, drops what nothing names, and stands in nobody's way."""

import pickle
import random
import secrets
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import deltastore
from deltastore import Store, check
from deltastore.codec import chunkrow, primitives
from deltastore.codec.primitives import plain_size, unseal
from deltastore.langgraph import DeltaSaver
from deltastore.log import keys, policy
from deltastore.storage.memory import MemoryStorage
from deltastore.upkeep import repacking
from deltastore.upkeep.compaction import compact
from deltastore.upkeep.shrinking import shrink
from tests.conftest import OpenStore
from tests.langgraph.deleting import agent, runs, where
from tests.raw import rows_of
from tests.upkeep.both_fronts import fill, plain_rows, small_packs, told


def put_error(saver: DeltaSaver, text: str, thread: str = "t", id_: str = "1") -> None:
    config = {"configurable": {"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": id_}}
    saver.put_writes(config, [("__error__", text)], "task")


def put_graph(saver: DeltaSaver, id_: str, parent: str | None, values: dict[str, Any], **more: Any) -> None:
    config: Any = {"configurable": {"thread_id": more.get("thread", "t"), "checkpoint_ns": ""}}
    if parent is not None:
        config["configurable"]["checkpoint_id"] = parent
    versions = {name: f"{id_}.{name}" for name in values}
    checkpoint: Any = {
        "v": 4,
        "id": id_,
        "ts": id_,
        "channel_values": values,
        "channel_versions": versions,
        "versions_seen": more.get("seen", {}),
    }
    saver.put(config, checkpoint, {"step": 1, **more.get("metadata", {})}, versions)


def errors(saver: DeltaSaver, id_: str = "1") -> list[Any]:
    found = saver.get_tuple({"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": id_}})
    assert found is not None
    return [value for _, channel, value in found.pending_writes or () if channel == "__error__"]


def chunk_heads(store: Store, series: int = 0) -> list[tuple[int, int, int]]:
    """Return of each chunk row: how many chunks it holds, its plain bytes, its stored bytes."""
    out = []
    for key, sealed in rows_of(store.log.storage).items():
        if any(key[:6]) and key[6:7] == b"c" and key[7] == series:
            head = chunkrow.decode_head(unseal(key, sealed), int.from_bytes(key[-6:], "big"))
            out.append((len(head.numbers), plain_size(head.body), len(sealed)))
    return out


def kinds(store: Store, kind: bytes, thread: int = 1) -> list[bytes]:
    return [key for key in rows_of(store.log.storage) if key.startswith(keys.thread(thread) + kind)]


# --- what stays, what goes


@pytest.mark.parametrize("erase", [True, False])
def test_everything_reads_as_before_and_a_second_run_changes_no_byte(store: Store, erase: bool) -> None:
    fill(store, 3)
    expected = told(store)
    report = compact(store, erase=erase, level=1)
    assert (report.threads, report.skipped) == (3, ())
    assert report.rows_after < report.rows_before
    assert report.bytes_after < report.bytes_before
    assert report.chunks_dropped > 0
    assert told(store) == expected
    rows = rows_of(store.log.storage)
    checked = check(store)
    assert (checked.garbage_chunks, checked.queued_threads) == (0, 0)
    again = compact(store, erase=erase, level=1)
    assert (again.chunks_dropped, again.bytes_before) == (0, again.bytes_after)
    assert rows_of(store.log.storage) == rows


def test_a_fresh_handle_and_one_that_knew_it_before_go_on(open_store: OpenStore) -> None:
    knowing, other = open_store(), open_store()
    fill(knowing)
    compact(other, erase=True, level=1)
    for number, store in enumerate((knowing, open_store(), knowing)):
        store.thread("n").append({"messages": [f"after {number}"]})
        runs(agent(DeltaSaver(store), steps=3), "g", [50 + number])
        assert store.thread("n").state()["messages"][-1] == f"after {number}"
        assert told(store) == told(open_store())


@pytest.mark.parametrize("seed", range(6))
def test_runs_of_any_size_are_stable_after_one_compaction(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repacking, "MAX_PACK_BYTES", 40_000)
    monkeypatch.setattr(repacking, "MAX_RECORD_PACK_BYTES", 6_000)
    monkeypatch.setattr(policy, "MAX_PACK_BYTES", 20_000)
    chance = random.Random(seed)
    with Store(MemoryStorage(), snapshot_frequency=5) as store:
        thread = store.thread("n")
        for _ in range(150):
            text = chance.choice([chance.randbytes(chance.randrange(6000)).hex(), "ab" * chance.randrange(9000), "x"])
            thread.append({"m": [text]}, metadata={"note": "n" * chance.randrange(400)})
        for checkpoint in list(thread.history())[:100:7]:
            thread.put_writes(checkpoint, {"m": [text * 2]}, task="t")
            if chance.random() < 0.5:
                thread.delete(checkpoint)
        compact(store, erase=True, level=1)
        rows = rows_of(store.log.storage)
        compact(store, erase=True, level=1)
        assert rows_of(store.log.storage) == rows
        assert all(plain <= 40_000 + 6 * count or count == 1 for count, plain, _ in chunk_heads(store))
        assert check(store).ok


def test_packs_hold_a_megabyte_at_most_and_small_rows_share_pages(store: Store) -> None:
    thread = store.thread("n")
    for number in range(60):
        thread.append({"m": [random.Random(number).randbytes(25_000).hex()]})
    for number in range(12):
        store.thread("small").append({"m": [random.Random(number).randbytes(200).hex()]})
    compact(store)
    found = chunk_heads(store)
    assert len(found) >= 4
    assert all(plain <= repacking.MAX_PACK_BYTES + 100 for _, plain, _ in found)
    small = [stored for count, _, stored in found if count < 12 and stored < 8192]
    assert len(small) > 1  # 12 chunks in several rows
    assert all(stored <= repacking.LEAF_BYTES + 60 for stored in small)


def test_ids_and_writes_move_into_the_packs_of_records(store: Store) -> None:
    saver = DeltaSaver(store)
    for number in range(20):
        put_graph(saver, f"{number:03}", f"{number - 1:03}" if number else None, {"n": number})
        saver.put_writes(
            {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": f"{number:03}"}},
            [("n", number + 1)],
            "task",
        )
    compact(store)
    assert [len(kinds(store, kind)) for kind in (b"r", b"i", b"w")] == [2, 2, 1]  # a pack, and the tip
    listed = list(saver.list({"configurable": {"thread_id": "t", "checkpoint_ns": ""}}))
    assert [found.checkpoint["channel_values"] for found in listed] == [{"n": n} for n in range(19, -1, -1)]
    assert [found.pending_writes for found in listed] == [[("task", "n", n + 1)] for n in range(19, -1, -1)]


def test_writes_that_came_after_packing_are_taken_in(store: Store) -> None:
    saver = DeltaSaver(store)
    for number in range(4):
        put_graph(saver, str(number), str(number - 1) if number else None, {"n": number})
    put_error(saver, "first " * 50)
    compact(store, erase=True)
    put_error(saver, "second " * 50)
    compact(store, erase=True)
    assert errors(saver) == ["second " * 50]
    assert kinds(store, b"w") == []
    assert check(store).garbage_chunks == 0
    assert not any(b"first first" in row for row in plain_rows(store))


def test_after_the_tip_was_deleted_the_last_pack_takes_in_writes_too(store: Store) -> None:
    saver = DeltaSaver(store)
    for number in range(4):
        put_graph(saver, str(number), str(number - 1) if number else None, {"n": number}, metadata={"run_id": number})
    put_error(saver, "first " * 50)
    compact(store, erase=True)
    saver.delete_for_runs(["3"])
    put_error(saver, "second " * 50)
    compact(store, erase=True)
    assert errors(saver) == ["second " * 50]
    assert not any(b"first first" in row for row in plain_rows(store))
    put_graph(saver, "9", "2", {"n": 9})
    assert check(store).ok


def test_no_chunk_stays_only_because_another_stands_on_it(store: Store) -> None:
    thread = store.thread("n")
    made = [thread.put_state({"doc": f"version {n} " + "line of text " * 2000}) for n in range(8)]
    for checkpoint in made[1:7:2]:
        thread.delete(checkpoint)
    assert any(b"version 3 " in row for row in plain_rows(store))  # others stand on it
    expected = [thread.state(at=checkpoint) for checkpoint in made[::2]]
    compact(store, erase=True, level=1)
    held = b"".join(plain_rows(store))
    assert [n for n in range(8) if f"version {n} ".encode() in held] == [0, 2, 4, 6, 7]
    assert [thread.state(at=checkpoint) for checkpoint in made[::2]] == expected
    for number in range(8, 12):
        thread.put_state({"doc": f"version {number} " + "line of text " * 2000})
    assert check(store).ok
    rows = rows_of(store.log.storage)
    compact(store, erase=True, level=1)
    compact(store, erase=True, level=1)
    assert check(store).chunks == 9
    assert rows_of(store.log.storage) != rows


def test_many_large_entries_of_versions_make_no_chain(store: Store) -> None:
    """Hidden channels with hundreds of channels: no chunk stands on one that stands on one, and so on without end."""
    saver = DeltaSaver(store)
    seen = {f"channel-{number:04}": f"{number:032}" for number in range(300)}
    for number in range(30):
        seen = seen | {f"channel-{number:04}": f"{number + 1000:032}"}
        put_graph(saver, f"{number:03}", f"{number - 1:03}" if number else None, {"n": number}, seen={"node": seen})
    assert check(store).ok
    compact(store, erase=True)
    found = saver.get_tuple({"configurable": {"thread_id": "t", "checkpoint_ns": ""}})
    assert found is not None
    assert found.checkpoint["versions_seen"] == {"node": seen}


def test_user_objects_are_never_decoded(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("a_module_that_goes")
    exec("class Gone:\n    def __init__(self, n): self.n = n\n", module.__dict__)
    sys.modules[module.__name__] = module
    module.Gone.__module__ = module.__name__

    class Opaque:
        """A serializer of its own, whose key is lost."""

        lost = False

        def dumps_typed(self, value: Any) -> tuple[str, bytes]:
            return "sealed", pickle.dumps(value)[::-1]

        def loads_typed(self, data: tuple[str, bytes]) -> Any:
            assert not self.lost
            return pickle.loads(data[1][::-1])

    serde = Opaque()
    store = open_store()
    saver = DeltaSaver(store, serde=serde)
    try:
        for number in range(6):
            put_graph(saver, str(number), str(number - 1) if number else None, {"n": module.Gone(number)})
            put_error(saver, f"error {number}", id_=str(number))
    finally:
        del sys.modules[module.__name__]
    serde.lost = True
    assert compact(store, erase=True).threads == 1
    assert check(store).ok
    serde.lost = False
    monkeypatch.setitem(sys.modules, module.__name__, module)
    listed = saver.list({"configurable": {"thread_id": "t", "checkpoint_ns": ""}})
    assert [found.checkpoint["channel_values"]["n"].n for found in listed] == list(range(5, -1, -1))


# --- others, between what it saw and what it does


@dataclass
class Meddling:
    """A storage where something happens before write transactions: before one of them, or each."""

    remote = False
    inner: Any
    meddle: Callable[[], object]
    at: int | None = None
    writes: int = 0

    @property
    def location(self) -> str:
        return self.inner.location

    def read(self) -> Any:
        return self.inner.read()

    def write(self, threads: Any = ()) -> Any:
        self.writes += 1
        if self.at in (None, self.writes):
            self.meddle()
        return self.inner.write(threads)

    def info(self) -> Any:
        return self.inner.info()

    def close(self) -> None:
        self.inner.close()


class Others:
    """A writer that has a dead chunk's bytes in its cache, and names it again; and puts new ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(repacking, "MAX_PACK_BYTES", 3_000)
        self.storage = MemoryStorage()
        self.store = Store(self.storage)
        self.saver = DeltaSaver(self.store)
        for number in range(8):
            self.put(number)
        self.dead = "dead, and back again " * 20
        for text in (self.dead, "alive"):
            put_error(self.saver, text, id_=self.last)
        self.meddled = 0

    def put(self, number: int) -> None:
        text = random.Random(number).randbytes(400).hex()
        self.last = f"{number:04}"
        put_graph(self.saver, self.last, f"{number - 1:04}" if number else None, {"n": text})

    def meddle(self) -> None:
        self.meddled += 1
        put_error(self.saver, self.dead if self.meddled % 2 else "alive", id_=self.last)
        self.put(100 + self.meddled)
        self.saver.put_writes(
            {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": self.last}},
            [("__error__", self.dead), ("n", [self.meddled])],
            "task",
        )

    def compare(self) -> None:
        report = check(self.store)
        assert report.ok, report.problems
        fresh = DeltaSaver(Store(self.storage))
        expected = list(self.saver.list({"configurable": {"thread_id": "t", "checkpoint_ns": ""}}))
        assert len(expected) == 8 + self.meddled
        assert repr(list(fresh.list({"configurable": {"thread_id": "t", "checkpoint_ns": ""}}))) == repr(expected)


@pytest.mark.parametrize("at", range(1, 12))
def test_what_others_put_before_one_of_its_transactions_stays(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    others = Others(monkeypatch)
    store = Store(Meddling(others.storage, others.meddle, at))
    report = compact(store, erase=True, level=1)
    others.compare()
    assert report.skipped == ()
    compact(others.store, erase=True, level=1)
    others.compare()
    assert check(others.store).garbage_chunks == 0


def test_others_that_put_before_each_transaction_let_it_end(monkeypatch: pytest.MonkeyPatch) -> None:
    others = Others(monkeypatch)
    report = compact(Store(Meddling(others.storage, others.meddle)), erase=True, level=1)
    assert report.skipped == ("t",)
    assert others.meddled > 5
    others.compare()


@pytest.mark.parametrize("what", ["compact", "delete", "copy", "prune"])
@pytest.mark.parametrize("at", [1, 2, 4])
def test_what_others_do_to_the_thread_meanwhile(what: str, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    others = Others(monkeypatch)

    def meddle() -> None:
        if what == "compact":
            compact(others.store, erase=True, level=1)
        elif what == "delete":
            others.saver.delete_thread("t")
        elif what == "copy":
            others.saver.copy_thread("t", "copy")
        else:
            others.saver.prune(["t"])

    store = Store(Meddling(others.storage, meddle, at))
    compact(store, erase=True, level=1)
    report = check(others.store)
    assert report.ok, report.problems
    found = list(others.saver.list({"configurable": {"thread_id": "t", "checkpoint_ns": ""}}))
    assert len(found) == {"delete": 0, "prune": 1}.get(what, 8)


def test_a_large_row_is_counted_as_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A put and a compaction that both leave one large row as it is don't both take it off the header's counts."""
    storage = MemoryStorage()
    first, second = Store(storage), Store(storage)
    with small_packs():
        base = first.thread("n").append({"m": ["x" * 10]})
        first.thread("n").append({"m": [random.Random(1).randbytes(700_000).hex()]}, at=base)
        first.thread("n").append({"m": ["y"]}, at=base)
        done = []

        def meddle() -> None:
            if not done:
                done.append(compact(second, level=1))

        Store(Meddling(storage, meddle, None)).thread("n").append({"m": ["z"]}, at=base)
    report = check(first)
    assert report.ok, report.problems


# --- bounded transactions


@dataclass
class Weighing(Meddling):
    """A storage that notes of each write transaction how many rows it touched, and how many bytes it wrote."""

    meddle: Callable[[], object] = lambda: None
    noted: list[tuple[int, int]] = field(default_factory=list)

    @contextmanager
    def write(self, threads: Sequence[int] = ()) -> Iterator[Any]:
        weight = [0, 0]
        with self.inner.write(threads) as tx:
            yield _WeighedWrites(tx, weight)
        self.noted.append((weight[0], weight[1]))


class _WeighedWrites:
    def __init__(self, tx: Any, weight: list[int]) -> None:
        self._tx = tx
        self._weight = weight

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)

    def put(self, key: bytes, value: bytes) -> None:
        self._weight[0] += 1
        self._weight[1] += len(value)
        self._tx.put(key, value)

    def delete(self, key: bytes) -> bool:
        self._weight[0] += 1
        return bool(self._tx.delete(key))


def test_each_transaction_replaces_one_pack(store: Store) -> None:
    saver = DeltaSaver(store)
    for number in range(120):
        text = random.Random(number).randbytes(30_000).hex()
        put_graph(saver, f"{number:04}", f"{number - 1:04}" if number else None, {"text": text, "n": number})
    weighing = Weighing(store.log.storage)
    compact(Store(weighing), erase=True, level=1)
    assert len(weighing.noted) > 5
    assert max(rows for rows, _ in weighing.noted) <= 2 * repacking.MAX_PACK_RECORDS + 4
    assert max(size for _, size in weighing.noted) <= repacking.MAX_PACK_BYTES + 10_000


# --- erasing


@pytest.mark.parametrize("compressed", [True, False])
def test_what_was_deleted_is_in_no_byte_of_the_directory(
    tmp_path: Path, compressed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compressed:
        monkeypatch.setattr(primitives, "MIN_COMPRESSED_BYTES", 1 << 30)
        monkeypatch.setattr(primitives, "MIN_ROW_COMPRESSED_BYTES", 1 << 30)
    texts: dict[str, str] = {}

    def text(name: str) -> str:
        return texts.setdefault(name, f"{name}-{secrets.token_hex(24)}")

    path = tmp_path / "store.ds"
    with small_packs(), deltastore.open(path, sync="none", snapshot_frequency=4) as store:
        saver = DeltaSaver(store)
        graph = agent(saver, steps=3)
        thread = store.thread("native")
        for number in range(6):
            name = "gone value" if number == 2 else "kept value"
            made = thread.put_state(
                {"doc": text(name) + "filler" * 50, "n": number, "big": str(number) * 9000 + text(name)},
                metadata={"note": text(name.replace("value", "metadata"))},
            )
            thread.put_writes(
                made, {"w": text(name.replace("value", "write"))}, task=text(name.replace("value", "task"))
            )
            if number == 2:
                doomed = made
                thread.tag(text("gone tag"), made)
        for number in range(3):
            store.thread(text("gone thread")).append({"m": [text("gone message")], "n": number})
        runs(graph, text("gone graph"), range(2))
        runs(graph, "g", range(2))
        gone_run = {"configurable": {"thread_id": "g"}, "metadata": {"run_id": "doomed", "why": text("gone run")}}
        graph.invoke({"plain": [], "log": [], "facts": {}}, gone_run)
        runs(graph, "g", range(3, 5))
        graph.update_state(where("g"), {"facts": {"settled": 1}})
        latest = saver.get_tuple({"configurable": {"thread_id": "g", "checkpoint_ns": ""}})
        older = list(saver.list({"configurable": {"thread_id": "g", "checkpoint_ns": ""}}))[5]
        assert latest is not None
        for found in (latest, older):
            for name in ("gone overwritten", "gone packed"):
                saver.put_writes(found.config, [("__error__", text(name))], "task")
                if name == "gone packed":
                    compact(store, erase=True, level=1)
                saver.put_writes(found.config, [("__error__", text("kept error"))], "task")
        assert _missing(path, store, texts, "gone", compressed) == set()

        thread.delete(doomed)
        store.delete(text("gone thread"))
        saver.delete_thread(text("gone graph"))
        saver.prune(["g"], erase=True, graph=graph)
        expected = {name for name in texts if name.startswith("kept")}
        compact(store, erase=True, level=1)
        shrink(store)
        assert _found(path, store, texts) == expected
        report = check(store)
        assert (report.garbage_chunks, report.garbage_records, report.ok) == (0, 0, True)


def _found(path: Path, store: Store, texts: dict[str, str]) -> set[str]:
    """Return the names of the texts that are in any file, as it is or decompressed."""
    held = [found.read_bytes() for found in path.rglob("*") if found.is_file()] + list(plain_rows(store))
    return {name for name, text in texts.items() if any(text.encode() in part for part in held)}


def _missing(path: Path, store: Store, texts: dict[str, str], kind: str, compressed: bool) -> set[str]:
    """Return the texts that the search misses while they are there: it must find what it is to miss later."""
    return {name for name in texts if name.startswith(kind)} - _found(path, store, texts) - {"gone overwritten"}


# --- as reported


def test_deleting_a_conversation_removes_its_text(tmp_path: Path) -> None:
    """alkem-io/alkemio#1972, aegra PR #499: a deleted conversation's text stayed behind in the store's tables."""
    secret = f"my name is {secrets.token_hex(20)}"
    with deltastore.open(tmp_path / "store.ds") as store:
        saver = DeltaSaver(store)
        graph = agent(saver, steps=2)
        for thread in ("kept", "doomed"):
            said = {"plain": [secret if thread == "doomed" else "hello"], "log": [], "facts": {}, "messages": []}
            graph.invoke(said, where(thread))
        kept = saver.get_tuple(where("kept"))
        assert _found(tmp_path, store, {"text": secret}) == {"text"}
        saver.delete_thread("doomed")
        assert saver.get_tuple(where("doomed")) is None
        compact(store, erase=True)
        shrink(store)
        assert _found(tmp_path, store, {"text": secret, "thread": "doomed"}) == set()
        assert repr(saver.get_tuple(where("kept"))) == repr(kept)


def test_unchanged_values_cost_nothing_and_space_goes_back(tmp_path: Path) -> None:
    """pizza-bot#58: a state copied into every checkpoint, superseded writes for ever, a file that never shrinks."""
    document = random.Random(1).randbytes(100_000).hex()
    with deltastore.open(tmp_path / "store.ds", sync="none") as store:
        saver = DeltaSaver(store)
        put_graph(saver, "0000", None, {"doc": document, "n": 0})
        before = check(store).chunk_bytes
        for number in range(1, 40):
            put_graph(saver, f"{number:04}", f"{number - 1:04}", {"doc": document, "n": number})
        assert check(store).chunk_bytes - before < 40 * 600
        for number in range(20):
            put_error(saver, random.Random(number).randbytes(100_000).hex(), id_="0039")
        assert check(store).garbage_bytes > 19 * 200_000
        full = store.info().file_bytes
        compact(store)
        shrink(store)
        assert check(store).garbage_bytes == 0
        assert store.info().file_bytes < full / 6
        assert errors(saver, "0039") == [random.Random(19).randbytes(100_000).hex()]


def test_a_long_thread_becomes_few_rows(store: Store) -> None:
    """deer-flow#4189: checkpoints without bound slow everything down; compacted, a thread is a few packs."""
    saver = DeltaSaver(store)
    for number in range(300):
        put_graph(
            saver, f"{number:04}", f"{number - 1:04}" if number else None, {"m": [f"m{n}" for n in range(number)]}
        )
    saver.prune(["t"])
    put_graph(saver, "9999", "0299", {"m": ["end"]})
    compact(store, erase=True)
    assert check(store).garbage_chunks == 0
    assert len(rows_of(store.log.storage)) < 40


def test_all_data_is_compacted_whatever_limit_a_reader_uses(store: Store) -> None:
    """openai-agents-python#5010: a compaction that saw only the items within a reader's limit lost the others."""
    thread = store.thread("t")
    for number in range(200):
        thread.append({"items": [f"item {number}"]})
    assert len(list(thread.history(limit=10))) == 10
    compact(store, erase=True)
    assert thread.state()["items"] == [f"item {number}" for number in range(200)]
    assert len(list(thread.history())) == 200
    assert len(list(thread.history(limit=10))) == 10
