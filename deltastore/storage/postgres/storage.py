"""The storage on PostgreSQL: a handle on one schema of one database, which processes on many machines share.

Imports the modules beside it. The invariant: a handle holds connections, and no state that others could make untrue.
"""

import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from deltastore.errors import InvalidInputError, StorageError
from deltastore.storage.port import SyncMode
from deltastore.storage.postgres import address, failures, migrating, statements
from deltastore.storage.postgres.arrays import to_integer
from deltastore.storage.postgres.pool import Pool
from deltastore.storage.postgres.statements import Statements
from deltastore.storage.postgres.transaction import PostgresReadTransaction
from deltastore.storage.postgres.wire import LostError, ServerError, Statement
from deltastore.storage.postgres.writing import PostgresWriteTransaction

if TYPE_CHECKING:
    from deltastore.storage.info import StorageInfo

_DURABLE = Statement(b"SELECT current_setting('synchronous_commit')::bytea")


class PostgresStorage:
    """A store in a schema of a database, made if it isn't there. Thread-safe; usable in a forked child.

    A write transaction's locks end with it, and nothing rests on the state of a session: so a pooler that lends its
    connections for a transaction at a time may stand between.
    """

    remote: ClassVar[bool] = True

    def __init__(
        self,
        url: str,
        *,
        schema: str | None = None,
        pool_size: int | None = None,
        sync: SyncMode = "full",
        create: bool = True,
    ) -> None:
        """Connect and, with `create`, make what is missing. `schema` and `pool_size` may also stand in the URL.

        Raises StorePathError, StorageError, FormatError, InvalidInputError.
        """
        if sync not in ("full", "none"):
            raise InvalidInputError(f"sync is {sync!r}; expected 'full' or 'none' on PostgreSQL")
        where = address.parse(url, schema=schema, pool_size=pool_size)
        self._location = where.location
        self._writers: set[tuple[int, int]] = set()
        self.sql = Statements(where.schema)
        self.pool = Pool(where)
        try:
            with self.pool.connection() as connection:
                server = migrating.ask(connection, where)
            self.pool.naming.works = server.keeps_sessions
            locking = where.locking or ("advisory" if server.has_locks else "serializable")
            self.salt = where.schema.encode() + b"\0" if locking == "advisory" else None
            begin = statements.BEGIN_SERIALIZABLE if self.salt is None else statements.BEGIN_WRITING
            self.writing_head = [begin]
            if sync == "none":
                self.writing_head.append(statements.COMMIT_LAZILY)
            elif self._ask(_DURABLE)[0][0] == b"off":
                self.writing_head.append(statements.COMMIT_DURABLY)
            migrating.ensure(self.pool, where, create=create, locks=server.has_locks)
        except BaseException:
            self.pool.close()
            raise

    @property
    def location(self) -> str:
        """The URL without its password, for messages."""
        return self._location

    def read(self) -> PostgresReadTransaction:
        """Begin a read transaction. Raises ClosedError; later StorageError."""
        self.pool.check_open()
        return PostgresReadTransaction(self)

    def write(self, threads: Sequence[int] = ()) -> PostgresWriteTransaction:
        """Begin a write transaction; it locks what it reads and writes, so the names are of no use.

        Raises ClosedError; later StorageError, RetryTransaction, StoreFullError, CommitUnknownError.
        """
        self.pool.check_open()
        return PostgresWriteTransaction(self)

    def info(self) -> "StorageInfo":
        """Return sizes: what the tables take on the server's disk, and how many others are in a transaction."""
        from deltastore.storage.info import StorageInfo  # seldom asked for

        ((size, readers),) = self._ask(self.sql.size)
        total = to_integer(size)
        return StorageInfo("postgres", self._location, total, total, 0, to_integer(readers))

    def close(self) -> None:
        """Close the connections; closing twice is harmless. Transactions under way may end as usual."""
        self.pool.close()

    def begin_writing(self) -> None:
        """Note that this thread is in a write transaction. Raises StorageError where it is already."""
        writer = (os.getpid(), threading.get_ident())
        if writer in self._writers:
            raise StorageError("this thread is inside a write transaction already; end it before beginning another")
        self._writers.add(writer)

    def end_writing(self) -> None:
        """Note that it isn't any more."""
        self._writers.discard((os.getpid(), threading.get_ident()))

    def _ask(self, statement: Statement) -> list[tuple[bytes | None, ...]]:
        with self.pool.connection() as connection:
            try:
                (rows,) = connection.exchange([statement])
            except (ServerError, LostError) as error:
                raise failures.translate(error, self._location) from error
            return rows
