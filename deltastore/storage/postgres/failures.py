"""What the server or the network refused, as errors of ours. Imports the errors and wire."""

from typing import Final

import psycopg

from deltastore.errors import DeltastoreError, StorageError, StoreFullError, StorePathError
from deltastore.storage.postgres.statements import IS_ANOTHER
from deltastore.storage.postgres.wire import NAME_TAKEN, NAME_UNKNOWN, LostError, ServerError
from deltastore.storage.retry import RetryTransaction

SERIALIZATION_FAILURE, DEADLOCK_DETECTED = "40001", "40P01"
UNDEFINED_TABLE, UNDEFINED_SCHEMA, UNDEFINED_FUNCTION = "42P01", "3F000", "42883"
INSUFFICIENT_PRIVILEGE = "42501"
UNIQUE_VIOLATION, DUPLICATE_SCHEMA, DUPLICATE_TABLE = "23505", "42P06", "42P07"
_OF_NAMES: Final = (NAME_UNKNOWN, NAME_TAKEN)
_AGAIN: Final = (SERIALIZATION_FAILURE, DEADLOCK_DETECTED, IS_ANOTHER, *_OF_NAMES)
_GONE: Final = ("57P01", "57P02", "57P03", "25P03", "57P05", "08")
"""The server ends the connection, or is about to: as good as lost."""
_REMEDIES: Final = {
    "25006": "this server is a read-only replica, or was told to be read-only; give the URL of the primary",
    "42501": "give this role the privileges that `deltastore migrate URL --dry-run` names",
    "42P01": "the store's tables aren't there any more; close this handle",
    "3F000": "the store's schema isn't there any more; close this handle",
    "53200": "raise max_locks_per_transaction or the server's memory, or let fewer processes write at a time",
    "53300": "all connections are in use: lower pool_size, put a pooler between, or raise max_connections",
    "54000": "PostgreSQL keeps at most 1 GB in a row",
    "55P03": "another transaction holds a lock for longer than lock_timeout",
    "57014": "it took longer than statement_timeout, or an administrator ended it",
    "28P01": "check the password",
    "3D000": "make the database, or name another",
}
_FULL: Final = ("53100",)


def is_gone(error: Exception) -> bool:
    """Tell whether the connection can't be used any more."""
    return isinstance(error, LostError) or (isinstance(error, ServerError) and error.state.startswith(_GONE))


def is_of_names(error: Exception) -> bool:
    """Tell whether a statement's name was refused, which happens to a handle once: it gives none from then on."""
    return isinstance(error, ServerError) and error.state in _OF_NAMES


def translate(error: LostError | ServerError, location: str) -> DeltastoreError:
    """Return the error for what went wrong before anything was committed."""
    if isinstance(error, LostError):
        return RetryTransaction(f"{location}: the connection was lost ({error}); nothing was written, try again")
    text = f"{location}: {error}"
    if error.state in _AGAIN or is_gone(error):
        return RetryTransaction(f"{text}; nothing was written, try again")
    if error.state in _FULL:
        return StoreFullError(f"{text}; what is stored stays readable, make room on the server")
    remedy = _REMEDIES.get(error.state)
    return StorageError(f"{text} (SQLSTATE {error.state}); {remedy or 'see the log of the server'}")


def of_connecting(error: psycopg.OperationalError, location: str) -> DeltastoreError:
    """Return the error for a connection that couldn't be made."""
    text = " ".join(str(error).split())
    if "does not exist" in text and "database" in text:
        return StorePathError(f"{location}: {text}; {_REMEDIES['3D000']}")
    remedy = "is the server running, and the URL right?"
    if "password" in text or "authentication" in text or "pg_hba" in text:
        remedy = "check user and password, and what pg_hba.conf allows"
    elif "too many" in text or "remaining connection slots" in text:
        remedy = _REMEDIES["53300"]
    return StorageError(f"can't connect to {location}: {text}; {remedy}")
