"""What a forger does to a saver's store: chunks replaced behind its back, in rows with the right checksums."""

from collections.abc import Callable

from deltastore import Store
from deltastore.codec import chunkrow
from deltastore.codec.primitives import seal, unseal
from deltastore.codec.records import SERIES
from deltastore.log import keys
from deltastore.storage import Storage
from tests.raw import put_raw, rows_of


def forge(storage: Storage, change: Callable[[bytes], bytes | None], thread: int = 1) -> int:
    """Give every chunk of a thread to `change`, and store what it returns in its place; return how many changed."""
    changed = 0
    prefixes = tuple(keys.chunks(thread, series) for series in range(SERIES))
    for key, sealed in rows_of(storage).items():
        if not key.startswith(prefixes):
            continue
        row = chunkrow.decode_row(unseal(key, sealed), int.from_bytes(key[-keys.NUMBER_BYTES :], "big"), None)
        new = {number: change(blob) for number, blob in row.whole.items()}
        whole = {number: new[number] or blob for number, blob in row.whole.items()}
        tags = b"".join(whole[number][:1] if number in whole else bytes((row.tag(number),)) for number in row.numbers)
        forged = chunkrow.ChunkRow(row.numbers, tags, whole, row.based)
        put_raw(storage, key, seal(key, chunkrow.encode_row(forged, chunkrow.encode_body(forged))))
        changed += sum(blob is not None for blob in new.values())
    return changed


def tag_of(store: Store, name: str) -> bytes:
    """Return the tag byte of a kind of data, as a forger would have it named."""
    return bytes((store.log.names.number(keys.TAG, name),))
