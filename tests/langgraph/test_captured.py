"""Values are fixed when `aput` is called, whatever happens before it is done."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from deltastore import Store
from deltastore.langgraph import DeltaSaver
from tests.langgraph.comparing import checkpoint, config


def made(id_: str, value: Any, version: int, other: int) -> dict[str, Any]:
    return checkpoint(id_, {"m": version, "k": other}, {"m": value, "k": other})


def delete_thread(saver: DeltaSaver) -> None:
    saver.delete_thread("t")


def put_the_parent_again(saver: DeltaSaver) -> None:
    saver.put(config("t"), made("1", ["other"], 7, 1), {}, {})


@pytest.mark.parametrize("meanwhile", [delete_thread, put_the_parent_again])
def test_a_value_with_the_parents_version_is_the_parents(store: Store, meanwhile: Callable[[DeltaSaver], None]) -> None:
    saver = DeltaSaver(store)
    value = ["one"]
    child = saver.put(config("t"), made("1", value, 1, 1), {}, {})

    async def run() -> None:
        with store.log._commits.turn:  # nobody else prepares meanwhile
            task = asyncio.create_task(saver.aput(child, made("2", value, 1, 2), {}, {}))
            await asyncio.sleep(0)  # runs it up to its first await
            meanwhile(saver)
            value.append("changed after aput was called")
        await task

    asyncio.run(run())
    found = saver.get_tuple(config("t"))
    assert found is not None
    assert found.checkpoint["channel_values"] == {"m": ["one"], "k": 2}
