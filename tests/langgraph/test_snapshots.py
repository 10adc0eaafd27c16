"""Snapshots of DeltaChannels: they read as InMemorySaver's do, and share their chunks with what they sum up."""

import random
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import _messages_delta_reducer

from bench.recording import Call, RecordingSaver
from bench.text import prose
from deltastore import Store
from deltastore.codec.records import SNAPSHOT_LIST, Set
from deltastore.langgraph import DeltaSaver
from deltastore.log import drafting, keys, policy, rows
from deltastore.log.reading import View
from deltastore.storage.memory import MemoryStorage
from tests.counting import Counting
from tests.langgraph.comparing import Pair, checkpoint, config
from tests.raw import Interrupted, chunk_sizes

OpenStore = Callable[..., Store]
THREAD = config("t")


def merged(value: dict[str, Any] | None, writes: list[dict[str, Any]]) -> dict[str, Any]:
    out = dict(value or {})
    for write in writes:
        out.update(write)
        for name in [name for name, text in out.items() if text is None]:
            del out[name]
    return out


def joined(value: list[str] | None, writes: list[list[str]]) -> list[str]:
    return [*(value or ()), *(text for write in writes for text in write)]


def text(*seed: Any, size: int = 1500) -> str:
    return prose(random.Random(repr(seed)), size)


def agent(saver: Any) -> Any:
    """A graph with a list of messages, a dict of files and a list of texts; it writes lists, and messages alone."""
    schema: Any = TypedDict(
        "State",
        {
            "messages": Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer, snapshot_frequency=3)],
            "files": Annotated[dict[str, Any], DeltaChannel(merged, snapshot_frequency=3)],
            "log": Annotated[list[str], DeltaChannel(joined, snapshot_frequency=3)],
            "turn": int,
        },
    )

    def model(state: dict[str, Any]) -> dict[str, Any]:
        turn = state["turn"]
        answer = AIMessage(text("answer", turn), id=f"a{turn}")
        return {"messages": answer if turn % 2 else [answer], "log": [f"turn {turn}"]}

    def tools(state: dict[str, Any]) -> dict[str, Any]:
        turn = state["turn"]
        files: dict[str, Any] = {f"/{turn}.txt": {"content": [text("file", turn)], "turn": turn}}
        if turn % 4 == 3:
            files |= {f"/{turn - 3}.txt": None, f"/{turn - 2}.txt": {"content": [text("again", turn)], "turn": turn}}
        return {"files": files}

    graph = StateGraph(schema)
    graph.add_node("model", model)
    graph.add_node("tools", tools)
    graph.add_edge(START, "model")
    graph.add_edge("model", "tools")
    graph.add_edge("tools", END)
    return graph.compile(checkpointer=saver)


def recorded(turns: int = 14, *, edits: bool = True) -> list[Call]:
    """Return the calls of a run, with edits by hand in between and a fork."""
    saver = RecordingSaver()
    graph = agent(saver)
    where: Any = {"configurable": {"thread_id": "t"}}
    for turn in range(turns):
        graph.invoke({"messages": [HumanMessage(text("ask", turn, size=300), id=f"h{turn}")], "turn": turn}, where)
        if edits and turn % 5 == 4:
            changed = [RemoveMessage(id=f"h{turn - 2}"), AIMessage("edited", id=f"a{turn - 1}")]
            graph.update_state(where, {"messages": changed}, as_node="tools")
        if edits and turn == 8:
            older = list(graph.get_state_history(where))[6].config
            graph.invoke({"messages": HumanMessage("on a fork", id="fork"), "turn": 100}, older)
    return saver.calls


def is_snapshot_put(call: Call) -> bool:
    """Tell whether a call puts a snapshot that wasn't there before."""
    if call.method != "put":
        return False
    _, made, _, new_versions = call.arguments
    values = made["channel_values"]
    return any(type(values.get(name)) is _DeltaSnapshot for name in new_versions)


def replay(calls: list[Call], saver: Any) -> None:
    for call in calls:
        if call.method in ("put", "put_writes"):
            getattr(saver, call.method)(*call.arguments)


def born(calls: list[Call], saver: DeltaSaver) -> tuple[int, int]:
    """Replay; return the bytes of the chunks that snapshot puts made, and those of all chunks."""
    by_snapshots = 0
    sizes: dict[int, int] = {}
    for call in calls:
        replay([call], saver)
        after = chunk_sizes(saver.store)
        if is_snapshot_put(call):
            by_snapshots += sum(size for number, size in after.items() if number not in sizes)
        sizes |= after
    return by_snapshots, sum(sizes.values())


@pytest.mark.parametrize("frequency", [1, 3, 50])
def test_every_checkpoint_of_a_graph_is_the_reference_savers(open_store: OpenStore, frequency: int) -> None:
    calls = recorded()
    assert sum(map(is_snapshot_put, calls)) > 10
    pair = Pair(DeltaSaver(open_store(snapshot_frequency=frequency)))
    replay(calls, pair)
    reopened = DeltaSaver(open_store(cache_bytes=0))
    assert pair.compare_all() == pair.compare_all(reopened) > 50
    for thread, ns, id_ in pair.stored():
        pair.compare_history(config(thread, id_, ns), ["messages", "files", "log"], reopened)


@pytest.mark.parametrize("cache_bytes", [0, 64 * 1024 * 1024])
def test_snapshots_that_only_sum_up_writes_add_next_to_nothing(open_store: OpenStore, cache_bytes: int) -> None:
    calls = recorded(25, edits=False)
    saver = DeltaSaver(open_store(cache_bytes=cache_bytes))
    by_snapshots, in_all = born(calls, saver)
    print(f"{by_snapshots} of {in_all} bytes of chunks were made by {sum(map(is_snapshot_put, calls))} snapshot puts")
    assert by_snapshots < 0.05 * in_all


def test_edits_between_snapshots_add_little(open_store: OpenStore) -> None:
    by_snapshots, in_all = born(recorded(25), DeltaSaver(open_store()))
    assert by_snapshots < 0.05 * in_all


# --- single puts -------------------------------------------------------------------------------------


def message(number: int) -> AnyMessage:
    return HumanMessage(text(number), id=f"m{number}")


class Steps:
    """Checkpoints of one DeltaChannel, put one by one on both savers."""

    def __init__(self, saver: DeltaSaver) -> None:
        self.pair = Pair(saver)
        self.where = THREAD
        self.count = 0

    def put(self, value: Any = None, *, bump: bool = True) -> None:
        """Put a checkpoint, with a new version of the channel unless not; without a value where None is given."""
        self.count += 1
        self.version = self.count if bump else self.version
        values = {} if value is None else {"m": value}
        self.where = self.pair.put(self.where, checkpoint(f"{self.count:04}", {"m": self.version}, values))

    def write(self, value: Any, task: str = "task") -> None:
        """Write to the channel at the last checkpoint."""
        self.pair.put_writes(self.where, [("m", value)], task)

    def numbers(self) -> set[int]:
        return set(chunk_sizes(self.pair.saver.store))


@pytest.fixture(params=["warm", "cold"])
def steps(request: pytest.FixtureRequest, open_store: OpenStore) -> Steps:
    """Steps on a saver that has everything in memory, or nothing."""
    return Steps(DeltaSaver(open_store(**({} if request.param == "warm" else {"cache_bytes": 0}))))


def summed_up(steps: Steps, first: Any, writes: list[Any], last: Any) -> int:
    """Put a value, then writes and steps without a value, then the snapshot; return how many chunks that made."""
    steps.put(first)
    for write in writes:
        steps.write(write)
        steps.put()
    before = steps.numbers()
    steps.put(last)
    made = len(steps.numbers() - before)
    steps.pair.compare_all()
    return made


MESSAGES = [message(number) for number in range(8)]


@pytest.mark.parametrize(
    ("first", "writes", "last"),
    [
        pytest.param(_DeltaSnapshot(MESSAGES[:3]), [[one] for one in MESSAGES[3:]], MESSAGES, id="lists"),
        pytest.param(_DeltaSnapshot(MESSAGES[:3]), MESSAGES[3:], MESSAGES, id="messages alone"),
        pytest.param(_DeltaSnapshot(MESSAGES[:3]), [], MESSAGES[:3], id="nothing"),
        pytest.param(_DeltaSnapshot(MESSAGES[:3]), [MESSAGES[3:]], [*MESSAGES[5:], *MESSAGES[:5]], id="another order"),
        pytest.param(MESSAGES[:3], [MESSAGES[3:]], MESSAGES, id="a plain list before"),
        pytest.param(_DeltaSnapshot({"a": text(1), "b": text(2)}), [{"a": text(3)}, {"c": text(4)}],
                     {"a": text(3), "b": text(2), "c": text(4)}, id="a dict"),
        pytest.param({"a": text(1)}, [{"b": text(3)}], {"a": text(1), "b": text(3)}, id="a plain dict before"),
        pytest.param(None, [[one] for one in MESSAGES], MESSAGES, id="no value before"),
    ],
)  # fmt: skip
def test_a_snapshot_makes_no_chunk_of_its_own(steps: Steps, first: Any, writes: list[Any], last: Any) -> None:
    assert summed_up(steps, first, writes, _DeltaSnapshot(last)) == 0


def test_a_changed_message_is_the_only_new_chunk(steps: Steps) -> None:
    last = [*MESSAGES[:2], AIMessage("edited", id="m2"), *MESSAGES[3:]]
    assert summed_up(steps, _DeltaSnapshot(MESSAGES[:4]), [MESSAGES[4:]], _DeltaSnapshot(last)) == 1


def test_a_snapshot_right_after_a_snapshot(steps: Steps) -> None:
    """Every update is a snapshot: the parent has the value, and its writes are new."""
    steps.put(_DeltaSnapshot(MESSAGES[:1]))
    for number in range(1, 8):
        steps.write([MESSAGES[number]])
        before = steps.numbers()
        steps.put(_DeltaSnapshot(MESSAGES[: number + 1]))
        assert steps.numbers() == before
    steps.pair.compare_all()


def test_a_parent_of_another_kind(steps: Steps) -> None:
    """A channel that becomes a DeltaChannel, and an ordinary one again."""
    steps.put(MESSAGES[:3])
    steps.write(MESSAGES[3:])
    before = steps.numbers()
    steps.put(_DeltaSnapshot(MESSAGES))
    assert steps.numbers() == before
    steps.put(MESSAGES)
    steps.put(_DeltaSnapshot({"a": 1}))
    steps.pair.compare_all()


def test_a_second_snapshot_after_the_first(steps: Steps) -> None:
    """What the head carries from step to step is what a walk finds."""
    for number in range(1, 8):
        made = summed_up(steps, None, [[MESSAGES[number - 1]], []], _DeltaSnapshot(MESSAGES[:number]))
        assert made == 0


def test_steps_of_other_channels_in_between(steps: Steps) -> None:
    """The channel's version stays, so its snapshot stands in later checkpoints too."""
    snapshot = _DeltaSnapshot(MESSAGES[:3])
    steps.put(snapshot)
    for _ in range(3):
        steps.put(snapshot, bump=False)
    steps.write([MESSAGES[3]])
    steps.put()
    for _ in range(3):
        steps.put(bump=False)
    assert summed_up(steps, None, [[one] for one in MESSAGES[4:]], _DeltaSnapshot(MESSAGES)) == 0


def test_a_snapshot_is_stated_in_few_spans(steps: Steps) -> None:
    """The seed's spans, and one for each put of writes."""
    steps.put(_DeltaSnapshot(MESSAGES[:3]))
    steps.write(MESSAGES[3:6])
    steps.put()
    steps.write(MESSAGES[6:])
    steps.put()
    steps.put(_DeltaSnapshot(MESSAGES))
    store = steps.pair.saver.store
    with store.log.storage.read() as tx:
        (namespace,) = rows.load_namespaces(tx, 1)
        assert namespace.tip is not None
        record = View(tx, 1, "t").record(namespace.number, namespace.tip)
    assert record is not None
    (channel,) = store.log.names.numbers(keys.CHANNEL, ("m",))
    (op,) = (op for op in record.ops if op.channel == channel)
    assert isinstance(op, Set)
    assert (op.value.kind, op.value.spans) == (SNAPSHOT_LIST, ((1, 8),))


@pytest.mark.parametrize("kept", [0, 256])
def test_large_messages_edited_between_snapshots(steps: Steps, monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    """New chunks stand on old ones of the seed, which stand on others: the store's check follows them."""
    monkeypatch.setattr(drafting, "MAX_KEPT_BASES", kept)
    held = [HumanMessage(text(number, size=20_000), id=f"m{number}") for number in range(3)]
    for turn in range(12):
        steps.put(_DeltaSnapshot(held))
        if turn % 5 == 4:
            steps.write([held[turn % 3]])
        steps.put()
        held = [HumanMessage(f"{one.content[:9000]}{turn}{one.content[9000:]}", id=one.id) for one in held]
    steps.pair.compare_all()


def test_a_snapshot_under_a_checkpoint_that_isnt_stored(steps: Steps) -> None:
    """Writes of a checkpoint may be stored without it."""
    steps.where = config("t", "0000")
    steps.write(MESSAGES)
    before = steps.numbers()
    steps.put(_DeltaSnapshot(MESSAGES))
    assert steps.numbers() == before
    steps.pair.compare_all()


def test_a_fork_finds_the_snapshot_that_it_goes_back_to(steps: Steps) -> None:
    steps.put(_DeltaSnapshot(MESSAGES[:3]))
    steps.write(MESSAGES[3:5])
    steps.put()
    forked = steps.where
    steps.write([AIMessage("abandoned", id="x")])
    steps.put()
    steps.where = forked
    before = steps.numbers()
    steps.put(_DeltaSnapshot(MESSAGES[:5]))
    assert steps.numbers() == before
    steps.pair.compare_all()


@pytest.mark.parametrize("value", [_DeltaSnapshot(MESSAGES), _DeltaSnapshot({"a": 1}), _DeltaSnapshot({1, 2})])
def test_a_snapshot_may_be_a_write(steps: Steps, value: Any) -> None:
    steps.put(_DeltaSnapshot(MESSAGES[:2]))
    steps.write(value)
    steps.pair.compare(THREAD)
    steps.put()
    steps.pair.compare_history(steps.where, ["m"])
    steps.put(value)
    steps.pair.compare_all()


def test_an_id_put_again_between_snapshots(steps: Steps) -> None:
    steps.put(_DeltaSnapshot(MESSAGES[:3]))
    steps.write(MESSAGES[3:])
    steps.put()
    again = checkpoint("0001", {"m": 1}, {"m": _DeltaSnapshot(MESSAGES[:3])}, again=True)
    steps.pair.put(THREAD, again, new_versions={})
    steps.put(_DeltaSnapshot(MESSAGES))
    steps.pair.compare_all()


@pytest.mark.parametrize("frequency", [1, 50])
def test_an_id_put_again_by_another_handle(open_store: OpenStore, frequency: int) -> None:
    """What this handle remembers of the last checkpoint is another one's now."""
    steps = Steps(DeltaSaver(open_store(snapshot_frequency=frequency)))
    steps.put(MESSAGES[:3])
    again = checkpoint("0001", {"m": 9, "n": 9}, {"m": MESSAGES[3:5]}, again=True)
    steps.pair.reference.put(THREAD, again, {"source": "loop", "step": 0, "parents": {}}, {"m": 9})
    DeltaSaver(open_store()).put(THREAD, again, {"source": "loop", "step": 0, "parents": {}}, {"m": 9})
    steps.put()
    steps.pair.compare_all()


@pytest.mark.parametrize("same_handle", [True, False])
@pytest.mark.parametrize("retries", [0, 2])
def test_writes_that_come_while_a_snapshot_is_prepared(open_store: OpenStore, retries: int, same_handle: bool) -> None:
    """What was stored since the put looked has the numbers that the put gives its own new chunks: it isn't used."""
    store = open_store()
    steps = Steps(DeltaSaver(store))
    steps.put(_DeltaSnapshot(MESSAGES[:3]))
    steps.write(MESSAGES[3:5])
    steps.put()
    inner = store.log.storage
    writer = DeltaSaver(store if same_handle else open_store())
    looks = [lambda: writer.put_writes(steps.where, [("m", MESSAGES[6:])], "other")]
    between = Interrupted(inner, looks, retries)
    steps.pair.reference.put_writes(steps.where, [("m", MESSAGES[6:])], "other")
    store.log.storage = between
    steps.put(_DeltaSnapshot([*MESSAGES[:5], message(99), *MESSAGES[5:]]))
    store.log.storage = inner
    assert not between.after_snapshot
    steps.pair.compare_all()
    steps.pair.compare_all(DeltaSaver(open_store(cache_bytes=0)))


def test_a_step_whose_writes_this_process_put_is_prepared_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "MIN_LOOSE_ROWS", 1_000_000)  # what packs reads
    calls = recorded(12, edits=False)
    counting = Counting(MemoryStorage())
    saver = DeltaSaver(Store(counting))
    reading = []
    for call in calls:
        counting.clear()
        replay([call], saver)
        if call.method == "put" and call.arguments[2]["source"] == "loop" and not is_snapshot_put(call):
            reading.append(counting.reads)
    print(reading)
    assert len(reading) > 20
    assert set(reading[1:]) == {0}
