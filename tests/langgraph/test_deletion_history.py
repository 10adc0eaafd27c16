"""What histories say after deletions: tags of calls, parents put late and again, and that nothing needless stays."""

import asyncio
import itertools
import operator
import uuid
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.channels.ephemeral_value import EphemeralValue
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

from deltastore import CheckpointNotFoundError, FrontMismatchError, Store, check
from deltastore.langgraph import DeltaSaver
from tests.langgraph.comparing import checkpoint, config
from tests.langgraph.deleting import agent, folding, hidden, listed, log_at, put, runs, say, where
from tests.raw import rows_of, states

OpenStore = Callable[..., Store]
STORES = pytest.mark.parametrize(
    ("open_store", "frequency"), [("memory", 1), ("lmdb", 3), ("memory", 50)], indirect=["open_store"]
)
SEED = _DeltaSnapshot(["seed"])
CALL = "call:1"


def saver_of(open_store: OpenStore, frequency: int) -> DeltaSaver:
    return DeltaSaver(open_store(snapshot_frequency=frequency))


def whole(saver: DeltaSaver) -> None:
    report = check(saver.store)
    assert report.ok, report.problems


# --- tags of calls ----------------------------------------------------------------------------


@STORES
@pytest.mark.parametrize("tagged", ["c1", "c2", "c3"])
def test_a_tag_on_any_checkpoint_of_an_old_call_keeps_it(open_store: OpenStore, frequency: int, tagged: str) -> None:
    saver = saver_of(open_store, frequency)
    put(saver, "1")
    for id_, parent in (("c1", None), ("c2", "c1"), ("c3", "c2")):
        put(saver, id_, parent, ns=CALL, root="1", plain=id_)
        say(saver, id_, f"w {id_}", ns=CALL)
    put(saver, "2", "1")
    put(saver, "other", ns="call:2", root="1")
    saver.tag(config("t", tagged, CALL), "keep")
    before = {id_: (saver.get_tuple(config("t", id_, CALL)), log_at(saver, id_, ns=CALL)) for id_ in (tagged, "c3")}
    for _ in range(2):
        saver.prune(["t"])
        for reader in (saver, DeltaSaver(open_store())):
            assert listed(reader) == ["2"]
            assert listed(reader, ns="call:2") == []
            assert listed(reader, ns=CALL) == sorted(before, reverse=True)
            assert reader.tags(config("t", ns=CALL)) == {"keep": config("t", tagged, CALL)}
            for id_, found in before.items():
                assert (reader.get_tuple(config("t", id_, CALL)), log_at(reader, id_, ns=CALL)) == found
    saver.untag(config("t", ns=CALL), "keep")
    saver.prune(["t"])
    assert listed(saver, ns=CALL) == []


# --- parents put late, and again --------------------------------------------------------------


@STORES
@pytest.mark.parametrize("again", ["1", "2", "both"])
def test_parents_put_late_may_be_deleted_and_put_again(open_store: OpenStore, frequency: int, again: str) -> None:
    """A child is led to a parent that is the last record by now: putting that again mustn't take it away."""
    saver = saver_of(open_store, frequency)
    put(saver, "3", "2")
    say(saver, "2", "w2")
    put(saver, "2", "1")
    put(saver, "1", log=SEED)
    saver.store.thread("t").delete("2")
    assert log_at(saver, "3") == (SEED, [["w2"]])
    for id_ in ("1", "2") if again == "both" else (again,):
        put(saver, id_, **({"log": SEED} if id_ == "1" else {"log": _DeltaSnapshot(["other"])}))
    for reader in (saver, DeltaSaver(open_store())):
        assert log_at(reader, "3") == (SEED, [["w2"]])
    whole(saver)
    for _ in range(2):
        saver.prune(["t"])
        whole(saver)
        for reader in (saver, DeltaSaver(open_store())):
            assert listed(reader) == ["3"]
            assert log_at(reader, "3") == (SEED, [["w2"]])


@STORES
@pytest.mark.parametrize("how", ["one", "runs", "prune"])
def test_a_parent_deleted_twice_leaves_its_childs_history(open_store: OpenStore, frequency: int, how: str) -> None:
    """Lost while the parent was gone, there with the parent put again: and so it stays, whatever becomes of that."""
    saver = saver_of(open_store, frequency)
    put(saver, "1", run="doomed", log=SEED)
    put(saver, "2", "1", log=SEED)
    saver.store.thread("t").delete("1")
    put(saver, "4", "1")
    with pytest.raises(CheckpointNotFoundError, match=r"'4'.*'1'.*deleted"):
        log_at(saver, "4")
    put(saver, "1", run="doomed", log=SEED)
    say(saver, "1", "w1")
    assert log_at(saver, "4") == (SEED, [["w1"]])
    for turn in range(3):
        match how:
            case "one":
                saver.store.thread("t").delete("1")
            case "runs":
                saver.delete_for_runs(["doomed"])
            case _:
                saver.prune(["t"])
        for reader in (saver, DeltaSaver(open_store())):
            assert log_at(reader, "4") == (SEED, [["w1"]])
            assert "1" not in listed(reader)
        put(saver, "1", run="doomed", log=_DeltaSnapshot([turn]))
        say(saver, "1", f"other {turn}")
        assert log_at(saver, "4") == (SEED, [["w1"]])
        whole(saver)


@STORES
def test_of_a_gap_that_is_closed_nothing_stays(open_store: OpenStore, frequency: int) -> None:
    """With the parent put again nothing is lost: of a child that has nothing of its own, nothing is needed."""
    saver = saver_of(open_store, frequency)
    put(saver, "1", log=SEED)
    saver.store.thread("t").delete("1")
    put(saver, "2", "1")
    put(saver, "3", "2")
    put(saver, "1", log=SEED)
    say(saver, "1", "w1")
    saver.store.thread("t").delete("2")
    assert hidden(saver.store) == 0
    assert log_at(saver, "3") == (SEED, [["w1"]])
    saver.store.thread("t").delete("1")
    assert hidden(saver.store) == 1
    assert log_at(DeltaSaver(open_store()), "3") == (SEED, [["w1"]])


@STORES
def test_an_empty_parent_deleted_and_put_again_is_no_ancestor(open_store: OpenStore, frequency: int) -> None:
    """Nothing is kept of a parent that had nothing; what has its id by then is another one."""
    saver = saver_of(open_store, frequency)
    put(saver, "1")
    put(saver, "2", "1")
    say(saver, "2", "w2")
    put(saver, "3", "2")
    saver.store.thread("t").delete("1")
    assert hidden(saver.store) == 0
    for turn in range(2):
        put(saver, "1", log=_DeltaSnapshot(["new"]))
        say(saver, "1", f"new {turn}")
        for reader in (saver, DeltaSaver(open_store())):
            assert log_at(reader, "2") == (None, [])
            assert log_at(reader, "3") == (None, [["w2"]])
        put(saver, "4", "1")
        saver.store.thread("t").delete("1")
        put(saver, "1")
        assert log_at(saver, "4") == (_DeltaSnapshot(["new"]), [[f"new {turn}"]])
    saver.prune(["t"])
    assert log_at(saver, None) == (_DeltaSnapshot(["new"]), [["new 1"]])


@STORES
@pytest.mark.parametrize("order", ["123", "321"])
@pytest.mark.parametrize("deletion", ["one", "runs", "prune"])
def test_ids_put_again_in_a_chain(open_store: OpenStore, frequency: int, deletion: str, order: str) -> None:
    """Parents taken over, each by a later put of its id: the way over them stays as long as it is gone."""
    saver = saver_of(open_store, frequency)
    parents = {"1": None, "2": "1", "3": "2"}
    for turn in range(3):
        for id_, parent in parents.items():
            put(saver, id_, parent, run="kept", log=_DeltaSnapshot(["earlier"]), plain=turn)
    put(saver, "4", "3", run="kept")
    for id_ in order:
        put(saver, id_, parents[id_], run="kept", **({"log": SEED} if id_ == "1" else {}))
        say(saver, id_, f"w{id_}")
    put(saver, "0", run="doomed")
    for id_ in "1234":
        saver.tag(config("t", id_), f"kept {id_}")
    expected = (SEED, [["w1"], ["w2"], ["w3"]])
    assert log_at(saver, "4") == expected
    for _ in range(3):
        match deletion:
            case "one":
                saver.store.thread("t").delete("0")
            case "runs":
                saver.delete_for_runs(["doomed"])
            case _:
                saver.prune(["t"])
        whole(saver)
        for reader in (saver, DeltaSaver(open_store())):
            assert log_at(reader, "4") == expected
            assert [log_at(reader, id_) for id_ in "321"] == [(SEED, expected[1][:2]), (SEED, [["w1"]]), (None, [])]
        put(saver, "0", run="doomed")
        put(saver, "9", "4", run="doomed")
    for id_ in order:
        saver.store.thread("t").delete(id_)
        whole(saver)
        assert log_at(saver, "4") == expected


# --- gaps -------------------------------------------------------------------------------------


def gap(saver: DeltaSaver, written: str) -> None:
    """Put checkpoints after a deleted one: what comes before "3" is lost."""
    put(saver, "1", log=SEED)
    put(saver, "2", "1", log=SEED)
    saver.store.thread("t").delete("1")
    for id_, parent in (("3", "1"), ("4", "3"), ("5", "4"), ("6", "5")):
        put(saver, id_, parent, run=f"r{id_}")
        if id_ in written:
            say(saver, id_, f"w{id_}")


@STORES
@pytest.mark.parametrize("written", ["", "3", "4", "345"])
@pytest.mark.parametrize("how", ["one", "runs", "prune"])
def test_a_gap_outlives_what_was_put_after_it(open_store: OpenStore, frequency: int, how: str, written: str) -> None:
    """A lost history is an error at all that comes after it, and never empty, whatever is deleted."""
    saver = saver_of(open_store, frequency)
    gap(saver, written)
    left = ["3", "4", "5", "6"]
    deletions: list[Callable[[], None]] = [
        *(lambda id_=id_: saver.store.thread("t").delete(id_) for id_ in "354"),
    ]
    if how == "runs":
        deletions = [lambda id_=id_: saver.delete_for_runs([f"r{id_}"]) for id_ in "354"]
    elif how == "prune":
        deletions = [lambda: saver.prune(["t"])] * 2
    for deletion in deletions:
        deletion()
        left = [id_ for id_ in left if id_ in listed(saver)]
        for reader in (saver, DeltaSaver(open_store())):
            for id_ in left:
                with pytest.raises(CheckpointNotFoundError, match=r"'t'.*deleted.*history of its delta channels"):
                    log_at(reader, id_)
    assert left == ["6"]
    put(saver, "1", log=SEED)  # it was lost for good: this is another one, or the one that they were put after
    put(saver, "7", "6", log=_DeltaSnapshot(["healed"]))
    say(saver, "7", "w7")
    put(saver, "8", "7")
    saver.prune(["t"])
    assert hidden(saver.store) == 1
    assert log_at(saver, None) == (_DeltaSnapshot(["healed"]), [["w7"]])


@STORES
@pytest.mark.parametrize("written", ["", "4", "345"])
def test_a_gap_can_not_be_erased(open_store: OpenStore, frequency: int, written: str) -> None:
    """There is nothing to fold; once a snapshot is there, it goes as everything does."""
    saver = saver_of(open_store, frequency)
    gap(saver, written)
    before = rows_of(saver.store.log.storage)
    with pytest.raises(CheckpointNotFoundError, match=r"'t'.*deleted.*history of its delta channels"):
        saver.prune(["t"], erase=True, graph=folding())
    assert rows_of(saver.store.log.storage) == before
    put(saver, "7", "6", log=_DeltaSnapshot(["healed"]))
    saver.prune(["t"], erase=True)
    assert hidden(saver.store) == 0
    assert listed(saver) == ["7"]


def test_a_channel_that_began_after_a_gap_has_its_whole_history(open_store: OpenStore) -> None:
    """The checkpoint whose parent was deleted has no version of it, so nothing of it can have been lost."""
    saver = DeltaSaver(open_store())
    saver.put(config("t"), checkpoint("1", {"log": "1"}, {"log": SEED}), {}, {"log": "1"})
    saver.store.thread("t").delete("1")
    saver.put(config("t", "1"), checkpoint("2", {"log": "2"}, {}), {}, {"log": "2"})
    saver.put_writes(config("t", "2"), [("notes", ["began"])], "task")
    saver.put(config("t", "2"), checkpoint("3", {"log": "2", "notes": "3"}, {}), {}, {"notes": "3"})
    for gone in (None, "2"):  # the gap is told by a checkpoint, and then by what is left of it
        if gone is not None:
            saver.store.thread("t").delete(gone)
            saver.put_writes(config("t", "3"), [("late", ["later"])], "task")
            versions = {"log": "2", "notes": "3", "late": "4"}
            saver.put(config("t", "3"), checkpoint("4", versions, {}), {}, {"late": "4"})
        for reader in (saver, DeltaSaver(open_store())):
            for id_, channel, value in (("3", "notes", "began"), ("4", "notes", "began"), ("4", "late", "later")):
                if id_ == "4" and gone is None:
                    continue
                found = reader.get_delta_channel_history(config=config("t", id_), channels=[channel])
                assert [each for _, _, each in found[channel]["writes"]] == [[value]]
                assert "seed" not in found[channel]
            for channels in (["log"], ["log", "notes"]):
                with pytest.raises(CheckpointNotFoundError, match="history of its delta channels"):
                    reader.get_delta_channel_history(config=config("t", "3"), channels=channels)
        assert check(saver.store).ok


# --- calls ------------------------------------------------------------------------------------


@STORES
@pytest.mark.parametrize("how", ["one", "runs"])
def test_calls_go_with_a_deleted_root(open_store: OpenStore, frequency: int, how: str) -> None:
    saver = saver_of(open_store, frequency)
    for root, parent in (("1", None), ("2", "1"), ("3", "2")):
        put(saver, root, parent, run=f"r{root}")
        for place in range(2):
            ns = f"call:{root}{place}"
            put(saver, "c1", ns=ns, root=root, run="other")
            put(saver, "c2", "c1", ns=f"{ns}|inner:1", root=root, run="other")
        put(saver, f"k{root}", ns="kept", root=root, run="other")
    saver.tag(config("t", "c1", "call:20"), "goes too")
    if how == "one":
        saver.store.thread("t").delete("2")
    else:
        saver.delete_for_runs(["r2"])
    for reader in (saver, DeltaSaver(open_store())):
        assert listed(reader) == ["3", "1"]
        for place in range(2):
            for ns, id_ in ((f"{place}", "c1"), (f"{place}|inner:1", "c2")):
                assert listed(reader, ns=f"call:2{ns}") == []
                assert reader.tags(config("t", ns=f"call:2{ns}")) == {}
                for root in "13":
                    assert listed(reader, ns=f"call:{root}{ns}") == [id_]
        assert listed(reader, ns="kept") == ["k3", "k2", "k1"]
        assert [found.checkpoints for found in reader.threads()] == [13]
    namespaces = [key for key in rows_of(saver.store.log.storage) if key[:6] != bytes(6) and key[6:7] == b"n"]
    assert len(namespaces) == 10


@STORES
def test_a_put_into_a_call_that_is_gone_tells_what_is_lost(open_store: OpenStore, frequency: int) -> None:
    """The call went with a root checkpoint that was never stored: it is all that this deletion took."""
    saver = saver_of(open_store, frequency)
    put(saver, "c1", ns=CALL, root="1", log=SEED)
    say(saver, "c1", "w1", ns=CALL)
    put(saver, "2")
    saver.prune(["t"])
    assert listed(saver) == ["2"]
    assert listed(saver, ns=CALL) == []
    put(saver, "c2", "c1", ns=CALL, root="2")
    put(saver, "c3", "c2", ns=CALL, root="2")
    for reader in (saver, DeltaSaver(open_store())):
        for id_ in ("c2", "c3", None):
            with pytest.raises(CheckpointNotFoundError, match=r"'t'.*'c2'.*'c1'.*deleted"):
                log_at(reader, id_, ns=CALL)
    put(saver, "c4", "c3", ns=CALL, root="2", log=SEED)
    put(saver, "c5", "c4", ns=CALL, root="2")
    assert log_at(saver, None, ns=CALL) == (SEED, [])


@STORES
def test_the_history_of_a_call_that_is_gone_raises(open_store: OpenStore, frequency: int) -> None:
    """A graph reads a checkpoint and then its history: what went in between never reads as empty."""
    saver = saver_of(open_store, frequency)
    put(saver, "1")
    put(saver, "c1", ns=CALL, root="1", log=SEED)
    put(saver, "c2", "c1", ns=CALL, root="1")
    assert saver.get_tuple(config("t", "c2", CALL)) is not None
    put(saver, "2", "1")
    saver.prune(["t"])
    with pytest.raises(CheckpointNotFoundError, match=r"'t'.*'c2'.*deleted"):
        log_at(saver, "c2", ns=CALL)


@STORES
def test_a_call_stored_before_its_root_is_kept(open_store: OpenStore, frequency: int) -> None:
    saver = saver_of(open_store, frequency)
    put(saver, "1", run="doomed")
    put(saver, "c1", ns=CALL, root="2", log=SEED)
    say(saver, "c1", "w1", ns=CALL)
    put(saver, "c2", "c1", ns=CALL, root="2")
    for _ in range(2):
        saver.prune(["t"])
        assert (listed(saver), listed(saver, ns=CALL)) == (["1"], ["c2"])
        assert log_at(saver, "c2", ns=CALL) == (SEED, [["w1"]])
    put(saver, "2", "1")
    saver.delete_for_runs(["doomed"])
    saver.prune(["t"])
    assert (listed(saver), listed(saver, ns=CALL)) == (["2"], ["c2"])
    assert log_at(DeltaSaver(open_store()), "c2", ns=CALL) == (SEED, [["w1"]])
    put(saver, "3", "2")
    saver.prune(["t"])
    assert (listed(saver), listed(saver, ns=CALL)) == (["3"], [])


# --- nothing needless stays -------------------------------------------------------------------


def needed(saver: DeltaSaver, kept: list[str], channels: list[str], ns: str = "") -> set[str]:
    """Return the checkpoints, beside those kept, that hold anything which the channels of these are rebuilt from."""
    found = {one.checkpoint["id"]: one for one in saver.list(config("t", ns=ns))}

    def parent(one: CheckpointTuple) -> CheckpointTuple | None:
        return found.get(one.parent_config["configurable"]["checkpoint_id"]) if one.parent_config else None

    out: set[str] = set()
    for id_, channel in itertools.product(kept, channels):
        made = found[id_].checkpoint
        if channel in made["channel_values"] or channel not in made["channel_versions"]:
            continue
        one = parent(found[id_])
        while one is not None:
            has_value = channel in one.checkpoint["channel_values"]
            if has_value or any(name == channel for _, name, _ in one.pending_writes or ()):
                out.add(one.checkpoint["id"])
            one = None if has_value else parent(one)
    return out - set(kept)


@STORES
@pytest.mark.parametrize("seed", [0, 7, 12])
def test_exactly_what_is_needed_stays_hidden(open_store: OpenStore, frequency: int, seed: int) -> None:
    """Those since the last value that have writes, and that one: neither what comes before, nor what has none."""
    saver = saver_of(open_store, frequency)
    for number in range(16):
        more: dict[str, Any] = {"log": _DeltaSnapshot([number])} if number in (2, seed) else {}
        put(saver, f"{number:02}", f"{number - 1:02}" if number else None, plain=number, **more)
        if number % 3:
            say(saver, f"{number:02}", f"w{number}")
        saver.put_writes(config("t", f"{number:02}"), [("plain", number)], "task plain")
    first = max(number for number in (2, seed) if number < 15)
    expected = {f"{number:02}" for number in range(first, 15) if number == first or number % 3}
    assert needed(saver, ["15"], ["log", "plain"]) == expected
    before = log_at(saver, "15")
    for _ in range(2):
        saver.prune(["t"])
        assert hidden(saver.store) == len(expected)
        assert log_at(saver, "15") == before


@STORES
@pytest.mark.parametrize("delta", [2, 5, 1000])
def test_of_a_graph_exactly_what_is_needed_stays_hidden(open_store: OpenStore, frequency: int, delta: int) -> None:
    """Of each delta channel since its own last snapshot; of conditional edges and LangGraph's own channels nothing."""
    saver = saver_of(open_store, frequency)
    graph = agent(saver, steps=5, frequency=delta)
    runs(graph, "t", range(3))
    channels = ["log", "messages", "facts"]
    ids = listed(saver)
    kept = [ids[0], ids[9]]
    saver.tag(config("t", kept[1]), "kept")
    for left in (kept, kept[:1]):
        expected = needed(saver, left, channels)
        if left == kept:
            saver.copy_thread("t", "copy")
        else:  # of the whole thread, as if there had never been a tag
            saver.untag(config("t"), "kept")
            saver.delete_thread("t")
            saver.copy_thread("copy", "t")
            expected = needed(saver, left, channels)
            saver.untag(config("t"), "kept")
            saver.delete_thread("copy")
        assert expected or delta == 2
        saver.prune(["t"])
        assert hidden(saver.store) == len(expected)


def ordinary(saver: DeltaSaver) -> Any:
    """Give a graph without delta channels, with all that LangGraph has channels of its own for."""

    class State(TypedDict):
        plain: Annotated[list[str], operator.add]
        asked: str

    def node(name: str) -> Callable[[Any], dict[str, Any]]:
        return lambda _: {"plain": [name]}

    def ask(state: dict[str, Any]) -> dict[str, Any]:
        return {"asked": interrupt("why?"), "plain": ["asked"]}

    def fan(state: dict[str, Any]) -> list[Any]:
        return [Send("sent", {"number": number}) for number in range(3)]

    inner = StateGraph(State)
    inner.add_node("in", node("in"))
    inner.add_node("ask", ask)
    inner.add_edge(START, "in")
    inner.add_edge("in", "ask")
    graph = StateGraph(State)
    for name in ("loop", "sent", "left", "right", "joined"):
        graph.add_node(name, node(name))
    graph.add_node("last", node("last"), defer=True)
    graph.add_node("call", inner.compile())
    graph.add_node("jump", lambda _: Command(goto="last", update={"plain": ["jump"]}), destinations=("last",))
    graph.add_edge(START, "loop")
    graph.add_conditional_edges("loop", lambda state: "loop" if len(state["plain"]) % 3 else ["left", "right"])
    graph.add_edge(["left", "right"], "joined")
    graph.add_conditional_edges("joined", fan, ["sent"])
    graph.add_edge("sent", "call")
    graph.add_edge("call", "jump")
    graph.add_edge("last", END)
    return graph.compile(checkpointer=saver)


@STORES
@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_of_an_ordinary_graph_nothing_stays_hidden(open_store: OpenStore, frequency: int, durability: Any) -> None:
    saver = saver_of(open_store, frequency)
    graph = ordinary(saver)
    for turn in range(3):
        given = graph.invoke({"plain": [f"in {turn}"]}, where("t", f"r{turn}"), durability=durability)
        assert "__interrupt__" in given
        if turn == 1:
            saver.prune(["t"])
            assert hidden(saver.store) == 0
        graph.invoke(Command(resume="because"), where("t", f"r{turn}"), durability=durability)
        ids = listed(saver)
        if turn != 1:
            saver.store.thread("t").delete(ids[len(ids) // 2])
            assert hidden(saver.store) == 0
    values = graph.get_state(where()).values
    assert "asked" in values["plain"]
    for deletion in (lambda: saver.delete_for_runs(["r0"]), lambda: saver.prune(["t"])):
        deletion()
        assert hidden(saver.store) == 0
        assert graph.get_state(where()).values == values
    assert check(saver.store).checkpoints == 1


@STORES
def test_what_an_ephemeral_channel_leaves_does_not_grow(open_store: OpenStore, frequency: int) -> None:
    """A store can't tell a user's channel that is emptied after a step from one that is rebuilt; erasing can."""

    class State(TypedDict):
        plain: Annotated[list[str], operator.add]
        brief: Annotated[str, EphemeralValue]

    builder = StateGraph(State)
    for name in "abcd":
        builder.add_node(name, lambda _, name=name: {"plain": [name]} | ({"brief": "x"} if name == "b" else {}))
    builder.add_edge(START, "a")
    for one, other in itertools.pairwise("abcd"):
        builder.add_edge(one, other)
    saver = saver_of(open_store, frequency)
    graph = builder.compile(checkpointer=saver)
    for turn in range(5):
        graph.invoke({"plain": [f"in {turn}"]}, where())
        saver.prune(["t"])
        assert hidden(saver.store) <= 1
    values = graph.get_state(where()).values
    saver.prune(["t"], erase=True, graph=graph)
    assert hidden(saver.store) == 0
    assert graph.get_state(where()).values == values


# --- fronts, and async twins ------------------------------------------------------------------


def test_each_api_tags_what_it_wrote(open_store: OpenStore) -> None:
    """A saver tags what savers wrote; a thread of the store, whatever it holds."""
    store = open_store()
    saver, native = DeltaSaver(store), store.thread("native")
    first, second = native.append({"a": [1]}), native.append({"a": [2]})
    put(saver, "1")
    put(saver, "i", ns="inner")
    before, content = rows_of(store.log.storage), states(native)
    for call in (
        lambda: saver.tag(config("native"), "x"),
        lambda: saver.tag(config("native", first.id), "x"),
        lambda: asyncio.run(saver.atag(config("native", second.id), "x")),
    ):
        with pytest.raises(FrontMismatchError, match=r"'native'.*written by the native API"):
            call()
        assert rows_of(store.log.storage) == before
    assert saver.tags(config("native")) == native.tags() == {}
    saver.prune(["native"])
    saver.delete_for_runs(["r"])
    assert states(native) == content
    assert native.tag("x", first) == first.id
    assert native.tags() == {"x": first.id}
    put(saver, "i", ns="inner")
    assert store.thread("t", namespace="inner").tag("x") == "i"
    assert saver.tags(config("t", ns="inner")) == {"x": config("t", "i", "inner")}


def test_tags_from_an_event_loop(open_store: OpenStore) -> None:
    saver = DeltaSaver(open_store())
    for id_, parent in (("1", None), ("2", "1"), ("3", "2")):
        put(saver, id_, parent)

    async def tags() -> None:
        assert await saver.atags(config("t")) == {}
        assert await saver.atag(config("t"), "latest") == config("t", "3")
        assert await saver.atag(config("t", "1"), "first") == config("t", "1")
        assert await saver.atags(config("t")) == {"first": config("t", "1"), "latest": config("t", "3")}
        assert await saver.auntag(config("t"), "latest")
        assert not await saver.auntag(config("t"), "latest")
        with pytest.raises(CheckpointNotFoundError):
            await saver.atag(config("t", "unknown"), "x")
        assert await saver.atags(config("t")) == {"first": config("t", "1")}
        await saver.aprune(["t"])

    asyncio.run(tags())
    assert saver.tags(config("t")) == {"first": config("t", "1")}
    assert listed(saver) == ["3", "1"]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("as_stored", [str, lambda found: found])
def test_runs_may_be_named_by_uuids(
    open_store: OpenStore, as_stored: Callable[[uuid.UUID], Any], asynchronous: bool
) -> None:
    """LangGraph takes a run's id as a UUID; metadata have it as its text, or as it is."""
    saver = DeltaSaver(open_store())
    names = [uuid.UUID(int=number) for number in range(1, 4)]
    for thread in ("t", "u"):
        for number, name in enumerate(names):
            put(saver, f"{number}", f"{number - 1}" if number else None, thread=thread, run=as_stored(name))
    gone: list[Any] = [names[0], str(names[1]), uuid.UUID(int=9)]
    if asynchronous:
        asyncio.run(saver.adelete_for_runs(gone))
    else:
        saver.delete_for_runs(gone)
    assert listed(saver, "t") == listed(saver, "u") == ["2"]
