"""Write transactions: changes are kept in memory and go over together with the commit.

Imports transaction, locks and failures. The invariant: whatever is read or written is locked before it is looked at,
so what a transaction knows stays so until it ends.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Protocol, Self

from deltastore.errors import CommitUnknownError, DeltastoreError, StorageError
from deltastore.storage.port import Believed, Moment, Row
from deltastore.storage.postgres import failures, locks, statements
from deltastore.storage.postgres.arrays import to_integer
from deltastore.storage.postgres.locks import Lock, Locks
from deltastore.storage.postgres.statements import Range
from deltastore.storage.postgres.transaction import Origin, PostgresReadTransaction
from deltastore.storage.postgres.wire import LostError, Result, ServerError, Statement
from deltastore.storage.retry import RetryTransaction
from deltastore.storage.rules import check_count, check_key

LOOK_WAIT = Statement(b"SET LOCAL lock_timeout TO '30s'")
"""How long to wait, after a commit whose answer was lost, for the server to end it."""
LOOKS = 8
"""How often it is looked whether a commit happened, while connections break."""
_MINTING = 4
"""Statements that take numbers in a transaction of their own, of which one gives a number."""


class WritingOrigin(Origin, Protocol):
    """What a write transaction needs of the handle that made it."""

    salt: bytes | None
    """Tells the locks of stores in one database apart; None: transactions are serializable instead."""
    writing_head: list[Statement]

    def begin_writing(self) -> None:
        """Note that this thread is in a write transaction. Raises StorageError where it is already."""

    def end_writing(self) -> None:
        """Note that it isn't any more."""


class PostgresWriteTransaction(PostgresReadTransaction):
    """A transaction that sees its own writes, and commits them when its block ends without an error."""

    __slots__ = ("_before", "_believed", "_counters", "_locks", "_minted", "_pending", "_sent", "_writer", "_written")

    _origin: WritingOrigin

    def __init__(self, origin: WritingOrigin) -> None:
        super().__init__(origin)
        self._locks = None if origin.salt is None else Locks(origin.salt)
        self._believed: list[Believed] = []
        """What wasn't looked at yet."""
        self._pending: dict[bytes, bytes | None] = {}
        self._written: dict[bytes, bytes | None] = {}
        self._before: dict[bytes, bytes | None] = {}
        self._counters: Counter[bytes] = Counter()
        self._minted: dict[bytes, list[int]] = {}
        self._sent = False

    def __enter__(self) -> Self:
        super().__enter__()
        self._origin.begin_writing()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._failed:
                raise StorageError(f"{self._origin.location}: a statement failed before, so nothing was written")
            if kind is None and (self._pending or self._sent):
                self._commit()
        finally:
            self._open = False
            self._leave(statements.ROLLBACK)
            self._origin.end_writing()

    def moment(self) -> None:
        """Return nothing: others write at the same time."""

    def follows(self, _moment: Moment) -> bool:
        """Tell nothing."""
        return False

    def believe(self, believed: Believed) -> bool:
        """Take rows to be what somebody says; the next trip finds out. Not where there are no locks: what a lost
        commit did couldn't be told then.
        """
        if self._locks is None:
            return False
        self._check_open()
        known = self._known
        rows, sealed = ([row for row in part if not known.holds(row[0])] for part in (believed.rows, believed.sealed))
        for key, value in (*rows, *sealed):
            known.add(key, key + b"\0", [(key, value)])
        for lower, upper in believed.gaps:
            known.add(lower, upper, ())
        self._believed.append(Believed(rows, believed.gaps, sealed))
        return True

    def put(self, key: bytes, value: bytes) -> None:
        """Store a value under a key, in place of any earlier one."""
        check_key(key)
        self._change(key, value)

    def delete(self, key: bytes) -> bool:
        """Remove a key, and tell whether it was there."""
        check_key(key)
        if self.get(key) is None:
            return False
        self._change(key, None)
        return True

    def delete_range(self, lower: bytes, upper: bytes, *, limit: int | None = None) -> int:
        """Remove the rows with lower <= key < upper, the first `limit` of them, and return how many went."""
        self._check_open()
        if lower >= upper or limit == 0:
            return 0
        end = self._known.end_at(lower)
        if end is not None and end >= upper:
            doomed = self._known.between(lower, upper)[:limit]
            for key in doomed:
                self._change(key, None)
            return len(doomed)
        statement = self._origin.sql.delete_range(lower, upper, statements.UNLIMITED if limit is None else limit)
        gone = [key or b"" for (key,) in self._run_with(locks.to_remove(lower, upper), [statement])[0]]
        for key in gone:
            self._note(key, None)
            self._known.remove(key)
        if limit is None:
            self._known.add(lower, upper, ())
        self._sent = True
        return len(gone)

    def mint(self, key: bytes, count: int = 1) -> int:
        """Return the first of `count` numbers that nobody got before from this counter."""
        check_count(count)
        check_key(key)
        self._check_open()
        if self._connection is None and self._wanted:
            self._fetch()
        if count == 1 and self._minted.get(key):
            return self._minted[key].pop()
        self._sent = True
        (found,) = self._run_with((), [self._origin.sql.mint(key, count)])
        return to_integer(found[0][0])

    # --- changes

    def _change(self, key: bytes, value: bytes | None) -> None:
        self._check_open()
        self._note(key, value)
        if value is None:
            self._known.remove(key)
        else:
            self._known.put(key, value)
        self._pending[key] = value

    def _note(self, key: bytes, value: bytes | None) -> None:
        """Remember what a key had before, as far as it is known, and has now."""
        if key not in self._written and self._known.holds(key):
            self._before[key] = self._known.rows.get(key)
        self._written[key] = value

    def _due(self, needed: Iterable[Lock] = ()) -> list[Statement]:
        """Return what must go before anything else: locks, a look at what was believed, and what is pending."""
        believed, self._believed = self._believed, []
        pending, self._pending = self._pending, {}
        rows, gaps, sealed = ({pair for each in believed for pair in each[part]} for part in range(len(Believed())))
        to_lock = [*needed, *(locks.to_look_up(key) for key, _ in (*rows, *sealed))]
        for lower, upper in gaps:
            to_lock += locks.to_read(lower, upper)
        for key in pending:
            to_lock += locks.to_write(key)
        out = self._lock(to_lock)
        if believed:
            out.append(self._origin.sql.doubt(Believed(list(rows), list(gaps), list(sealed))))
        gone = [key for key, value in pending.items() if value is None]
        put: list[Row] = [(key, value) for key, value in pending.items() if value is not None]
        if gone:
            out.append(self._origin.sql.delete(gone))
        if put:
            out.append(self._origin.sql.put(put))
        self._sent = self._sent or bool(pending)
        return out

    def _lock(self, needed: Iterable[Lock]) -> list[Statement]:
        return [] if self._locks is None else self._locks.statements(needed)

    # --- the server

    def _head(self) -> list[Statement]:
        minting: list[Statement] = []
        for key, count in self._counters.items():
            minting += [
                statements.BEGIN_WRITING,
                statements.COMMIT_LAZILY,  # a number is durable with the first commit that uses it
                self._origin.sql.mint(key, count),
                statements.COMMIT,
            ]
        return [*minting, *self._origin.writing_head]

    def _begun(self, results: list[Result]) -> None:
        for place, (key, count) in enumerate(self._counters.items()):
            ((found,),) = results[_MINTING * place + 2]
            first = to_integer(found)
            self._minted[key] = list(range(first + count - 1, first - 1, -1))  # the least goes out first

    def _fetch(self, keys: Sequence[bytes] = (), runs: Sequence[tuple[bytes, bytes, bytes]] = ()) -> None:
        if self._connection is None:
            self._counters = Counter(counter for wanted in self._wanted for counter in wanted.counters)
        super()._fetch(keys, runs)

    def _run(self, asked: list[Statement], *, keys: Sequence[bytes] = (), ranges: Sequence[Range] = ()) -> list[Result]:
        needed = [locks.to_look_up(key) for key in keys]
        for wanted in ranges:
            needed += locks.to_read(wanted.lower, wanted.upper)
        return self._run_with(needed, asked)

    def _run_with(self, needed: Iterable[Lock], asked: list[Statement]) -> list[Result]:
        before = self._due(needed)
        return self._exchange([*before, *asked])[len(before) :]

    def _commit(self) -> None:
        is_whole = self._connection is None and bool(self._believed)
        if is_whole:  # all of it in one trip
            self._connection = self._origin.pool.take()
        elif self._connection is None:
            self._run_with((), [])  # so that the commit goes over a connection that lives
        asked = [*(self._head() if is_whole else ()), *self._due(), statements.COMMIT]
        try:
            self._end_with(asked)
        except (ServerError, LostError) as error:
            if not failures.is_gone(error):
                raise failures.translate(error, self._origin.location) from error
            if not is_whole or not self._is_sent_again(asked, error):
                self._resolve(error)

    def _end_with(self, asked: list[Statement]) -> None:
        """Commit, and give the connection back. Raises ServerError, LostError."""
        connection = self._connection
        assert connection is not None
        try:
            connection.exchange(asked)
        except (ServerError, LostError) as error:
            connection.broken = connection.broken or failures.is_gone(error)
            self._leave(statements.ROLLBACK)
            raise
        self._leave(None)

    # --- a commit whose answer was lost

    def _is_sent_again(self, asked: list[Statement], lost: Exception) -> bool:
        """Send a whole transaction again. The first may be still on its way to the server, and have no locks yet that
        tell of it; but only one of them finds what it believes, for it changes that.

        False: somebody was first, maybe the first of them. Raises CommitUnknownError.
        """
        for _ in range(LOOKS):
            self._origin.pool.forget_idle()
            try:
                self._connection = self._origin.pool.take(fresh=True)
                self._end_with(asked)
            except (ServerError, LostError) as failure:
                if isinstance(failure, ServerError) and failure.state == statements.IS_ANOTHER:
                    return False
                if not isinstance(failures.translate(failure, self._origin.location), RetryTransaction):
                    raise self._unknown(lost) from failure
            except DeltastoreError as failure:
                raise self._unknown(lost) from failure
            else:
                return True
        raise self._unknown(lost) from lost

    def _resolve(self, error: Exception) -> None:
        """Find out whether it happened: return, or raise RetryTransaction, CommitUnknownError.

        It did where all new rows are as they were to be: others may have written some of them alike. Where none is new,
        one that changed tells. Rows that were put without a look are new ones. It didn't where all that was seen before
        is still so.
        """
        before, written = self._before, self._written
        changed = [key for key, value in written.items() if key not in before or before[key] != value]
        put = [key for key in changed if written[key] is not None]
        now = self._look_again(changed, error)
        is_there = {key: now.get(key) == written[key] for key in put}
        is_new = [is_there[key] for key in put if before.get(key) is None]
        if (all(is_new) if is_new else any(is_there.values())) or not (put or now):
            return
        is_ended = self._locks is not None  # else the server may still be about to commit
        seen = [key for key in changed if key in before]
        if is_ended and seen and all(now.get(key) == before[key] for key in seen):
            raise RetryTransaction(f"{self._origin.location}: {error}; nothing was written, try again") from error
        raise self._unknown(error) from error

    def _unknown(self, error: Exception) -> CommitUnknownError:
        return CommitUnknownError(
            f"{self._origin.location}: the connection was lost while a commit was under way ({error}), and what is "
            "stored doesn't tell whether it happened; read before you write again"
        )

    def _look_again(self, keys: list[bytes], error: Exception) -> dict[bytes, bytes]:
        """Look, as often as connections break on the way. Raises CommitUnknownError."""
        for looks_left in reversed(range(LOOKS)):
            try:
                return self._look(keys)
            except (DeltastoreError, ServerError, LostError) as failure:
                if not looks_left or not failures.is_gone(failure):
                    raise self._unknown(error) from failure
        raise AssertionError("unreachable")

    def _look(self, keys: list[bytes]) -> dict[bytes, bytes]:
        """Return rows as they are once the server has ended the transaction: it holds its locks until then."""
        pool = self._origin.pool
        pool.forget_idle()
        connection = pool.take(fresh=True)
        again = None if self._origin.salt is None else Locks(self._origin.salt)
        waits = [] if again is None else again.statements([locks.to_look_up(key) for key in keys])
        try:
            head = [statements.BEGIN_WRITING, LOOK_WAIT, *waits]
            asked = [*head, self._origin.sql.get(keys), statements.ROLLBACK]
            results = connection.exchange([each._replace(often=False) for each in asked])  # none fails for its name
        finally:
            if not connection.broken:
                connection.post(statements.ROLLBACK)
            pool.give(connection)
        return {key or b"": value or b"" for key, value in results[len(head)]}
