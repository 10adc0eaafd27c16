"""Tags: names that users give to checkpoints, so that retention keeps them. Imports keys and rows.

The invariant: within a namespace a tag names one checkpoint, which is there: deleting it takes its tags along.
"""

from collections.abc import Collection

import ormsgpack

from deltastore.codec.primitives import unseal
from deltastore.codec.records import pack_id, unpack_id
from deltastore.errors import ChecksumError
from deltastore.log import keys, rows
from deltastore.storage.port import ReadTransaction, WriteTransaction

Entries = list[tuple[bytes, str]]
"""The tags of one row, each with its checkpoint's id: one, but for names that share a hash."""


def decode(key: bytes, data: bytes) -> Entries:
    """Parse a tag row. Raises ChecksumError."""
    found = rows.parse(key, data)
    if not isinstance(found, list) or not found:
        raise ChecksumError(f"row {key.hex()} is no tag row")
    out: Entries = []
    for fields in found:
        match fields:
            case [bytes(name), bytes() | str() as id_]:
                out.append((name, unpack_id(id_) or ""))
            case _:
                raise ChecksumError(f"row {key.hex()} is no tag row")
    return out


def _store(tx: WriteTransaction, key: bytes, entries: Entries) -> None:
    if entries:
        rows.put(tx, key, ormsgpack.packb([[name, pack_id(id_)] for name, id_ in entries]))
    else:
        tx.delete(key)


def put(tx: WriteTransaction, thread: int, namespace: int, name: bytes, id_: str) -> None:
    """Let a tag name a checkpoint, in place of the one that it named."""
    key = keys.tag(thread, namespace, name)
    _store(tx, key, [*_others(tx, key, name), (name, id_)])


def delete(tx: WriteTransaction, thread: int, namespace: int, name: bytes) -> bool:
    """Remove a tag, and tell whether it was there."""
    key = keys.tag(thread, namespace, name)
    row = rows.get(tx, key)
    others = _others(tx, key, name)
    if row is None or len(others) == len(decode(key, row)):
        return False
    _store(tx, key, others)
    return True


def _others(tx: ReadTransaction, key: bytes, name: bytes) -> Entries:
    row = rows.get(tx, key)
    return [] if row is None else [entry for entry in decode(key, row) if entry[0] != name]


def load(tx: ReadTransaction, thread: int, namespace: int) -> dict[str, str]:
    """Return a namespace's tags: name → checkpoint id, by name."""
    prefix = keys.tags(thread, namespace)
    found = [entry for key, row in tx.scan(prefix, keys.end_of(prefix)) for entry in decode(key, unseal(key, row))]
    return {keys.decode_name(name): id_ for name, id_ in sorted(found)}


def remove(tx: WriteTransaction, thread: int, namespace: int, ids: Collection[str]) -> None:
    """Remove the tags of checkpoints that go."""
    prefix = keys.tags(thread, namespace)
    for key, row in list(tx.scan(prefix, keys.end_of(prefix))):
        entries = decode(key, unseal(key, row))
        left = [entry for entry in entries if entry[1] not in ids]
        if len(left) < len(entries):
            _store(tx, key, left)
