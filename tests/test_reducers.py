"""Reducers, against plain Python on decoded values."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from langchain_core.messages import BaseMessage, HumanMessage, RemoveMessage
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages

from deltastore import reducers as rd
from deltastore.codec.blobs import Cut, assemble, cut
from deltastore.codec.records import DICT, LIST
from deltastore.codec.strict import REMOVE_ALL, STRICT, Remove
from deltastore.errors import ChecksumError, InvalidInputError

SMALL = st.integers(0, 9)
KEYS = st.sampled_from(["a", "b", "", b"a", 1, 1.0, True, 0, -0.0, False, None, "1"])
DICTS = st.dictionaries(KEYS, SMALL, max_size=5)
LISTS = st.one_of(st.lists(SMALL, max_size=5), st.lists(st.dictionaries(KEYS, SMALL, max_size=2), max_size=5))
ELEMENT_IDS = st.sampled_from(["a", "b", "c", "1", 1, b"a"])
ELEMENTS = st.builds(lambda id_, content: {"id": id_, "content": content}, ELEMENT_IDS, SMALL)
NAMELESS = st.one_of(
    st.builds(lambda content: {"content": content}, SMALL),
    st.builds(lambda id_: {"id": id_}, st.sampled_from([None, True, 1.0, ["a"]])),
    SMALL,
    st.just(["id"]),
)
UPSERTS = st.lists(
    st.one_of(ELEMENTS, ELEMENTS, NAMELESS, st.builds(Remove, ELEMENT_IDS), st.just(REMOVE_ALL)), max_size=6
)


class Chunks:
    """Numbered chunks of one channel."""

    def __init__(self) -> None:
        self.blobs: list[bytes] = []

    def store(self, value: Any) -> list[int]:
        made = cut(value, STRICT, "channel")
        self.blobs.extend(made.blobs)
        return list(range(len(self.blobs) - len(made.blobs), len(self.blobs)))

    def blob(self, number: int) -> bytes:
        return self.blobs[number]

    def value(self, kind: int, numbers: Sequence[int]) -> Any:
        return assemble(kind, [self.blobs[number] for number in numbers], STRICT)


def fold(reducer: int, kind: int, values: Sequence[Any]) -> Any:
    """Fold values, of which the first is the base, as the store does."""
    chunks = Chunks()
    base, *writes = [chunks.store(value) for value in values]
    return chunks.value(kind, rd.fold_numbers(reducer, base, writes, chunks.blob))


def exact(value: Any) -> Any:
    """Something whose equality is that of type and order."""
    if type(value) is list:
        return [exact(item) for item in value]
    if type(value) is dict:
        return [(exact(key), exact(item)) for key, item in value.items()]
    return type(value), repr(value)


# --- models ---------------------------------------------------------------------


def merged(values: Sequence[dict[Any, Any]]) -> dict[Any, Any]:
    """Later entries in the places of earlier ones with an equal key; the key is the later one's."""
    entries: list[tuple[Any, Any]] = []
    for value in values:
        for key, item in value.items():
            place = next((place for place, (known, _) in enumerate(entries) if known == key), None)
            if place is None:
                entries.append((key, item))
            else:
                entries[place] = (key, item)
    return dict(entries)


def id_of(element: Any) -> tuple[type, Any] | None:
    found = element.get("id") if isinstance(element, dict) else None
    return (type(found), found) if type(found) in (str, int, bytes) else None


def upserted(value: list[Any], write: list[Any]) -> list[Any]:
    """What the docstring of reducers says, one element at a time."""
    if REMOVE_ALL in write:
        last = max(place for place, element in enumerate(write) if element == REMOVE_ALL)
        value, write = [], write[last + 1 :]
    value = list(value)
    removed: set[Any] = set()
    for element in write:
        ids = [id_of(each) for each in value]
        if isinstance(element, Remove):
            named = (type(element.id), element.id)
            removed |= {named} & set(ids)
        elif (named_by := id_of(element)) is not None and named_by in ids:
            removed.discard(named_by)
            value[max(place for place, id_ in enumerate(ids) if id_ == named_by)] = element
        else:
            value.append(element)
    return [element for element in value if id_of(element) not in removed]


class TestReplace:
    @given(st.lists(st.one_of(LISTS, LISTS), min_size=2))
    def test_the_last_write_is_the_value(self, values: list[Any]) -> None:
        assert exact(fold(rd.REPLACE, LIST, values)) == exact(values[-1])


class TestAppend:
    @given(st.lists(LISTS, min_size=1))
    def test_lists_are_joined(self, values: list[Any]) -> None:
        assert exact(fold(rd.APPEND, LIST, values)) == exact([element for value in values for element in value])


class TestMerge:
    @given(st.lists(DICTS, min_size=1))
    @example([{1: 0}, {True: 1}, {1: 2}])
    @example([{0: 0}, {-0.0: 1}, {False: 2}, {0: 3}])
    @example([{"1": 0}, {1: 1}, {b"1": 2}])
    def test_later_entries_take_the_places_of_earlier_ones(self, values: list[Any]) -> None:
        found = fold(rd.MERGE, DICT, values)
        assert exact(found) == exact(merged(values))
        plain: dict[Any, Any] = {}
        for value in values:
            plain |= value
        assert list(found.items()) == list(plain.items())

    def test_a_chunk_that_is_no_entry_is_damage(self) -> None:
        chunks = Chunks()
        base = chunks.store([{"a": 1}])
        with pytest.raises(ChecksumError):
            rd.fold_numbers(rd.MERGE, base, [base], chunks.blob)


class TestUpsert:
    @given(st.lists(ELEMENTS | NAMELESS, max_size=5), st.lists(UPSERTS, max_size=5))
    @example([{"id": "a", "content": 1}, {"id": "a", "content": 2}], [[Remove("a")]])  # twice, as a put may leave it
    @example([], [[Remove("a"), {"id": "a", "content": 1}]])
    @example([{"id": "a", "content": 1}], [[Remove("a"), {"id": "a", "content": 2}]])
    @example([{"id": "a", "content": 1}], [[{"id": "a", "content": 2}, Remove("a")]])
    @example([], [[{"id": "a", "content": 1}, REMOVE_ALL, {"id": "b", "content": 2}, Remove("b"), REMOVE_ALL]])
    def test_it_is_what_the_documentation_says(self, base: list[Any], writes: list[list[Any]]) -> None:
        expected = base
        for write in writes:
            expected = upserted(expected, write)
        assert exact(fold(rd.UPSERT, LIST, [base, *writes])) == exact(expected)

    @given(
        st.lists(ELEMENTS.map(lambda element: element | {"id": str(element["id"])}), max_size=6),
        st.lists(
            st.lists(
                st.one_of(
                    ELEMENTS.map(lambda element: element | {"id": str(element["id"])}),
                    st.builds(Remove, st.sampled_from("abc1")),
                ),
                max_size=6,
            ),
            max_size=4,
        ),
        st.booleans(),
    )
    def test_it_is_what_add_messages_does(self, base: list[Any], writes: list[list[Any]], clear: bool) -> None:
        """Where ids are texts and no unknown one is removed, which is an error there."""
        expected = [message(element) for element in base]
        taken: list[list[Any]] = []
        for write in writes:
            known = {each.id for each in expected}
            kept: list[Any] = []
            for element in write:
                if isinstance(element, Remove):
                    if element.id not in known:
                        continue
                else:
                    known.add(element["id"])
                kept.append(element)
            taken.append(kept)
            expected = list(add_messages(expected, [message(element) for element in kept]))  # type: ignore[arg-type]
        if clear:  # what stands behind the order is taken as it is there: distinct and no removals
            fresh = [{"id": "x", "content": 1}, {"id": "y", "content": 2}]
            taken.append([*base, REMOVE_ALL, *fresh])
            sent = [*map(message, base), RemoveMessage(id=REMOVE_ALL_MESSAGES), *map(message, fresh)]
            expected = list(add_messages(expected, sent))  # type: ignore[arg-type]
        found = fold(rd.UPSERT, LIST, [base, *taken])
        assert [(element["id"], str(element["content"])) for element in found] == [
            (each.id, each.content) for each in expected
        ]

    def test_ids_of_other_types_are_other_ids(self) -> None:
        base = [{"id": 1, "content": 0}, {"id": "1", "content": 1}, {"id": b"1", "content": 2}]
        assert fold(rd.UPSERT, LIST, [base, [{"id": "1", "content": 9}, Remove(b"1")]]) == [
            {"id": 1, "content": 0},
            {"id": "1", "content": 9},
        ]

    @pytest.mark.parametrize("id_", [True, 1.0, None, [1]])
    def test_what_can_be_no_id_is_none(self, id_: Any) -> None:
        assert fold(rd.UPSERT, LIST, [[{"id": 1}], [{"id": id_}, {"id": id_}]]) == [{"id": 1}, {"id": id_}, {"id": id_}]

    def test_removing_what_is_not_there_does_nothing(self) -> None:
        assert fold(rd.UPSERT, LIST, [[{"id": "a"}], [Remove("b"), Remove(1)]]) == [{"id": "a"}]


def message(element: Any) -> BaseMessage:
    if isinstance(element, Remove):
        return RemoveMessage(id=str(element.id))
    return HumanMessage(content=str(element["content"]), id=element["id"])


class TestFolding:
    @given(st.data(), st.sampled_from([rd.REPLACE, rd.APPEND, rd.MERGE, rd.UPSERT]))
    def test_in_pieces_is_as_at_once(self, data: st.DataObject, reducer: int) -> None:
        values = st.lists({rd.MERGE: DICTS, rd.UPSERT: UPSERTS}.get(reducer, LISTS), min_size=1, max_size=6)
        base = data.draw({rd.MERGE: DICTS, rd.UPSERT: st.lists(ELEMENTS | NAMELESS, max_size=5)}.get(reducer, LISTS))
        chunks = Chunks()
        numbers, writes = chunks.store(base), [chunks.store(value) for value in data.draw(values)]
        place = data.draw(st.integers(0, len(writes)))
        first = rd.fold_numbers(reducer, numbers, writes[:place], chunks.blob)
        assert rd.fold_numbers(reducer, first, writes[place:], chunks.blob) == rd.fold_numbers(
            reducer, numbers, writes, chunks.blob
        )

    def test_what_is_folded_onto_is_left_as_it_was(self) -> None:
        chunks = Chunks()
        base, write = chunks.store([{"id": "a"}]), chunks.store([{"id": "b"}])
        for reducer in (rd.APPEND, rd.UPSERT, rd.REPLACE):
            rd.fold_numbers(reducer, base, [write], chunks.blob)
        assert (base, write) == ([0], [1])

    def test_append_and_replace_read_no_chunk(self) -> None:
        def blob_of(number: int) -> bytes:
            raise AssertionError(number)

        assert rd.fold_numbers(rd.APPEND, [1], [[2], [3, 3]], blob_of) == [1, 2, 3, 3]
        assert rd.fold_numbers(rd.REPLACE, [1], [[2], [3, 3]], blob_of) == [3, 3]


class TestNames:
    @pytest.mark.parametrize(
        ("value", "reducer"),
        [([], rd.APPEND), ({}, rd.MERGE), ("", rd.REPLACE), (None, rd.REPLACE), (1, rd.REPLACE)],
    )
    def test_the_first_write_decides_where_nobody_did(self, value: Any, reducer: int) -> None:
        assert rd.default_for(value) == reducer

    def test_numbers_of_the_format(self) -> None:
        assert rd.BUILT_IN == {"replace": 1, "append": 2, "merge": 3, "upsert": 4}
        assert [rd.name_of(number) for number in range(5)] == ["patch", "replace", "append", "merge", "upsert"]
        assert rd.FIRST_INTERNED_REDUCER == 16


class TestReducer:
    def test_writes_are_folded_from_the_initial_value_or_the_present_one(self) -> None:
        total = rd.Reducer("total", 1, lambda value, write: value + write, lambda: 100)
        assert total.fold_all(None, [1, 2], present=False) == 103
        assert total.fold_all(5, [1, 2], present=True) == 8
        assert total.fold_all(None, [], present=False) == 100

    def test_a_present_none_is_a_value(self) -> None:
        last = rd.Reducer("pair", 1, lambda value, write: [value, write], lambda: "initial")
        assert last.fold_all(None, [1], present=True) == [None, 1]

    @given(st.lists(st.text()), st.integers(0, 5))
    def test_folding_in_pieces_is_as_at_once(self, writes: list[str], place: int) -> None:
        join = rd.Reducer("join", 1, lambda value, write: f"({value}{write})", str)
        first = join.fold_all(None, writes[:place], present=False)
        assert join.fold_all(first, writes[place:], present=True) == join.fold_all(None, writes, present=False)

    @pytest.mark.parametrize("name", ["", "a\0b", "append", "merge", "replace", "upsert", "patch", None])
    def test_a_name_that_is_taken_or_cannot_be_stored_is_refused(self, name: Any) -> None:
        with pytest.raises(InvalidInputError):
            rd.Reducer(name, 1, max, int)

    @pytest.mark.parametrize("version", [0, -1, True, 1.0, "1", None])
    def test_a_version_that_is_no_number_from_1_on_is_refused(self, version: Any) -> None:
        with pytest.raises(InvalidInputError):
            rd.Reducer("mine", version, max, int)

    @pytest.mark.parametrize(("fold", "initial"), [(None, int), (max, 0), (max, None)])
    def test_what_cannot_be_called_is_refused(self, fold: Any, initial: Any) -> None:
        with pytest.raises(InvalidInputError):
            rd.Reducer("mine", 1, fold, initial)

    def test_any_other_name_is_taken(self) -> None:
        assert rd.Reducer("Append ünïcode", 7, max, int).version == 7


def test_a_removal_is_cut_like_any_element() -> None:
    made = cut([{"id": "a"}, Remove("a")], STRICT, "channel")
    assert isinstance(made, Cut)
    assert STRICT.decode_list(made.blobs) == [{"id": "a"}, Remove("a")]
