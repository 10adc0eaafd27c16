"""Values of classes that aren't there, of graphs, and of other serializers: shown, and nothing of them imported."""

import subprocess
import sys
from collections.abc import Callable
from operator import add
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import START, StateGraph

import deltastore
from deltastore.cli.text import escaped
from deltastore.langgraph import DeltaSaver
from tests.cli.conftest import Ran
from tests.langgraph.comparing import checkpoint, config

Run = Callable[..., Ran]

MODULE = """
import dataclasses, enum, pathlib, sys
from pydantic import BaseModel

pathlib.Path({trace!r}).open("a").write("imported\\n")

@dataclasses.dataclass
class Point:
    x: int
    inner: object = None

class Colour(enum.Enum):
    RED = "red"

class Model(BaseModel):
    name: str
"""


@pytest.fixture
def gone(tmp_path: Path, path: Path) -> Path:
    """Put objects of a module's classes in another process, and remove the module; the trace of its imports is left."""
    trace = tmp_path / "trace"
    (tmp_path / "gone_module.py").write_text(MODULE.format(trace=str(trace)))
    script = f"""
import sys, uuid; sys.path.insert(0, {str(tmp_path)!r})
from gone_module import Point, Colour, Model
from deltastore.langgraph import DeltaSaver
from tests.langgraph.comparing import checkpoint, config
with DeltaSaver.from_path({str(path)!r}) as saver:
    value = {{"points": [Point(1, Point(2)), Point(3)], "colour": Colour.RED, "model": Model(name="n"),
              "id": uuid.UUID(int=1), "set": {{1}}}}
    saver.put(config("t"), checkpoint("1", {{name: "1" for name in value}}, value), {{"p": Point(9)}},
              {{name: "1" for name in value}})
    saver.put_writes(config("t", "1"), [("points", Point(4))], "task")
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[2])
    assert trace.read_text() == "imported\n"
    return trace


def test_objects_are_shown_without_their_classes(run: Run, gone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(gone.parent))  # it could be imported, and isn't
    shown = run("show", "t").out
    assert "gone_module.Point{x: 1, inner: gone_module.Point{x: 2, inner: None}}" in shown
    assert 'gone_module.Colour("red")' in shown
    assert 'gone_module.Model{name: "n"}' in shown
    assert "metadata    {" in shown
    document = run("show", "t", "--json").document
    assert document["channels"]["points"][1] == {"$object": "gone_module.Point", "parts": {"x": 3, "inner": None}}
    assert document["channels"]["set"] == {"$object": "builtins.set", "parts": [1]}
    assert "builtins.set([1])" in shown
    assert document["metadata"]["p"]["$object"] == "gone_module.Point"
    assert document["writes"][0]["value"] == {"$object": "gone_module.Point", "parts": {"x": 4, "inner": None}}
    for command in ("threads", "info", "stats", "check"):
        run(command)
    run("log", "t")
    assert gone.read_text() == "imported\n"
    assert "gone_module" not in sys.modules


def test_objects_are_shown_where_the_module_is_gone_and_langgraph_is_not_installed(path: Path, gone: Path) -> None:
    (gone.parent / "gone_module.py").unlink()
    script = f"""
import sys
for name in ("langgraph", "langchain_core", "pydantic_ai"):
    sys.modules[name] = None
from deltastore.cli import main
code = main(["show", {str(path)!r}, "t"])
sys.exit(code)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "gone_module.Point{x: 3, inner: None}" in done.stdout


class State(TypedDict):
    log: Annotated[list[str], DeltaChannel(lambda value, writes: value + [line for write in writes for line in write])]
    count: Annotated[int, add]


def graph(saver: DeltaSaver) -> Any:
    builder = StateGraph(State)
    builder.add_node("work", lambda state: {"log": [f"worked {state['count']}"], "count": 1})
    builder.add_edge(START, "work")
    return builder.compile(checkpointer=saver)


def test_a_delta_channel_is_seed_and_writes_and_folded_on_demand(run: Run, path: Path) -> None:
    with DeltaSaver.from_path(path) as saver:
        made = graph(saver)
        for _ in range(3):
            made.invoke({"count": 0}, {"configurable": {"thread_id": "t"}})
        wanted = made.get_state({"configurable": {"thread_id": "t"}}).values["log"]
    channels = run("show", "t", "--json").document["channels"]
    assert channels["log"]["$unfolded"]["writes"] == [[line] for line in wanted]
    assert "seed and 3 writes" in run("show", "t").out
    assert run("show", "t", "--fold", "append", "--json").document["channels"]["log"] == wanted
    changes = run("diff", "t", "--fold", "append", "--json").document["changes"]
    assert {"path": ["log", 2], "kind": "added", "new": wanted[-1]} in changes


def test_messages_as_langgraph_stores_them(run: Run, path: Path) -> None:
    with DeltaSaver.from_path(path) as saver:
        messages = [HumanMessage("hi", id="1"), AIMessage("a" * 3000, id="2", response_metadata={"x": [1, None]})]
        saver.put(config("t"), checkpoint("1", {"m": "1"}, {"m": messages}), {}, {"m": "1"})
        changed = [messages[0], AIMessage("b", id="2")]
        saver.put(config("t", "1"), checkpoint("2", {"m": "2"}, {"m": changed}), {}, {"m": "2"})
    shown = run("show", "t@1", "--json").document["channels"]["m"]
    assert [each["$object"] for each in shown] == [
        "langchain_core.messages.HumanMessage",
        "langchain_core.messages.AIMessage",
    ]
    assert shown[1]["parts"]["content"] == "a" * 3000
    assert "(3000 characters)" in run("show", "t@1").out
    assert "a" * 3000 in run("show", "t@1", "--full").out
    changes = run("diff", "t", "--json").document["changes"]
    assert [change["path"] for change in changes] == [["m", 1, "content"], ["m", 1, "response_metadata", "x"]]


class Xor(CipherProtocol):
    """A cipher for tests."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "xor", bytes(byte ^ 0x5A for byte in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return bytes(byte ^ 0x5A for byte in ciphertext)


def test_encrypted_values_are_sizes(run: Run, path: Path) -> None:
    with DeltaSaver.from_path(path, serde=EncryptedSerializer(Xor())) as saver:
        saver.put(config("t"), checkpoint("1", {"c": "1"}, {"c": "secret"}), {"step": 1}, {"c": "1"})  # type: ignore[typeddict-unknown-key]
    document = run("show", "t", "--json").document
    sealed = document["channels"]["c"]["$sealed"]
    assert sealed["serializer"].endswith("EncryptedSerializer")
    assert (sealed["kind"], sealed["bytes"]) == ("msgpack+xor", len(b"\xa6secret"))
    assert "that only langgraph.checkpoint.serde.encrypted.EncryptedSerializer can read" in run("show", "t").out
    assert "$sealed" in document["metadata"]
    for command in ("threads", "stats", "check"):
        assert "secret" not in run(command).out
    assert run("log", "t").out.count("*") == 1


def test_a_sub_graph_call_goes_with_its_root_and_is_counted(run: Run, path: Path) -> None:
    with DeltaSaver.from_path(path) as saver:
        inner = graph(None)  # type: ignore[arg-type]
        builder = StateGraph(State)
        builder.add_node("inner", inner)
        builder.add_edge(START, "inner")
        made = builder.compile(checkpointer=saver)
        made.invoke({"count": 0}, {"configurable": {"thread_id": "t"}})
    namespaces = run("log", "t", "--all", "--json").document["namespaces"]
    total = sum(len(each["checkpoints"]) for each in namespaces)
    before = {each["name"]: [one["id"] for one in each["checkpoints"]] for each in namespaces}
    for id_ in before[""]:
        counted = run("delete", f"t@{id_}", "--dry-run", "--json").document["checkpoints"]
        assert run("delete", f"t@{id_}", "--yes", "--json").document["checkpoints"] == counted
        left = run("info", "--json").document["checkpoints"]
        assert left == total - counted
        total = left


def test_hostile_class_names_are_shown_escaped(run: Run, path: Path) -> None:
    name = "Evil\x1b[31m\n"
    made = type(name, (), {"_asdict": lambda self: {"a\n": "b\x00"}, "__module__": "m\r"})
    with DeltaSaver.from_path(path) as saver:
        saver.put(config("t"), checkpoint("1", {"c": "1"}, {"c": made()}), {}, {"c": "1"})
    shown = run("show", "t").out
    assert escaped(f"m\r.{name}") in shown
    assert all(line.isprintable() for line in shown.splitlines())


def test_a_native_thread_with_removals_and_odd_keys(run: Run, path: Path) -> None:
    with deltastore.open(path, channels={"m": "upsert"}) as store:
        thread = store.thread("t")
        thread.append({"m": [{"id": 1}, {"id": 2}], "d": {1: b"x", None: float("inf")}})
        thread.append({"m": [deltastore.Remove(1)]})
        thread.put_writes(thread.latest() or "", {"m": [deltastore.REMOVE_ALL]})
    document = run("show", "t", "--json").document
    assert document["channels"] == {
        "m": [{"id": 2}],
        "d": {"$entries": [[1, {"$bytes": "eA=="}], [None, {"$float": "inf"}]]},
    }
    assert document["writes"][0]["value"] == [{"$remove": None}]
