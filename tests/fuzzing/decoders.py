"""Every decoder of stored bytes, by name, with the rows of a real store to begin from.

Used by the property tests and by `tools/fuzz`. A decoder takes any bytes and gives a value or an error of `ALLOWED`.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import deltastore
from deltastore import Store
from deltastore.codec import blobs as bl
from deltastore.codec import chunkrow, recordrow, spans
from deltastore.codec import records as rec
from deltastore.codec.dictionary import Dictionary
from deltastore.codec.generic import GenericCodec
from deltastore.codec.glance import glance
from deltastore.codec.primitives import Reader, dictionary_of, plain_size, seal, unpack, unseal
from deltastore.codec.strict import STRICT, element_id, entry_key, removal_id
from deltastore.errors import CodecMismatchError, CorruptionError, FormatError
from deltastore.langgraph import messages
from deltastore.log import dictionaries, keys, names, quarantine, retention, rows
from deltastore.storage.directory import moved_name
from deltastore.storage.memory import MemoryStorage
from deltastore.storage.rules import unpack_counter
from tests.raw import rows_of
from tests.upkeep import both_fronts

ALLOWED = (CorruptionError, CodecMismatchError, FormatError)
"""What a decoder may raise: damage, a tag of another codec, another version."""

KEY = keys.thread(1) + b"r" + bytes(19)
LAST = 40
"""The greatest number of the chunk rows that are decoded."""


@dataclass(frozen=True)
class Decoder:
    decode: Callable[[bytes], Any]
    seeds: Sequence[bytes]


def _records(data: bytes, last: bytes = KEY[-16:]) -> Any:
    """A row of records, and all that is read of it lazily."""
    recordrow.dictionary_of_row(data)
    found = recordrow.decode_row(data, last, no_dictionary)
    for record in found.records:
        rec.fields_of(record)
    for written in found.writes.values():
        for row in written.values():
            rows.decode_tasks(KEY, row)
    return found


def _opened(data: bytes) -> Any:
    """The same, opened as a listing does."""
    found = recordrow.open_row(data, KEY[-16:], no_dictionary)
    found.visible("x")
    for place in range(len(found.records)):
        rec.fields_of(found.records[place])
    return list(found.writes)


def _chunks(data: bytes) -> Any:
    last = int.from_bytes(data[:2], "big") + 1  # the key is no less hostile than the row
    head = chunkrow.decode_head(data[2:], last)
    found = chunkrow.decode_row(data[2:], last, no_dictionary)
    assert found.numbers == head.numbers
    return {number: chunkrow.resolve(number, found, lambda _: b"\1" + bytes(9000)) for number in found.numbers}


def no_dictionary(number: int) -> Dictionary:
    raise CorruptionError(f"no dictionary {number}")


def _split(data: bytes) -> list[bytes]:
    """Cut bytes into blobs of at least a tag: a byte of length before each."""
    out: list[bytes] = []
    while data:
        length = data[0] + 1
        out.append(data[1 : 1 + length] or b"\1")
        data = data[1 + length :]
    return out


def _joined(blobs: Sequence[bytes]) -> bytes:
    return b"".join(bytes((len(blob) - 1,)) + blob for blob in blobs if len(blob) <= 256)


def _assembled(codec: Any) -> Callable[[bytes], Any]:
    def decode(data: bytes) -> Any:
        return bl.assemble(data[0] if data else 0, _split(data[1:]), codec)

    return decode


def _strict_parts(data: bytes) -> Any:
    blob = data or b"\1"
    for ask in (element_id, removal_id, entry_key):
        try:
            ask(blob)
        except ALLOWED:
            continue
    return None


def _load(data: bytes) -> Any:
    with Store(MemoryStorage()) as store:
        before = rows_of(store.log.storage)
        try:
            loaded = deltastore.load(store, io.BytesIO(data))
        except BaseException:
            # what a load leaves is a queued number, for a collection; nothing of it can be read
            assert list(store.threads()) == [] or b"thread end" in data
            raise
        assert loaded.threads or rows_of(store.log.storage) == before
        return loaded


def _type_of(tag: int) -> str:
    return "a.Serializer\x001\x00opaque\x00kind"


def _reads(data: bytes) -> Any:
    reader = Reader(data)
    numbers = [reader.varint() for _ in range(reader.varint() % 8)]
    reader.take(reader.varint())
    reader.finish()
    return numbers


def rows_by_kind(found: dict[bytes, bytes]) -> dict[bytes, list[tuple[bytes, bytes]]]:
    out: dict[bytes, list[tuple[bytes, bytes]]] = {}
    for key, row in found.items():
        kind = (b"0" if key.startswith(keys.STORE) else b"") + key[6:7]
        out.setdefault(kind, []).append((key, row if kind == b"0C" else unseal(key, row)))
    return out


def decoders() -> dict[str, Decoder]:
    """Return all decoders, each with seeds."""
    store = Store(MemoryStorage(), snapshot_frequency=4)
    both_fronts.fill(store)
    store.retention = deltastore.Retention(keep_last=5)
    dump = io.BytesIO()
    deltastore.dump(store, dump)
    deltastore.compact(store)
    kinds = rows_by_kind(rows_of(store.log.storage))
    values = {kind: [row for _, row in found] for kind, found in kinds.items()}
    chunk_rows = [
        min((int.from_bytes(key[-keys.NUMBER_BYTES :], "big") - 1), 0xFFFF).to_bytes(2, "big") + row
        for key, row in kinds[b"c"]
    ]
    blobs = [
        blob
        for key, row in kinds[b"c"]
        for blob in chunkrow.decode_row(row, int.from_bytes(key[-6:], "big"), no_dictionary).whole.values()
    ]
    lists = [bytes((kind,)) + _joined(blobs[place : place + 4]) for place in range(20) for kind in range(5)]
    key, made = KEY, Decoder
    return {
        "varints": made(_reads, [b"\1\5\2ab"]),
        "sealed row": made(lambda data: unseal(key, data), [seal(key, b"row")]),
        "packed": made(lambda data: (dictionary_of(data), plain_size(data), unpack(data, no_dictionary)), values[b"w"]),
        "spans": made(lambda data: spans.decode(data, 1), [spans.encode([(1, 3), (9, 2), (4, 1)], 1)]),
        "record rows": made(_records, values[b"r"]),
        "record rows, listed": made(_opened, values[b"r"]),
        "glance": made(lambda data: glance(data, no_dictionary), values[b"r"]),
        "chunk rows": made(_chunks, chunk_rows),
        "strict values": made(_assembled(STRICT), lists),
        "strict parts": made(_strict_parts, blobs),
        "generic values": made(_assembled(GenericCodec(_type_of)), lists),
        "messages": made(
            lambda data: messages.decode([blob for blob in _split(data) if blob]),
            [_joined([blob]) for blob in blobs if blob[0] == bl.JSONPLUS_MESSAGE],
        ),
        "header": made(lambda data: rows.Header.decode(key, data), values[b"h"]),
        "namespaces": made(lambda data: rows.decode_namespaces(key, data), values[b"n"]),
        "by-id rows": made(lambda data: rows.decode_id_entry(key, data), values[b"i"]),
        "writes": made(lambda data: rows.decode_tasks(key, data), values[b"w"]),
        "names": made(lambda data: names.parse_entries(key, data), values[b"0H"]),
        "name": made(keys.decode_name, values[b"0N"]),
        "retention": made(lambda data: retention.decode(key, data), values[b"0K"]),
        "dictionary": made(
            lambda data: dictionaries.decode(key, data),
            [dictionaries.Stored(1, dictionaries.KINDS[0], 1, True, 1, b"dict").encode()],
        ),
        "quarantine": made(
            lambda data: quarantine.decode(key, seal(key, data)),
            [unseal(*quarantine.sealed(1, quarantine.Quarantined(b"key", b"row", "why", 5)))],
        ),
        "counter": made(lambda data: unpack_counter(key, data, "here"), values[b"0C"]),
        "moved row": made(lambda data: moved_name(data, "here"), [b"env-2" + bytes(8)]),
        "dump": made(_load, [dump.getvalue()]),
    }
