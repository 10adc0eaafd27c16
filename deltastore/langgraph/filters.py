"""Filters of `list`: which metadata they match.

Pure; imports errors and LangGraph. The invariant: a value is compared as it is stored, type by type at every level:
True isn't 1, and 1 isn't 1.0.
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

from langgraph.checkpoint.base import CheckpointMetadata, get_checkpoint_metadata

from deltastore.errors import DeltastoreError, EncodeError, InvalidInputError


def as_stored(wanted: Any, reload: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a filter as `matches` takes it: each value as a put would have stored it; no filter is an empty one.

    `reload` gives what the serializer makes of a value. Raises InvalidInputError for anything but a dict, EncodeError
    naming the key where a value can't be stored, and what `reload` raises of deltastore.errors.
    """
    if wanted is None:
        return {}
    if not isinstance(wanted, dict):
        raise InvalidInputError(
            f"a filter is a dict of metadata keys and the values wanted; found {type(wanted).__name__}"
        )
    found: dict[str, Any] = {}
    # the same function that makes metadata of what a put is given: it takes NUL characters out of text
    for key, value in get_checkpoint_metadata({}, cast(CheckpointMetadata, wanted)).items():
        try:
            found.update(reload({key: value}))
        except DeltastoreError:
            raise
        except Exception as error:  # a serializer may raise anything
            raise EncodeError(
                f"the filter's {type(value).__name__} at [{key!r}] can't be stored ({type(error).__name__}: {error}), "
                "so no metadata can hold it. Ask for a value of a supported type",
                channel="filter",
                path=f"[{key!r}]",
            ) from error
    return found


def matches(wanted: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """Tell whether metadata has each of the values wanted; None is wanted of a key that is None or missing.

    The order of dicts doesn't matter, that of lists does. NaN matches NaN, and 0.0 matches -0.0.
    """
    return all(_same(value, metadata.get(key)) for key, value in wanted.items())


def _same(one: Any, other: Any) -> bool:
    from deltastore.langgraph.differing import differences  # most lists have no filter

    return next(differences(one, other, signed_zeros=False), None) is None
