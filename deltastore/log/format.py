"""The format row: which version a store has, its uuid, and the options it was made with.

Imports keys, names, rows and policy. The invariant: only a storage without any row is made a store.
"""

import os
from typing import Any

import ormsgpack

from deltastore.errors import ChecksumError, DeltastoreError, FormatError, InvalidInputError, UnfinishedCopyError
from deltastore.log import keys, names, rows
from deltastore.log.policy import MAX_SNAPSHOT_FREQUENCY
from deltastore.storage.port import ReadTransaction, Storage, WriteTransaction

FORMAT_VERSION = 1
"""The format that this release reads and writes."""
FEATURES: frozenset[str] = frozenset()
"""What stores of this version may use beyond its text as first promised, and this release knows."""
UUID_BYTES = 16
"""Drawn from the system, not by the uuid module, which tests like to make predictable."""


def open_format(storage: Storage, snapshot_frequency: int | None) -> tuple[int, bytes, dict[str, Any]]:
    """Return a store's format version, uuid and options; a fresh storage is given them.

    Raises FormatError, ChecksumError, UnfinishedCopyError.
    """
    with storage.read() as tx:
        row = rows.get(tx, keys.FORMAT)
    if row is None:
        row = names.in_write(storage, (), lambda tx: _make_format(tx, storage.location, snapshot_frequency))
    match rows.parse(keys.FORMAT, row):
        case [int(version), *_] if version != FORMAT_VERSION:
            remedy = "dump it with the release that wrote it, and load the dump with this one"
            if version > FORMAT_VERSION:
                remedy = "open it with a newer release"
            raise FormatError(
                f"{storage.location} has format version {version}; this release reads version {FORMAT_VERSION}. "
                f"Nothing was changed; {remedy}"
            )
        case [int(version), bytes(store_uuid), dict(options)]:
            _check_features(storage, options.get("features", []))
            return version, store_uuid, options
    raise ChecksumError(f"{storage.location}: the format row doesn't parse; restore from a backup")


def _check_features(storage: Storage, features: object) -> None:
    """Refuse a store that uses what this release doesn't know. Raises FormatError, ChecksumError."""
    if not isinstance(features, list) or not all(isinstance(feature, str) for feature in features):
        raise ChecksumError(f"{storage.location}: the format row's features don't parse; restore from a backup")
    unknown = sorted(set(features) - FEATURES)
    if unknown:
        raise FormatError(
            f"{storage.location} uses {', '.join(unknown)}, which this release doesn't know. "
            "Nothing was changed; open it with a newer release"
        )


def _make_format(tx: WriteTransaction, location: str, snapshot_frequency: int | None) -> bytes:
    row = rows.get(tx, keys.FORMAT)
    if row is not None:  # another process was first
        return row
    if next(tx.scan(b"", b"\xff"), None) is not None:
        raise _why_no_store(tx, location)
    options = {} if snapshot_frequency is None else {"snapshot_frequency": snapshot_frequency}
    made = ormsgpack.packb([FORMAT_VERSION, os.urandom(UUID_BYTES), options])
    rows.put(tx, keys.FORMAT, made)
    return made


def _why_no_store(tx: ReadTransaction, location: str) -> DeltastoreError:
    """Return what is wrong with a place that has rows but no format row. Raises ChecksumError."""
    from deltastore.log import unfinished  # seldom met

    copied = unfinished.load(tx)
    if copied is None:
        return ChecksumError("rows are stored, but the format row is missing; restore from a backup")
    return UnfinishedCopyError(
        f"{location} is an unfinished copy of {copied.source}, so it can't be opened yet; "
        f"finish it with deltastore copy {copied.source} {location}, or remove it"
    )


def check_frequency(frequency: int) -> None:
    """Raise InvalidInputError unless this is a snapshot frequency."""
    if type(frequency) is not int or not 1 <= frequency <= MAX_SNAPSHOT_FREQUENCY:
        raise InvalidInputError(f"snapshot_frequency {frequency!r}; expected an int from 1 to {MAX_SNAPSHOT_FREQUENCY}")
