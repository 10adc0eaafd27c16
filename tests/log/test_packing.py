"""Packs that were planned while others packed: a plan that no longer fits is left out."""

from typing import Any

import pytest

from deltastore import Store, check
from deltastore.langgraph import DeltaSaver
from deltastore.log import keys, packing, putting
from deltastore.storage.memory import MemoryStorage
from tests.langgraph.comparing import checkpoint, config


def test_a_stalled_plan_doesnt_put_its_pack_around_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges of ids that overlap would hide each other's checkpoints."""
    store = Store(MemoryStorage(), snapshot_frequency=5)
    saver, log = DeltaSaver(store), store.log
    ids: list[str] = []

    def put(id_: str, parent: str | None) -> None:
        saver.put(config("t", parent), checkpoint(id_, {"m": id_}, {"m": id_}), {}, {})
        ids.append(id_)

    def prepared(id_: str, parent: str) -> putting.Prepared:
        made = saver._make_put(config("t", parent), checkpoint(id_, {"m": id_}, {"m": id_}), {})  # type: ignore[arg-type]
        log.names.numbers(keys.CHANNEL, made.intent.names())
        with log.storage.read() as tx:
            return putting.prepare(tx, made, log._context)

    def apply(made: putting.Prepared) -> Any:
        with log.storage.write() as tx:
            return putting.apply(tx, made, log.now_ms())

    for number in range(32):
        put(f"a{number:02}", ids[-1] if ids else None)
    between = prepared("m-fork", "a01")
    real = packing.plan
    monkeypatch.setattr(packing, "plan", lambda *_: packing.NOTHING)
    for number in range(10):
        put(f"z{number:02}", ids[-1])
    monkeypatch.setattr(packing, "plan", real)
    stalled = prepared("zz-fork", "a00")
    assert isinstance(stalled.packs.records, packing.RecordPack)

    apply(between)
    ids.append("m-fork")
    for number in range(60):  # others pack what sorts into the middle
        put(f"m{number:02}", ids[-1])
    apply(stalled)
    ids.append("zz-fork")

    assert [id_ for id_ in ids if saver.get_tuple(config("t", id_)) is None] == []
    assert [found.checkpoint["id"] for found in saver.list(config("t"))] == sorted(ids, reverse=True)
    assert check(store).ok
