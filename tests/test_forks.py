"""Where a thread branched, of both APIs."""

import asyncio

import pytest

import deltastore
from deltastore import ClosedError, Fork, InvalidIdError, Store
from deltastore.langgraph import DeltaSaver
from deltastore.log import keys
from tests.conftest import OpenStore
from tests.langgraph.comparing import checkpoint, config
from tests.raw import put_raw, rows_of


class TestNative:
    def test_a_thread_in_one_line_has_none(self, store: Store) -> None:
        thread = store.thread("t")
        assert thread.forks() == []
        for number in range(5):
            thread.append({"n": number})
        assert thread.forks() == []

    @pytest.mark.parametrize("frequency", [1, 4, 50])
    def test_parents_with_their_children_in_order(self, open_store: OpenStore, frequency: int) -> None:
        thread = open_store(snapshot_frequency=frequency).thread("t")
        line = [thread.append({"n": number}).id for number in range(300)]  # more than a page, and packs
        early = thread.append({"n": "early"}, at=line[3]).id
        late = thread.append({"n": "late"}, at=line[290]).id
        third = thread.append({"n": "third"}, at=line[3]).id
        twig = thread.append({"n": "twig"}, at=early).id
        other = thread.append({"n": "other twig"}, at=early).id
        assert thread.forks() == [
            Fork(line[3], (line[4], early, third)),
            Fork(line[290], (line[291], late)),
            Fork(early, (twig, other)),
        ]

    def test_only_stored_children_count_and_the_parent_need_not_be(self, store: Store) -> None:
        thread = store.thread("t")
        first = thread.append({"n": 1})
        children = [thread.append({"n": 2}, at=first) for _ in range(3)]
        thread.delete(first)
        assert thread.forks() == [Fork(first.id, tuple(child.id for child in children))]
        thread.delete(children[1])
        thread.delete(children[2])
        assert thread.forks() == []

    def test_values_and_metadata_are_not_read(self) -> None:
        with deltastore.open(":memory:") as store:
            thread = store.thread("t")
            first = thread.append({"m": ["text " * 50]})
            children = [thread.append({"m": [number]}, at=first, metadata={"n": number}).id for number in (1, 2)]
            for key in rows_of(store.log.storage):
                if key.startswith(keys.chunks(1, 0)):
                    put_raw(store.log.storage, key, b"damaged")
            assert thread.forks() == [Fork(first.id, tuple(children))]

    def test_a_closed_store(self) -> None:
        store = deltastore.open(":memory:")
        thread = store.thread("t")
        store.close()
        with pytest.raises(ClosedError):
            thread.forks()


class TestLangGraph:
    def put(self, saver: DeltaSaver, id_: str, parent: str | None, ns: str = "") -> None:
        saver.put(config("t", parent, ns), checkpoint(id_, {"a": id_}, {"a": id_}), {"source": "loop"}, {"a": id_})

    def test_forks_roots_and_namespaces(self, store: Store) -> None:
        saver = DeltaSaver(store)
        for id_, parent in (("1", None), ("2", "1"), ("4", "2"), ("3", "1"), ("5", None), ("6", "gone"), ("7", "gone")):
            self.put(saver, id_, parent)
        self.put(saver, "1", None, "sub")
        expected = [Fork(None, ("1", "5")), Fork("1", ("2", "3")), Fork("gone", ("6", "7"))]
        assert saver.forks(config("t")) == expected
        assert asyncio.run(saver.aforks(config("t"))) == expected
        assert store.thread("t").forks() == expected
        assert saver.forks(config("t", ns="sub")) == store.thread("t", namespace="sub").forks() == []
        assert saver.forks(config("unknown")) == []

    def test_children_with_smaller_ids_than_their_parent(self, store: Store) -> None:
        saver = DeltaSaver(store)
        for id_, parent in (("5", None), ("9", "5"), ("1", "5"), ("7", "9")):
            self.put(saver, id_, parent)
        assert saver.forks(config("t")) == [Fork("5", ("1", "9"))]

    def test_an_id_put_again_is_one_child(self, store: Store) -> None:
        saver = DeltaSaver(store)
        self.put(saver, "1", None)
        for _ in range(2):
            self.put(saver, "2", "1")
        self.put(saver, "3", "2")
        self.put(saver, "2", "1")
        assert saver.forks(config("t")) == []

    def test_a_config_without_a_thread(self, store: Store) -> None:
        with pytest.raises(InvalidIdError):
            DeltaSaver(store).forks({"configurable": {}})
