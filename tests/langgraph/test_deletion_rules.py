"""What deletions promise of single checkpoints: late puts, ids put again, erasing, tags, and what is refused."""

import asyncio
import itertools
import uuid
from collections.abc import Callable
from operator import add
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import START, StateGraph
from langgraph.types import Overwrite

from deltastore import CheckpointNotFoundError, InvalidIdError, InvalidInputError, Store, ThreadNotFoundError, check
from deltastore.langgraph import DeltaSaver
from tests.langgraph.comparing import checkpoint, config, difference
from tests.langgraph.deleting import (
    agent,
    hidden,
    history,
    joined,
    log_at,
    of_runs,
    put,
    runs,
    say,
    where,
    without,
)
from tests.langgraph.test_saver import Xor
from tests.raw import rows_of

OpenStore = Callable[..., Store]
STORES = pytest.mark.parametrize(
    ("open_store", "frequency"), [("memory", 1), ("lmdb", 3), ("memory", 50)], indirect=["open_store"]
)


def same(expected: Any, actual: Any) -> None:
    found = difference(expected, actual)
    assert found is None, found


def rows(saver: DeltaSaver) -> dict[bytes, bytes]:
    return rows_of(saver.store.log.storage)


# --- late puts --------------------------------------------------------------------------------


@STORES
def test_a_late_put_begins_a_new_thread(open_store: OpenStore, frequency: int) -> None:
    """langgraph#7206: after a thread was deleted, a kept config makes a new one; nothing of the old one comes back."""
    saver = DeltaSaver(open_store(snapshot_frequency=frequency))
    for id_, parent in (("1", None), ("2", "1")):
        put(saver, id_, parent, plain=["secret"])
        say(saver, id_, "secret")
    saver.tag(config("t"), "secret")
    saver.delete_thread("t")
    say(saver, "2", "late")
    assert saver.get_tuple(config("t")) is None
    put(saver, "3", "2", plain=["new"])
    for reader in (saver, DeltaSaver(open_store())):
        assert [found.checkpoint["id"] for found in reader.list(config("t"))] == ["3"]
        assert log_at(reader, "3") == (None, [])
        assert reader.tags(config("t")) == {}
        assert reader.get_tuple(config("t", "2")) is None
    put(saver, "2")
    found = saver.get_tuple(config("t", "2"))
    assert found is not None
    assert [value for _, _, value in found.pending_writes or ()] == [["late"]]


@STORES
@pytest.mark.parametrize("how", ["prune", "runs"])
def test_a_late_put_on_a_deleted_checkpoint_tells_what_is_lost(open_store: OpenStore, frequency: int, how: str) -> None:
    """langgraph#7206: ordinary channels come in full; what delta channels had before is an error, and never empty."""
    saver = DeltaSaver(open_store(snapshot_frequency=frequency))
    for number in range(5):
        put(saver, f"{number}", f"{number - 1}" if number else None, run=f"r{number}", plain=[number])
        say(saver, f"{number}", f"w{number}")
    if how == "prune":
        saver.prune(["t"])
    else:
        saver.delete_for_runs(["r0", "r1", "r2", "r3"])
    assert log_at(saver, "4") == (None, [["w0"], ["w1"], ["w2"], ["w3"]])
    say(saver, "2", "late")
    put(saver, "5", "2", plain=[2, "late"])
    put(saver, "6", "5", plain=[2, "late", 6])
    say(saver, "5", "w5")
    for reader in (saver, DeltaSaver(open_store())):
        assert log_at(reader, "4") == (None, [["w0"], ["w1"], ["w2"], ["w3"]])
        for id_, plain in (("5", [2, "late"]), ("6", [2, "late", 6])):
            found = reader.get_tuple(config("t", id_))
            assert found is not None
            assert found.checkpoint["channel_values"] == {"plain": plain}
            with pytest.raises(CheckpointNotFoundError, match=r"'t'.*'5'.*'2'.*deleted"):
                log_at(reader, id_)
    put(saver, "7", "6", log=_DeltaSnapshot(["healed"]))
    say(saver, "7", "w7")
    put(saver, "8", "7")
    assert log_at(saver, "8") == (_DeltaSnapshot(["healed"]), [["w7"]])
    saver.prune(["t"])
    assert log_at(DeltaSaver(open_store()), "8") == (_DeltaSnapshot(["healed"]), [["w7"]])


@STORES
@pytest.mark.parametrize("heal", ["snapshot", "overwrite", None])
def test_a_run_that_is_deleted_under_way_ends_and_never_reads_as_empty(
    open_store: OpenStore, frequency: int, heal: str | None
) -> None:
    """langgraph#7206 on a graph: the run goes on, the next one is refused by name, until something states the value."""
    saver = DeltaSaver(open_store(snapshot_frequency=frequency))

    class State(TypedDict):
        log: Annotated[list[str], DeltaChannel(joined, snapshot_frequency=4 if heal == "snapshot" else 1000)]
        plain: Annotated[list[str], add]

    def work(state: dict[str, Any]) -> dict[str, Any]:
        number = len(state["plain"])
        entry: Any = [f"step {number}"]
        if number == 3:
            saver.delete_for_runs(["doomed"])
        whole = Overwrite([*state["log"], *entry]) if heal == "overwrite" and number == 4 else entry
        return {"log": whole, "plain": entry}

    builder = StateGraph(State)
    for name in "abcdef":
        builder.add_node(name, work)
    builder.add_edge(START, "a")
    for one, other in itertools.pairwise("abcdef"):
        builder.add_edge(one, other)
    graph = builder.compile(checkpointer=saver)
    ran = graph.invoke({"log": ["in"], "plain": ["in"]}, where("t", "doomed"), durability="sync")
    assert ran["log"] == ran["plain"] == ["in", *(f"step {number}" for number in range(1, 7))]
    found = saver.get_tuple(config("t"))
    assert found is not None
    assert found.checkpoint["channel_values"]["plain"] == ran["plain"]
    reopened = builder.compile(checkpointer=DeltaSaver(open_store()))
    if heal is None:
        for one in (graph, reopened):
            for refused in (
                lambda one=one: one.get_state(where()),
                lambda one=one: one.invoke({"log": ["more"], "plain": ["more"]}, where()),
                lambda one=one: list(one.get_state_history(where())),
            ):
                with pytest.raises(CheckpointNotFoundError, match=r"deleted.*delta channels is lost"):
                    refused()
    else:
        assert reopened.get_state(where()).values == ran
        more = reopened.invoke({"log": ["more"], "plain": ["more"]}, where())
        assert more["log"] == more["plain"]
        assert more["log"][:8] == [*ran["log"], "more"]


# --- ids put again ----------------------------------------------------------------------------


@STORES
@pytest.mark.parametrize("needed", [True, False])
def test_a_deleted_parent_put_again_is_no_ancestor(open_store: OpenStore, frequency: int, needed: bool) -> None:
    """What a child had of its parent isn't replaced by what now has the parent's id, as often as it comes."""
    store = open_store(snapshot_frequency=frequency)
    saver = DeltaSaver(store)
    put(saver, "1", log=["seed"])
    say(saver, "1", "w1")
    put(saver, "2", "1")
    if needed:
        say(saver, "2", "w2")
    put(saver, "3", "2", plain=[3])
    say(saver, "3", "w3")
    put(saver, "4", "3")
    before = {id_: log_at(saver, id_) for id_ in ("3", "4")}
    assert before["4"] == (["seed"], [["w1"], *([["w2"]] if needed else []), ["w3"]])

    def unchanged() -> None:
        for reader in (saver, DeltaSaver(open_store())):
            assert {id_: log_at(reader, id_) for id_ in ("3", "4")} == before

    for turn in range(3):
        store.thread("t").delete("2")
        unchanged()
        say(saver, "2", f"other {turn}")
        unchanged()
        put(saver, "2", "1" if turn % 2 else None, **({"log": [f"other {turn}"]} if turn == 1 else {}))
        say(saver, "2", f"more {turn}")
        unchanged()
        found = saver.get_tuple(config("t", "3"))
        assert found is not None
        assert found.parent_config == config("t", "2")
    store.thread("t").delete("1")
    unchanged()
    put(saver, "1", log=["another seed"])
    say(saver, "1", "another")
    unchanged()
    saver.prune(["t"])
    assert log_at(saver, "4") == before["4"]


# --- erasing ----------------------------------------------------------------------------------


@STORES
@pytest.mark.parametrize(("how", "serde"), [("prune", None), ("runs", None), ("prune", EncryptedSerializer(Xor()))])
def test_erasing_leaves_nothing_hidden(open_store: OpenStore, frequency: int, serde: Any, how: str) -> None:
    saver = DeltaSaver(open_store(snapshot_frequency=frequency), serde=serde)
    graph, twin = agent(saver, steps=5, frequency=1000), agent(InMemorySaver(), steps=5, frequency=1000)
    for one in (graph, twin):
        runs(one, "t", range(3))
    before = history(graph, "t", each=False)

    def tidy(**options: Any) -> None:
        if how == "prune":
            saver.prune(["t"], erase=True, **options)
        else:
            saver.delete_for_runs(["t-0", "t-1"], erase=True, **options)

    untouched = rows(saver)
    with pytest.raises(InvalidInputError, match=r"'t'.*\['facts', 'log', 'messages'\].*graph=…"):
        tidy()
    narrow = StateGraph(TypedDict("Narrow", {"log": Annotated[list[str], DeltaChannel(joined)]}))
    narrow.add_node("work", lambda _: {})
    narrow.add_edge(START, "work")
    with pytest.raises(InvalidInputError, match=r"'t'.*no channels \['facts', 'messages'\]"):
        tidy(graph=narrow.compile())
    assert rows(saver) == untouched
    tidy(graph=graph)
    assert hidden(saver.store) == 0
    gone = before.keys() - {max(before)} if how == "prune" else of_runs(before, "t-0", "t-1")
    expected = without(before, gone)
    for reader in (graph, agent(DeltaSaver(open_store(), serde=serde), steps=5, frequency=1000)):
        same(expected, history(reader, "t"))
    untouched = rows(saver)
    tidy()
    assert rows(saver) == untouched
    same(runs(twin, "t", [3, 4]), runs(graph, "t", [3, 4]))
    after = history(graph, "t", each=False)
    same(expected, {id_: after[id_] for id_ in expected})


@STORES
def test_erasing_takes_no_graph_where_nothing_is_lacking(open_store: OpenStore, frequency: int) -> None:
    saver = DeltaSaver(open_store(snapshot_frequency=frequency))
    for number in range(6):
        put(saver, f"{number}", f"{number - 1}" if number else None, run=f"r{number % 2}", log=[number], plain=number)
        say(saver, f"{number}", f"w{number}")
    put(saver, "6", "5", log=[6], plain=6)
    for call in (
        lambda: saver.delete_for_runs(["r1"], erase=True),
        lambda: saver.prune(["t", "unknown"], erase=True),
    ):
        call()
        assert hidden(saver.store) == 0
        found = saver.get_tuple(config("t"))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"log": [6], "plain": 6}


@STORES
def test_a_tagged_parent_and_its_child_are_each_given_their_own_value(open_store: OpenStore, frequency: int) -> None:
    """A child that is a delta must not inherit what its parent's channel was folded to."""
    saver = DeltaSaver(open_store(snapshot_frequency=frequency))
    graph = agent(saver, steps=6, frequency=1000)
    runs(graph, "t", [0])
    before = history(graph, "t", each=False)
    latest, parent, *_ = sorted(before, reverse=True)
    middle, older = sorted(before)[4:2:-1]
    for id_ in (parent, middle, older):
        saver.tag(config("t", id_), f"at {id_}")
    assert before[latest][0]["log"] != before[parent][0]["log"] != before[middle][0]["log"]
    expected = {id_: before[id_] for id_ in (latest, parent, middle, older)}
    saver.prune(["t"], erase=True, graph=graph)
    assert hidden(saver.store) == 0
    for reader in (graph, agent(DeltaSaver(open_store()), steps=6, frequency=1000)):
        same(expected, history(reader, "t"))
    for id_ in (parent, middle, older):
        assert saver.untag(config("t"), f"at {id_}")
    saver.prune(["t"], erase=True)
    same({latest: before[latest]}, history(graph, "t"))


@STORES
@pytest.mark.parametrize("tagged", [True, False])
def test_whoever_read_a_checkpoint_before_is_given_its_history_after(
    open_store: OpenStore, frequency: int, tagged: bool
) -> None:
    """A graph reads a checkpoint and then its history: what is erased or deleted in between never reads as empty."""
    saver = DeltaSaver(open_store(snapshot_frequency=frequency))
    graph = agent(saver, steps=6, frequency=1000)
    runs(graph, "t", [0])
    read = graph.get_state(where())
    parent, *_, early = [found.config for found in graph.get_state_history(where())][1:4]
    if tagged:
        saver.tag(early, "early")

    def log() -> Any:
        found = saver.get_delta_channel_history(config=read.config, channels=["log"])["log"]
        channel = DeltaChannel(joined, list).from_checkpoint(found.get("seed"))
        channel.replay_writes(found["writes"])
        return channel.get()

    assert log() == read.values["log"]
    saver.prune(["t"], erase=True, graph=graph)
    assert log() == read.values["log"]
    assert log() == graph.get_state(where()).values["log"]
    with pytest.raises(CheckpointNotFoundError, match=r"'t'.*deleted"):
        saver.get_delta_channel_history(config=parent, channels=["log"])
    runs(graph, "t", [1])
    assert log() == read.values["log"]
    saver.prune(["t"])
    with pytest.raises(CheckpointNotFoundError, match=r"'t'.*deleted"):
        log()


# --- arguments --------------------------------------------------------------------------------


def test_what_is_refused_changes_nothing(open_store: OpenStore) -> None:
    saver = DeltaSaver(open_store())
    for number in range(3):
        for thread in ("t", "u", "r"):
            put(saver, f"{number}", f"{number - 1}" if number else None, thread=thread)
    before = rows(saver)
    for call, what in (
        (lambda: saver.prune("t"), "thread_ids 't'"),
        (lambda: saver.prune("t", strategy="delete"), "thread_ids 't'"),
        (lambda: saver.prune(b"t"), "thread_ids"),
        (lambda: saver.delete_for_runs("r"), "run_ids 'r'"),
        (lambda: saver.delete_for_runs(""), "run_ids ''"),
        (lambda: asyncio.run(saver.aprune("t")), "thread_ids 't'"),
        (lambda: asyncio.run(saver.adelete_for_runs("r")), "run_ids 'r'"),
        (lambda: saver.prune(["t"], strategy="all"), "'all'.*'keep_latest' or 'delete'"),
        (lambda: saver.prune([], strategy=""), "''.*'keep_latest' or 'delete'"),
        (lambda: saver.prune(["t", None]), "None"),
        (lambda: saver.prune(["t", ""]), "thread"),
        (lambda: saver.prune(["t", 1.5], strategy="delete"), "1.5|float"),
        (lambda: saver.prune(["t", True], strategy="delete"), "True|bool"),
    ):
        with pytest.raises(InvalidInputError, match=what):
            call()
    for call in (
        lambda: saver.prune([]),
        lambda: saver.prune(["unknown", 7, uuid.UUID(int=1)]),
        lambda: saver.prune(["unknown"], strategy="delete"),
        lambda: saver.prune(["unknown"], erase=True),
        lambda: saver.delete_for_runs([]),
        lambda: saver.delete_for_runs(["unknown"], erase=True),
        lambda: saver.copy_thread("unknown", "t"),
    ):
        call()
    assert rows(saver) == before


def test_threads_may_be_named_by_ints_and_uuids(open_store: OpenStore) -> None:
    saver = DeltaSaver(open_store())
    number, same_id = 7, uuid.UUID(int=1)
    for thread in (number, same_id):
        for id_, parent in (("1", None), ("2", "1")):
            put(saver, id_, parent, thread=thread)
    saver.prune([number, str(same_id)])
    assert [found.checkpoint["id"] for found in saver.list(None)] == ["2", "2"]
    asyncio.run(saver.acopy_thread(number, uuid.UUID(int=2)))
    asyncio.run(saver.aprune(["7", same_id], strategy="delete"))
    assert [found.name for found in saver.threads()] == [str(uuid.UUID(int=2))]
    asyncio.run(saver.adelete_for_runs(["r"]))
    assert list(saver.list(None)) == []


# --- tags -------------------------------------------------------------------------------------


@STORES
def test_a_tag_names_one_checkpoint_and_keeps_it(open_store: OpenStore, frequency: int) -> None:
    saver = DeltaSaver(open_store(snapshot_frequency=frequency))
    for number in range(6):
        put(saver, f"{number}", f"{number - 1}" if number else None, run=f"r{number}", plain=[number])
        say(saver, f"{number}", f"w{number}")
    assert saver.tags(config("t")) == {}
    assert saver.tag(config("t"), "here") == config("t", "5")
    assert saver.tag(config("t", "2"), "here") == config("t", "2")
    saver.tag(config("t", "2"), "too")
    saver.tag(config("t", "3"), "there")
    before = {id_: (saver.get_tuple(config("t", id_)), log_at(saver, id_)) for id_ in ("2", "3", "5")}
    reopened = DeltaSaver(open_store())
    named = {"here": "2", "there": "3", "too": "2"}
    assert reopened.tags(config("t")) == {name: config("t", id_) for name, id_ in named.items()}
    reopened.copy_thread("t", "copy")
    saver.prune(["t", "copy"])
    for reader in (saver, DeltaSaver(open_store())):
        assert [found.checkpoint["id"] for found in reader.list(config("t"))] == ["5", "3", "2"]
        assert {id_: (reader.get_tuple(config("t", id_)), log_at(reader, id_)) for id_ in before} == before
        assert reader.tags(config("copy")) == {name: config("copy", id_) for name, id_ in named.items()}
        assert [found.checkpoint["id"] for found in reader.list(config("copy"))] == ["5", "3", "2"]
    assert saver.untag(config("t"), "too")
    assert not saver.untag(config("t"), "too")
    saver.prune(["t"])
    assert [found.checkpoint["id"] for found in saver.list(config("t"))] == ["5", "3", "2"]
    saver.delete_for_runs(["r2"])
    assert saver.tags(config("t")) == {"there": config("t", "3")}
    assert saver.tags(config("copy")) == {"there": config("copy", "3")}
    saver.store.thread("t").delete("3")
    assert saver.tags(config("t")) == {}
    put(saver, "3", "5")
    assert saver.tags(config("t")) == {}
    assert saver.tags(config("unknown")) == saver.tags(config("t", ns="unknown")) == {}
    assert not saver.untag(config("unknown"), "x")


def test_tags_belong_to_a_namespace_and_need_a_checkpoint(open_store: OpenStore) -> None:
    saver = DeltaSaver(open_store())
    put(saver, "1")
    made = checkpoint("i", {}, {})
    saver.put(config("t", ns="inner"), made, {"parents": {}}, {})
    saver.tag(config("t", ns="inner"), "x")
    assert saver.tags(config("t")) == {}
    assert saver.tags(config("t", ns="inner")) == {"x": config("t", "i", "inner")}
    before = rows(saver)
    for where_, error in (
        (config("unknown"), ThreadNotFoundError),
        (config("unknown", "1"), ThreadNotFoundError),
        (config("t", "unknown"), CheckpointNotFoundError),
        (config("t", "i"), CheckpointNotFoundError),
        (config("t", ns="unknown"), CheckpointNotFoundError),
    ):
        with pytest.raises(error):
            saver.tag(where_, "x")
    for name in ("", None, 5, b"x", "x" * 65_537):
        for call in (saver.tag, saver.untag):
            with pytest.raises(InvalidIdError):
                call(config("t"), name)
    assert rows(saver) == before
    assert not saver.untag(config("t"), "x")


def test_a_tag_is_any_text(open_store: OpenStore) -> None:
    saver = DeltaSaver(open_store())
    for number in range(4):
        put(saver, f"{number}", f"{number - 1}" if number else None)
    names = ["before-deploy", "\0", "a\0b", "a", "😀", "é", "e\u0301", "\udc80", " ", "x" * 60_000, "\n/:|"]
    for number, name in enumerate(names):
        saver.tag(config("t", f"{number % 3}"), name)
    saver.prune(["t"])
    expected = {name: config("t", f"{number % 3}") for number, name in enumerate(names)}
    for reader in (saver, DeltaSaver(open_store())):
        assert reader.tags(config("t")) == expected
    for name in names:
        assert saver.untag(config("t"), name)
        del expected[name]
        assert saver.tags(config("t")) == expected
    saver.prune(["t"])
    assert check(saver.store).checkpoints == 1
