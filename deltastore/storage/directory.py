"""The directory of an embedded store: `CURRENT`, which names the environment's sub-directory, and the moved row.

Imports the port, the errors and their translation. The invariant: at every moment, also after a crash, either `CURRENT`
names a complete environment, or nothing was ever acknowledged and the next opening completes the creation.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from xxhash import xxh3_64_digest

from deltastore.errors import ChecksumError, CorruptionError, InvalidInputError, StorePathError
from deltastore.storage.engine import translate_os, translate_path
from deltastore.storage.port import RESERVED_PREFIX
from deltastore.storage.turns import TURN_FILE

CURRENT = "CURRENT"
FIRST_ENVIRONMENT = "env-1"
DATA_FILE = "data.mdb"
_LOCK_FILE = "lock.mdb"
MOVING_LOCK = "moving.lock"
"""The file whose lock whoever moves a store, or makes it anew, holds; the system takes it from a process that ends."""
_TEMPORARY = "CURRENT.tmp"
"""One name is enough: `CURRENT` is only written under the write lock of the environment it names."""

MOVED_KEY = RESERVED_PREFIX + b"moved"
"""The row that sends every transaction of an environment on to the one that took its place."""

_CHECKSUM_BYTES = 8
_NAME = re.compile(r"env-[1-9][0-9]{0,17}")
_CURRENT_BYTES = 64
"""More than any name takes; what is longer isn't ours."""

Identity = tuple[int, int]
"""Device and inode of a data file: what stays the same under every path, and differs for a file made anew."""


def moved_value(name: str) -> bytes:
    """Return the value of the moved row that names another environment. Raises InvalidInputError."""
    if not _NAME.fullmatch(name):
        raise InvalidInputError(f"an environment can't be named {name!r}; expected 'env-' and a number")
    return name.encode() + xxh3_64_digest(name.encode())


def moved_name(value: bytes, location: str) -> str:
    """Return the name in a moved row. Raises ChecksumError."""
    name, checksum = value[:-_CHECKSUM_BYTES], value[-_CHECKSUM_BYTES:]
    text = name.decode("ascii", "replace")
    if checksum != xxh3_64_digest(name) or not _NAME.fullmatch(text):
        raise ChecksumError(
            f"the moved row in {location} is damaged: found {value[:_CURRENT_BYTES]!r}, expected the name of an "
            "environment and its checksum; restore the store from a copy"
        )
    return text


def identify(environment: Path) -> Identity | None:
    """Return the identity of an environment's data file; None where there is none, or an empty one."""
    try:
        found = os.stat(f"{environment}/{DATA_FILE}")  # of every write: joining paths would take longer than this
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise translate_os(error, os.fspath(environment)) from error
    return (found.st_dev, found.st_ino) if found.st_size else None


def current(root: Path) -> str | None:
    """Return the name that `CURRENT` holds, or None without it. Raises CorruptionError, StorageError."""
    try:
        with (root / CURRENT).open("rb") as file:
            found = file.read(_CURRENT_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise translate_os(error, os.fspath(root)) from error
    name = found.decode("ascii", "replace").removesuffix("\n")
    if not _NAME.fullmatch(name):
        raise CorruptionError(
            f"{root / CURRENT} is damaged: found {found!r}, expected the name of a sub-directory such as "
            f"{FIRST_ENVIRONMENT!r}; it names the one that holds the newest data, {_environments(root)}"
        )
    return name


def is_later(name: str, than: str) -> bool:
    """Tell whether an environment was made after another one of its store."""
    return int(name.removeprefix("env-")) > int(than.removeprefix("env-"))


def check_named(root: Path, name: str) -> None:
    """Refuse to go on where an environment that was named isn't there. Raises CorruptionError."""
    if identify(root / name) is None:
        raise CorruptionError(
            f"{root / name / DATA_FILE} is missing or empty, and the store {root} names it; expected the data there, "
            f"{_environments(root)}; restore the store from a copy"
        )


def check_store(root: Path) -> None:
    """Refuse a path where no store is yet. Raises StorePathError naming what was found, CorruptionError."""
    if current(root) is not None:
        return
    if not root.exists():
        raise StorePathError(f"{root} doesn't exist; expected the directory of a store")
    if not root.is_dir():
        raise StorePathError(f"{root} is a file; expected the directory of a store")
    with contextlib.suppress(StorePathError):  # which tells how to make one there
        _check_ours(root)
    try:
        names = sorted(path.name for path in root.iterdir())
    except OSError as error:
        raise translate_os(error, os.fspath(root)) from error
    held = ", ".join(names[:3]) + (", …" if len(names) > 3 else "") if names else "nothing"
    raise StorePathError(f"{root} is no store, for there is no file {CURRENT}: it holds {held}")


def is_free(path: str | os.PathLike[str]) -> bool:
    """Tell whether nothing is at a path, or an empty directory. Raises StorePathError."""
    try:
        return not any(Path(path).iterdir())
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        return False
    except OSError as error:
        raise translate_path(error, os.fspath(path), f"{os.fspath(path)} can't be looked at: {error}") from error


def prepare(root: Path) -> None:
    """Make the directory of a store and the first environment's, or complete them after a crash.

    Raises StorePathError where the path is something else, which is left as it is.
    """
    try:
        root.mkdir()
    except FileExistsError:
        pass
    except OSError as error:
        text = f"no store can be made at {root}: {error}; its parent must be a directory, and writable"
        raise translate_path(error, os.fspath(root), text) from error
    _check_ours(root)
    try:
        (root / FIRST_ENVIRONMENT).mkdir()
    except FileExistsError:
        pass
    except OSError as error:
        raise translate_os(error, os.fspath(root)) from error


def write_current(root: Path, name: str) -> None:
    """Make `CURRENT` name an environment, durably and at once. Needs the write lock of the one named before."""
    temporary = root / _TEMPORARY
    try:
        with temporary.open("wb") as file:
            file.write(name.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(root / CURRENT)
        sync_directory(root)
    except OSError as error:
        raise translate_os(error, os.fspath(root)) from error


@contextlib.contextmanager
def locked(root: Path, *, wait: bool) -> Iterator[bool]:
    """Have the lock of whoever moves a store or makes it anew; False where somebody has it and one doesn't `wait`.

    Without effect where there are no POSIX locks: there nobody can remove a file that another process has open, which
    is what it is for.
    """
    try:
        descriptor = os.open(root / MOVING_LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise translate_os(error, os.fspath(root)) from error
    try:
        if os.name != "posix":
            yield True
            return
        import fcntl

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if wait:
                raise translate_os(error, os.fspath(root)) from error
            yield False
            return
        try:
            yield True
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child forked meanwhile has the descriptor too
    finally:
        os.close(descriptor)


def remove_data(environment: Path) -> None:
    """Remove an environment's data file, so that opening makes another one. Needs the lock."""
    try:
        (environment / DATA_FILE).unlink()
    except OSError as error:
        raise translate_os(error, os.fspath(environment)) from error


def sync_directory(path: Path) -> None:
    """Make the names in a directory survive a power cut, where the system can."""
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_ours(root: Path) -> None:
    try:
        names = {path.name for path in root.iterdir()}
        strangers = names - {FIRST_ENVIRONMENT, _TEMPORARY, CURRENT, MOVING_LOCK}
        if FIRST_ENVIRONMENT in names:
            inner = {path.name for path in (root / FIRST_ENVIRONMENT).iterdir()} - {DATA_FILE, _LOCK_FILE, TURN_FILE}
            strangers |= {f"{FIRST_ENVIRONMENT}/{name}" for name in inner}
    except OSError as error:
        text = f"{root} is no store and can't become one: {error}; expected a directory"
        raise translate_path(error, os.fspath(root), text) from error
    if not strangers or current(root) is not None:  # another process may have completed the creation meanwhile
        return
    if all(_NAME.fullmatch(name) for name in strangers):
        raise CorruptionError(
            f"{root} has no file {CURRENT}; expected it to name the sub-directory that holds the newest data, "
            f"{_environments(root)}; write that name into it"
        )
    shown = ", ".join(sorted(strangers)[:3])
    raise StorePathError(f"{root} is no store but holds {shown}; name an empty directory, or one to be made")


def _environments(root: Path) -> str:
    names = sorted(path.name for path in root.glob("env-*") if identify(path) is not None)
    return f"and there are {', '.join(names)}" if names else "and there is none"
