"""The one door to LMDB: opening an environment, and telling its errors in the terms of `deltastore.errors`.

The only module that imports `lmdb`; besides it the port and the errors. The invariant: no error class of the engine
gets past the storage package.
"""

import contextlib
import errno
import importlib
import mmap
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    import lmdb
except ImportError as error:  # pragma: no cover - an installation without the embedded storage
    raise ImportError("the embedded storage needs the package 'lmdb'; install it") from error

from deltastore.errors import (
    CorruptionError,
    DeltastoreError,
    InvalidInputError,
    StorageError,
    StoreFullError,
    StorePathError,
)
from deltastore.storage.port import SyncMode

Environment = lmdb.Environment
if TYPE_CHECKING:
    Transaction = lmdb.Transaction[bytes]
    Views = lmdb.Transaction[memoryview[int]]

EngineError = lmdb.Error
MapFullError = lmdb.MapFullError
MapResizedError = lmdb.MapResizedError
ReadersFullError = lmdb.ReadersFullError
NoMemoryError = lmdb.MemoryError

MAX_READERS = 1024
"""Reader slots: one per read transaction open at the same time, over all processes. 64 bytes each in the lock file;
LMDB's own 126 are soon taken by a few dozen worker processes with threads."""

_FORMAT: dict[str, Any] = {"lib_version": 0} if int(lmdb.__version__.partition(".")[0]) >= 3 else {}
"""New environments get the file format of LMDB 0.9, the only one that bindings before 3.0 know; unsaid, a variable in
the surroundings of the process would decide it."""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""What the operating system says when there is no room: on the device, in the quota, under the file size limit."""

_SCARCE_BYTES = 1 << 20
"""Room below which a write cut short is put down to it: LMDB writes at most so much at once, a large value apart."""

_META_PAGES = 2
_MAX_PAGE_BYTES = 32 * 1024
"""Pages of LMDB are as large as the system's, but for this limit."""
_LOCK_BYTES = 128 * 1024
"""Room for a lock file of so many readers, and for the blocks that tell where it is."""

_DAMAGE = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.VersionMismatchError, lmdb.InvalidError)


def translate(error: lmdb.Error, location: str) -> DeltastoreError:
    """Return the error that a caller shall see in place of the engine's."""
    kind: type[DeltastoreError] = StorageError
    if isinstance(error, lmdb.MapFullError):
        kind, text = StoreFullError, "the map is full"
    elif getattr(error, "code", 0) in _FULL or (getattr(error, "code", 0) == errno.EIO and _no_room(location)):
        kind, text = StoreFullError, "no room left on the device or in the quota; make room and try again"
    elif isinstance(error, _DAMAGE):
        kind, text = CorruptionError, "the file isn't what was written; restore it from a copy"
    elif isinstance(error, lmdb.BadValsizeError):
        kind, text = InvalidInputError, "a key or value of a size that can't be stored"
    elif isinstance(error, lmdb.BadTxnError):
        text = "an earlier error ended this transaction, and nothing was written"
    elif getattr(error, "code", 0) == errno.EROFS or "Read-only file system" in str(error):
        text = "the file system is read-only, and even readers write into the lock file; copy the store to read it"
    elif isinstance(error, lmdb.ReadonlyError):
        text = "no permission; data and lock file must be writable, by readers too"
    else:
        text = "the engine refused"
    return kind(f"{location}: {text} ({error})")


def _no_room(location: str) -> bool:
    """Tell whether an input/output error was want of room: LMDB reports a write cut short by a full device as one."""
    try:
        if shutil.disk_usage(location).free < _SCARCE_BYTES:
            return True
        if os.name != "posix":
            return False
        import resource  # not on Windows

        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        largest = max(path.stat().st_size for path in Path(location).iterdir())
    except (OSError, ValueError):
        return False
    return limit != resource.RLIM_INFINITY and largest > limit - _SCARCE_BYTES


def translate_os(error: OSError, location: str) -> DeltastoreError:
    """Return the error that a caller shall see in place of the operating system's."""
    if error.errno in _FULL:
        return StoreFullError(f"{location}: {error}; make room and try again")
    return StorageError(f"{location}: the operating system refused: {error}")


def translate_path(error: OSError, location: str, text: str) -> DeltastoreError:
    """Return the error for a path where nothing can be made: a StorePathError, unless it is the device that refuses."""
    return translate_os(error, location) if error.errno in _FULL | {errno.EIO} else StorePathError(text)


def check_lock_room(directory: Path) -> None:
    """Refuse to let the engine make a lock file without room for it: it is mapped, and a write would be a SIGBUS.

    Raises StoreFullError, OSError.
    """
    if os.name != "posix":
        return
    try:
        has_room = (directory / "lock.mdb").stat().st_blocks > 0
    except FileNotFoundError:
        has_room = False
    if not has_room and shutil.disk_usage(directory).free < _LOCK_BYTES:
        raise StoreFullError(f"{directory}: no room left on the device for the lock file; make room and try again")


def open_environment(directory: Path, map_bytes: int, sync: SyncMode, *, forked: bool) -> Environment:
    """Open the environment in a directory that exists. Raises the engine's own errors.

    This process must have no other one open on the same files: closing either would drop the file locks of both. What
    it inherited by fork doesn't count, if it says that it was `forked`.
    """
    with _own_guard() if forked else contextlib.nullcontext():
        return lmdb.Environment(
            os.fspath(directory),
            map_size=map_bytes,
            # Off: with `full`, redo records or a second call make a commit durable, see `redo`.
            metasync=False,
            sync=sync != "none",
            # On, because rows that are read together have neighbouring keys, and a cold store is read in ranges;
            # without it every page of a range costs a disk access of its own.
            readahead=True,
            # Off: with a writable map a stray pointer of any extension module writes into the store.
            writemap=False,
            create=False,
            max_readers=MAX_READERS,
            max_dbs=0,
            **_FORMAT,
        )


def is_without_rows(file: Path) -> bool:
    """Tell whether a data file is too short for a row, whatever is in it: LMDB begins one with two pages about it."""
    return file.stat().st_size <= _META_PAGES * min(mmap.PAGESIZE, _MAX_PAGE_BYTES)


def can_map(more_bytes: int) -> bool:
    """Tell whether this much more address space is to be had; asked first, for a failed remap loses the map."""
    if more_bytes <= 0:
        return True
    if os.name != "posix":
        return sys.maxsize >> 1 > more_bytes
    try:
        mmap.mmap(-1, more_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


def keep_for_ever(thing: object) -> None:
    """Take a reference that the end of the interpreter doesn't drop either.

    For what a forked child inherits in the middle of a transaction: finalising it would touch locks that only the
    parent's threads may touch, or wait for threads that the child doesn't have.
    """
    import ctypes  # only here: it is slow to import, and few processes fork within a transaction

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


@contextlib.contextmanager
def _own_guard() -> Iterator[None]:
    """Let a forked child open what its parent has open.

    The binding refuses to open a file twice in one process, and counts what was inherited as open. It isn't: a child
    has no file locks of its parent. Marking the keys of the guard with this process keeps it working for the child's
    own environments.
    """
    try:
        guard = importlib.import_module("lmdb._envid").__dict__
        keys = guard["env_keys"]
    except (ImportError, KeyError):  # another release of the binding: it refuses by itself if it has to
        yield
        return
    process = os.getpid()
    guard["env_keys"] = lambda path, subdir: tuple((process, key) for key in keys(path, subdir))
    try:
        yield
    finally:
        guard["env_keys"] = keys
