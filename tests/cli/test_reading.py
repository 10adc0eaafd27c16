"""info, threads, log, show and diff on stores of either API."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint

import deltastore
from deltastore import Reducer
from deltastore.cli import main
from deltastore.langgraph import DeltaSaver
from tests.cli.conftest import Ran

Run = Callable[..., Ran]
HOSTILE = "a\nb\0\\ \u202e é\x1b[31m\ud800"
SHOWN = "a\\nb\\x00\\\\ \\u202e é\\x1b[31m\\ud800"


class TestInfo:
    def test_it_tells_sizes_and_counts(self, run: Run, path: Path, branched: dict[str, str]) -> None:
        document = run("info", "--json").document
        assert (document["threads"], document["checkpoints"], document["format_version"]) == (1, 4, 1)
        assert document["location"] == str(path)
        assert document["file_bytes"] >= document["used_bytes"] > 0
        assert document["oldest_reader"] is None
        assert "checkpoints    4" in run("info").out

    def test_a_store_in_memory_is_none_of_a_command(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["info", ":memory:"]) == 2
        assert "lives in the process that opened it" in capsys.readouterr().err

    def test_it_tells_an_old_reader(self, run: Run, path: Path, branched: dict[str, str]) -> None:
        with deltastore.open(path) as store:
            import threading

            began, end = threading.Event(), threading.Event()

            def read() -> None:
                with store.log.storage.read() as tx:
                    tx.get(b"\0")
                    began.set()
                    end.wait()

            reader = threading.Thread(target=read)
            reader.start()
            began.wait()
            store.thread("user-42").append({"n": 1})
            found = store.info().oldest_reader
            shown = run("info", "--json").document["oldest_reader"]
            end.set()
            reader.join()
            assert found is not None
            assert shown == {"pid": found.pid, "behind": found.behind}
            assert found.behind >= 1
            assert store.info().oldest_reader is None


class TestThreads:
    def test_a_long_name_makes_no_other_line_long(self, run: Run, path: Path, branched: dict[str, str]) -> None:
        with deltastore.open(path) as store:
            store.thread("long" * 100).append({"n": 1})
        lines = run("threads").out.splitlines()
        assert any("long" * 100 in line for line in lines)
        assert all(len(line) < 150 for line in lines if "long" not in line)

    @pytest.fixture
    def two(self, path: Path) -> None:
        with DeltaSaver.from_path(path) as saver:
            put(saver, "lg", {"user_id": "u1", "n": 1, "step": 4, "source": "loop"})
            saver.store.thread("native").append({"a": [1, 2]}, metadata={"user_id": "u2", "n": "1"})

    def test_both_apis_are_listed_newest_first(self, run: Run, two: None) -> None:
        found = run("threads", "--json").document["threads"]
        assert [(thread["name"], thread["metadata"]) for thread in found] == [
            ("native", {"user_id": "u2", "n": "1"}),
            ("lg", {"user_id": "u1", "n": 1}),
        ]
        assert [line.split()[0] for line in run("threads").out.splitlines()] == ["THREAD", "native", "lg"]

    @pytest.mark.parametrize(
        ("filters", "names"),
        [
            (["user_id=u1"], ["lg"]),
            (['user_id="u1"'], ["lg"]),
            (["n=1"], ["lg"]),
            (['n="1"'], ["native"]),
            (["n=1.0"], []),
            (["n=true"], []),
            (["missing=null"], ["native", "lg"]),
            (["n=1", "user_id=u2"], []),
            (["step=4"], []),
        ],
    )
    def test_filters_compare_type_by_type(self, run: Run, two: None, filters: list[str], names: list[str]) -> None:
        options = [part for each in filters for part in ("--filter", each)]
        assert [thread["name"] for thread in run("threads", "--json", *options).document["threads"]] == names

    def test_a_filter_without_value_is_refused(self, run: Run, two: None) -> None:
        assert "KEY=VALUE" in run("threads", "--filter", "user_id", code=2).err

    @pytest.mark.parametrize("order", ["created", "updated", "checkpoints", "bytes", "name"])
    def test_limit_and_sort(self, run: Run, two: None, order: str) -> None:
        found = run("threads", "--json", "--sort", order).document["threads"]
        first = run("threads", "--json", "--sort", order, "--limit", "1").document["threads"]
        assert first == found[:1]
        assert (order != "name") or [thread["name"] for thread in found] == ["lg", "native"]

    def test_hostile_names_stand_on_one_line_and_can_be_given_back(self, run: Run, path: Path) -> None:
        with deltastore.open(path) as store:
            store.thread(HOSTILE).append({"a": 1})
        assert run("threads").out.splitlines()[1].startswith(SHOWN)
        assert run("threads", "--json").document["threads"][0]["name"] == HOSTILE
        assert run("show", SHOWN, "--json").document["thread"] == HOSTILE
        assert run("log", SHOWN, "--json").document["thread"] == HOSTILE


class TestLog:
    def test_branches_are_drawn(self, run: Run, branched: dict[str, str]) -> None:
        lines = run("log", "user-42").out.splitlines()
        assert [line[:3].rstrip() for line in lines] == ["*", "| *", "* |", "|/", "*"]
        ids = [line.strip("*| ").split()[0] for line in lines if "*" in line]
        assert ids == [branched[name] for name in ("last", "other", "second", "first")]
        assert "[before-deploy]  k=v" in lines[2]

    def test_limit_anchors_and_document(self, run: Run, branched: dict[str, str]) -> None:
        assert len(run("log", "user-42", "--limit", "2").out.splitlines()) == 2
        assert run("log", "user-42", "--anchors").out.count("(anchor)") >= 1
        (namespace,) = run("log", "user-42", "--json").document["namespaces"]
        assert (namespace["name"], namespace["front"]) == ("", "native")
        assert [each["parent_id"] for each in namespace["checkpoints"]] == [
            branched["second"],
            branched["first"],
            branched["first"],
            None,
        ]

    def test_namespaces(self, run: Run, path: Path) -> None:
        with DeltaSaver.from_path(path) as saver:
            for namespace in ("", "sub:1"):
                put(saver, "t", {"step": 1, "source": "loop"}, namespace)
        ran = run("log", "t")
        assert "1 more namespaces" in ran.err
        assert "step 1  loop" in ran.out
        assert "namespace sub:1" in run("log", "t", "--all").out
        assert [each["name"] for each in run("log", "t", "--all", "--json").document["namespaces"]] == ["", "sub:1"]
        assert [each["name"] for each in run("log", "t", "--json", "--namespace", "sub:1").document["namespaces"]] == [
            "sub:1"
        ]
        run("log", "t", "--namespace", "other", code=3)

    def test_more_than_a_page(self, run: Run, path: Path) -> None:
        with deltastore.open(path, sync="none") as store:
            for number in range(200):
                store.thread("t").append({"n": number})
        assert run("log", "t").out.count("*") == 200


class TestShow:
    def test_the_latest_a_tag_and_an_id(self, run: Run, branched: dict[str, str]) -> None:
        document = run("show", "user-42", "--json").document
        assert (document["id"], document["parent_id"]) == (branched["last"], branched["second"])
        assert document["channels"]["n"] == 3
        assert document["writes"] == [{"task": "work", "channel": "n", "value": 4}]
        for place in ("before-deploy", branched["second"]):
            document = run("show", f"user-42@{place}", "--json").document
            assert (document["id"], document["tags"]) == (branched["second"], ["before-deploy"])
        text = run("show", "user-42").out
        assert "pending write of task work to n" in text
        assert '{"role": "assistant", "content": "hello"}' in text

    def test_one_channel(self, run: Run, branched: dict[str, str]) -> None:
        assert run("show", "user-42", "n").out == "n (int)\n  3\n"
        assert run("show", "user-42", "n", "--json").document["channels"] == {"n": 3}
        assert "there are: messages, n" in run("show", "user-42", "nope", code=3).err

    def test_raw(self, path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
        with deltastore.open(path) as store:
            store.thread("t").append({"text": "a\n\x1bé", "data": b"\0\xff", "n": 1})
        for channel, data in (("text", "a\n\x1bé".encode()), ("data", b"\0\xff")):
            assert main(["show", str(path), "t", channel, "--raw"]) == 0
            assert capsysbinary.readouterr().out == data
        assert main(["show", str(path), "t", "n", "--raw"]) == 2
        assert main(["show", str(path), "t", "--raw"]) == 2

    def test_names_with_at_signs(self, run: Run, path: Path) -> None:
        with deltastore.open(path) as store:
            for name in ("a", "a@b", "a@b@c"):
                checkpoint = store.thread(name).append({"name": name})
                store.thread(name).tag("b@x", at=checkpoint)
                store.thread(name).tag("b", at=checkpoint)
        for place, name in {
            "a": "a",
            "a@b": "a@b",
            "a@b@c": "a@b@c",
            "a@b@x": "a",
            "a@b@b": "a@b",
            "a@b@b@x": "a@b",
            "a@b@c@b": "a@b@c",
        }.items():
            assert run("show", place, "--json").document["thread"] == name, place
        assert "no checkpoint or tag" in run("show", "a@nope", code=3).err
        assert "no thread is named" in run("show", "z@b", code=3).err

    def test_a_reducer_that_is_not_at_hand(self, run: Run, path: Path) -> None:
        total = Reducer("total", 2, fold=lambda value, write: value + write, initial=list)
        with deltastore.open(path, reducers=[total], channels={"n": "total"}) as store:
            for number in (1, 2, 3):
                store.thread("t").append({"n": [number], "m": [number]})
        document = run("show", "t", "--json").document
        assert document["channels"]["m"] == [1, 2, 3]
        assert document["channels"]["n"] == {
            "$unfolded": {"reducer": "'total' version 2", "seed": [1], "writes": [[2], [3]]}
        }
        assert "reducer 'total' version 2" in run("show", "t").out
        assert run("show", "t", "--fold", "append", "--json").document["channels"]["n"] == [1, 2, 3]
        assert "merge folds" in run("show", "t", "--fold", "merge", code=2).err


class TestDiff:
    def test_what_was_added_and_changed(self, run: Run, branched: dict[str, str]) -> None:
        lines = run("diff", f"user-42@{branched['first']}", "user-42").out.splitlines()
        assert lines[0] == f"--- user-42@{branched['first']}"
        assert lines[1] == f"+++ user-42@{branched['last']}"
        assert lines[2:] == ["messages[1]", '+ {"role": "assistant", "content": "hello"}', "n", "+ 3"]

    def test_against_the_parent(self, run: Run, branched: dict[str, str]) -> None:
        assert run("diff", "user-42", "--json").document["changes"] == [
            {"path": ["n"], "kind": "changed", "old": 1, "new": 3}
        ]
        assert "has no parent" in run("diff", f"user-42@{branched['first']}", code=2).err

    def test_removed(self, run: Run, branched: dict[str, str]) -> None:
        changes = run("diff", "user-42", f"user-42@{branched['first']}", "--json").document["changes"]
        assert [(change["path"], change["kind"]) for change in changes] == [
            (["messages", 1], "removed"),
            (["n"], "removed"),
        ]


def put(saver: DeltaSaver, thread: str, metadata: dict[str, Any], namespace: str = "") -> None:
    config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": namespace}}
    saver.put(config, empty_checkpoint(), metadata, {})  # type: ignore[arg-type]
