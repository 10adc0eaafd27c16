"""Folds of channels that the store itself can't fold, by a reducer that the user names. Pure."""

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from deltastore.codec.generic import Built
from deltastore.errors import InvalidInputError
from deltastore.upkeep.inspecting import Unfolded


class KnownReducer(StrEnum):
    """What a channel's writes may be folded by. append: lists joined; merge: dicts; upsert: by the elements' id."""

    APPEND = "append"
    MERGE = "merge"
    UPSERT = "upsert"


def fold(value: Unfolded, reducer: KnownReducer) -> Any:
    """Return what a channel's seed and writes make. Raises InvalidInputError where they aren't what it folds."""
    current: Any = value.seed if value.present and value.seed is not None else ({} if reducer == "merge" else [])
    for write in value.writes:
        current = _FOLDS[reducer](current, write)
    return current


def _append(current: Any, write: Any) -> list[Any]:
    return [*_expect(current, list, "append"), *(write if isinstance(write, list) else [write])]


def _merge(current: Any, write: Any) -> dict[Any, Any]:
    return _expect(current, dict, "merge") | _expect(write, dict, "merge")  # type: ignore[no-any-return]


def _upsert(current: Any, write: Any) -> list[Any]:
    out = list(_expect(current, list, "upsert"))
    for element in write if isinstance(write, list) else [write]:
        id_ = _id(element)
        place = next((n for n, held in enumerate(out) if id_ is not None and _id(held) == id_), None)
        if isinstance(element, Built) and element.name.endswith(".RemoveMessage"):
            out = [] if id_ == "__remove_all__" else [held for held in out if _id(held) != id_]
        elif place is None:
            out.append(element)
        else:
            out[place] = element
    return out


def _id(element: Any) -> Any:
    parts = element.parts if isinstance(element, Built) else element
    return parts.get("id") if isinstance(parts, dict) else None


def _expect(value: Any, kind: type, reducer: str) -> Any:
    if not isinstance(value, kind):
        raise InvalidInputError(f"{reducer} folds a {kind.__name__}, and here is a {type(value).__name__}")
    return value


_FOLDS: dict[str, Callable[[Any, Any], Any]] = {"append": _append, "merge": _merge, "upsert": _upsert}
