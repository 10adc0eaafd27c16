"""Making a store's tables, or bringing them up to date: all that is missing in one transaction.

Imports schema, pool and failures. The invariant: of many who do this at once one does it, and the others find it done.
"""

from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from deltastore.errors import FormatError, StorageError, StorePathError
from deltastore.storage.postgres import failures
from deltastore.storage.postgres import schema as tables
from deltastore.storage.postgres.address import Address, parse
from deltastore.storage.postgres.arrays import integer, to_integer
from deltastore.storage.postgres.pool import Pool
from deltastore.storage.postgres.wire import Connection, LostError, ServerError, Statement

_ABOUT = Statement(b"SELECT version()::bytea, pg_backend_pid()::bigint")
_WITHOUT_ADVISORY_LOCKS = (b"CockroachDB", b"YugabyteDB", b"-YB-")
"""What tells of itself a server whose advisory locks do nothing, or that refuses them in some releases."""
_ATTEMPTS = 20
"""How often it begins anew where others make the same tables and there is no lock to wait for."""
_LOCK = Statement(b"SELECT pg_advisory_xact_lock($1::bigint)")
_MISSING = (failures.UNDEFINED_TABLE, failures.UNDEFINED_SCHEMA)
_MET_OTHERS = (
    failures.UNIQUE_VIOLATION,
    failures.DUPLICATE_SCHEMA,
    failures.DUPLICATE_TABLE,
    failures.SERIALIZATION_FAILURE,
    failures.DEADLOCK_DETECTED,
)


class Plan(NamedTuple):
    """What is to be done to a store's tables: the version that they have and will have, and the statements."""

    found: int
    version: int
    statements: tuple[str, ...]


def plan(connection: Connection, address: Address) -> Plan:
    """Find out what is missing. Raises FormatError, StorageError."""
    found = _version(connection, address)
    if found > tables.VERSION:
        raise FormatError(
            f"the tables of {address.location} are of version {found}; this release knows version {tables.VERSION}. "
            "Nothing was changed; open it with a newer release"
        )
    statements: list[str] = []
    for number, step in enumerate(tables.steps(address.schema)[found:], found + 1):
        statements += [*step, tables.recorded(address.schema, number)]
    return Plan(found, tables.VERSION, tuple(statements))


def apply(connection: Connection, made: Plan, address: Address, *, locks: bool) -> None:
    """Do it, in one transaction; harmless where others did it meanwhile. Raises StorageError."""
    number = xxh3_64_intdigest(b"deltastore migrates " + address.schema.encode()) >> 1
    lock = [Statement(_LOCK.sql, (integer(number),))] if locks else []
    work = [Statement(statement.encode()) for statement in made.statements]
    for attempt in range(_ATTEMPTS):
        try:
            connection.exchange([Statement(b"BEGIN"), *lock, *work, Statement(b"COMMIT")])
        except ServerError as error:
            _undo(connection)
            if error.state in _MET_OTHERS and attempt < _ATTEMPTS - 1:
                continue
            raise _refused(error, address) from error
        except LostError as error:
            raise failures.translate(error, address.location) from error
        return


def migrate(url: str, *, schema: str | None, role: str | None, dry_run: bool) -> tuple[str, int, int, tuple[str, ...]]:
    """Plan and, unless it is a `dry_run`, apply; return the location, both versions and the statements.

    Raises FormatError, StorageError, InvalidInputError.
    """
    where = parse(url, schema=schema)
    pool = Pool(where)
    try:
        with pool.connection() as connection:
            made = plan(connection, where)
            if role is not None:
                made = made._replace(statements=(*made.statements, *tables.grants(where.schema, role)))
            if made.statements and not dry_run:
                apply(connection, made, where, locks=ask(connection, where).has_locks)
    finally:
        pool.close()
    return where.location, made.found, made.version, made.statements


class Server(NamedTuple):
    """What matters of a server: whether its advisory locks keep others out, and a connection's session stays its own.

    Behind a pooler that lends sessions, the one that answers isn't the one that greeted.
    """

    has_locks: bool
    keeps_sessions: bool


def ask(connection: Connection, address: Address) -> Server:
    """Find out what a server is like. Raises StorageError."""
    try:
        ((row,),) = connection.exchange([_ABOUT])
    except (ServerError, LostError) as error:
        raise failures.translate(error, address.location) from error
    has_locks = not any(name in (row[0] or b"") for name in _WITHOUT_ADVISORY_LOCKS)
    return Server(has_locks, to_integer(row[1]) == connection.session)


def ensure(pool: Pool, address: Address, *, create: bool, locks: bool) -> None:
    """See to it that the tables are there; one look where they are.

    Raises StorePathError, FormatError, StorageError.
    """
    with pool.connection() as connection:
        made = plan(connection, address)
        if not made.statements:
            return
        if not create and made.found == 0:
            raise StorePathError(f"{address.location} holds no store; leave out create=False to make one")
        apply(connection, made, address, locks=locks)


def _version(connection: Connection, address: Address) -> int:
    try:
        ((row,),) = connection.exchange([Statement(tables.versions(address.schema).encode())])
    except ServerError as error:
        if error.state in _MISSING:
            return 0
        raise _refused(error, address) from error
    except LostError as error:
        raise failures.translate(error, address.location) from error
    return to_integer(row[0])


def _undo(connection: Connection) -> None:
    if not connection.broken:
        connection.exchange([Statement(b"ROLLBACK")])


def _refused(error: ServerError, address: Address) -> Exception:
    if error.state == failures.INSUFFICIENT_PRIVILEGE:
        return StorageError(
            f"{address.location}: {error}. This role may not make or read the store's tables: have an administrator "
            "run `deltastore migrate URL --role ROLE`, or what `deltastore migrate URL --role ROLE --dry-run` prints"
        )
    return failures.translate(error, address.location)
