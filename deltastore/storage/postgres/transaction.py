"""Read transactions: one snapshot of the server's, begun with the first look, in as few trips as the looks allow.

Imports the port and its rules, and the modules beside it. The invariant: all answers come from what is known; a look at
anything else fetches it together with all that was announced by then.
"""

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import ClassVar, Protocol, Self

from deltastore.errors import StorageError
from deltastore.storage.port import Row, Wanted
from deltastore.storage.postgres import failures, statements
from deltastore.storage.postgres.arrays import to_integer
from deltastore.storage.postgres.known import Known
from deltastore.storage.postgres.pool import Pool
from deltastore.storage.postgres.statements import Range, Statements
from deltastore.storage.postgres.wire import Connection, LostError, Result, ServerError, Statement
from deltastore.storage.rules import check_lookup

FIRST_PAGE, LARGEST_PAGE = 32, 4096
"""Rows that a scan fetches at first, and at most, at a time."""
PAGE_BYTES = 4 * 1024 * 1024
"""What a scan's next page is to weigh at most, judged by its last one."""


class Origin(Protocol):
    """What a transaction needs of the handle that made it."""

    pool: Pool
    sql: Statements

    @property
    def location(self) -> str:
        """Where the rows are, for messages."""


class PostgresReadTransaction:
    """One moment of a PostgresStorage, that of the first look. Used by one thread, inside its `with` block."""

    __slots__ = ("_connection", "_failed", "_known", "_open", "_origin", "_wanted")
    remote: ClassVar[bool] = True

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._connection: Connection | None = None
        self._known = Known()
        self._wanted: list[Wanted] = []
        self._open = self._failed = False

    def __enter__(self) -> Self:
        self._origin.pool.check_open()
        self._open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        self._leave(statements.COMMIT)

    def prefetch(self, wanted: Wanted, *, now: bool = False) -> None:
        """Be told what will be asked for, so that it comes along with the next trip, or `now`."""
        self._wanted.append(wanted)
        if now:
            self._check_open()
            self._fetch()

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        check_lookup(key)
        self._check_open()
        if not self._known.holds(key):
            self._fetch(keys=(key,))
        return self._known.rows.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of keys, in their order."""
        self._check_open()
        for key in keys:
            check_lookup(key)
        known = self._known
        missing = [key for key in keys if not known.holds(key)]
        if missing:
            self._fetch(keys=missing)
        return [known.rows.get(key) for key in keys]

    def seek_many(self, ranges: Sequence[tuple[bytes, bytes]]) -> list[Row | None]:
        """Return, for each (lower, upper), the first row with lower <= key < upper."""
        self._check_open()
        missing = [wanted for wanted in ranges if not self._is_sought(*wanted)]
        if missing:
            self._fetch(runs=[(lower, lower, upper) for lower, upper in missing])
        return [self._first(lower, upper) for lower, upper in ranges]

    def scan(self, lower: bytes, upper: bytes, *, reverse: bool = False) -> Iterator[Row]:
        """Iterate over the rows with lower <= key < upper, in key order or against it."""
        page = FIRST_PAGE
        while lower < upper:
            self._check_open()
            edge = self._known.start_before(upper) if reverse else self._known.end_at(lower)
            if edge is not None:
                low, high = (max(edge, lower), upper) if reverse else (lower, min(edge, upper))
                keys = self._known.between(low, high)
                rows = [(key, self._known.rows[key]) for key in (keys[::-1] if reverse else keys)]
                lower, upper = (lower, low) if reverse else (high, upper)
            elif self._wanted:
                self._fetch()
                continue
            else:
                rows = self._rows(Range(lower, upper, page, reverse))
                if len(rows) < page:
                    lower = upper
                elif reverse:
                    upper = rows[-1][0]
                else:
                    lower = rows[-1][0] + b"\0"
                page = _next_page(rows, page)
            for row in rows:
                self._check_open()
                yield row
        self._check_open()

    def measure(self, lower: bytes, upper: bytes) -> tuple[int, int]:
        """Return how many rows have lower <= key < upper, and the bytes of their keys and values."""
        return self.measure_many([(lower, upper)])[0]

    def measure_many(self, ranges: Sequence[tuple[bytes, bytes]]) -> list[tuple[int, int]]:
        """Return what `measure` gives for each range."""
        self._check_open()
        asked = [self._origin.sql.measure(*wanted) for wanted in ranges if wanted[0] < wanted[1]]
        results = iter(self._run(asked, ranges=[Range(*wanted, 0) for wanted in ranges]) if asked else ())
        return [_pair(next(results)) if lower < upper else (0, 0) for lower, upper in ranges]

    def following(self, key: bytes) -> int:
        """Return the number that a counter gives next."""
        self._check_open()
        (found,) = self._run([self._origin.sql.following(key)])
        return to_integer(found[0][0]) if found else 1

    # --- fetching

    def _is_sought(self, lower: bytes, upper: bytes) -> bool:
        """Tell whether it is known what the first row of a range is."""
        if lower >= upper:
            return True
        end = self._known.end_at(lower)
        return end is not None and (end >= upper or self._known.first(lower, end) is not None)

    def _is_run(self, run: tuple[bytes, bytes, bytes]) -> bool:
        """Tell whether the rows of a run are known."""
        lower, last, upper = run
        end = self._known.end_at(lower)
        if lower >= upper or (end is not None and end >= upper):
            return True
        return end is not None and end > last and self._known.first(last, end) is not None

    def _is_end(self, wanted: tuple[bytes, bytes, int]) -> bool:
        """Tell whether the last rows of a range are known."""
        lower, upper, count = wanted
        start = self._known.start_before(upper)
        if lower >= upper or (start is not None and start <= lower):
            return True
        return start is not None and len(self._known.between(start, upper)) >= count

    def _first(self, lower: bytes, upper: bytes) -> Row | None:
        key = self._known.first(lower, upper)
        return None if key is None else (key, self._known.rows[key])

    def _fetch(self, keys: Sequence[bytes] = (), runs: Sequence[tuple[bytes, bytes, bytes]] = ()) -> None:
        """Learn what is asked for and what was announced, in one trip."""
        wanted, self._wanted = self._wanted, []
        known, sql = self._known, self._origin.sql
        all_keys = dict.fromkeys(keys)
        all_runs = dict.fromkeys(runs)
        ranges: dict[Range, None] = {}
        for more in wanted:
            all_keys.update(dict.fromkeys(key for key in more.keys if not known.holds(key)))
            all_runs.update(dict.fromkeys(run for run in more.runs if not self._is_run(run)))
            ranges.update(dict.fromkeys(Range(*end, True) for end in more.ends if not self._is_end(end)))
        of_one = [run for run in all_runs if statements.is_of_one_thread(run[0], run[2])]
        # over threads, none but the first row is ever asked for
        ranges.update(dict.fromkeys(Range(lower, upper, 1) for lower, _, upper in all_runs.keys() - of_one))
        asked = [sql.scan(each) for each in ranges]
        if all_keys:
            asked.append(sql.get(list(all_keys)))
        if of_one:
            asked.append(sql.runs(of_one))
        if not asked:
            return
        locked = [*ranges, *(Range(lower, upper, 1) for lower, _, upper in of_one)]
        results = iter(self._run(asked, keys=list(all_keys), ranges=locked))
        for each, result in zip(ranges, results, strict=False):
            self._learn_range(each, _rows(result))
        if all_keys:
            rows = dict(_rows(next(results)))
            for key in all_keys:
                known.add(key, key + b"\0", [(key, rows[key])] if key in rows else ())
        if of_one:
            self._learn_runs(of_one, next(results))

    def _learn_range(self, wanted: Range, rows: list[Row]) -> None:
        lower, upper = wanted.lower, wanted.upper
        if len(rows) == wanted.limit:
            lower, upper = (rows[-1][0], upper) if wanted.reverse else (lower, rows[-1][0] + b"\0")
        self._known.add(lower, upper, rows)

    def _learn_runs(self, runs: list[tuple[bytes, bytes, bytes]], result: Result) -> None:
        by_place: dict[int, list[Row]] = {}
        values: dict[bytes | None, bytes] = {}
        for place, key, value in result:
            if value is not None:
                values[key] = value
            by_place.setdefault(to_integer(place), []).append((key or b"", values[key]))
        for number, (lower, last, upper) in enumerate(runs, 1):
            rows = by_place.get(number, [])
            ended = bool(rows) and rows[-1][0] >= last
            self._known.add(lower, rows[-1][0] + b"\0" if ended else upper, rows)

    def _rows(self, wanted: Range) -> list[Row]:
        (found,) = self._run([self._origin.sql.scan(wanted)], ranges=[wanted])
        return _rows(found)

    # --- the server

    def _head(self) -> list[Statement]:
        """Return the statements that a transaction begins with."""
        return [statements.BEGIN_READING]

    def _begun(self, results: list[Result]) -> None:
        """Take in what these statements gave."""

    def _run(self, asked: list[Statement], *, keys: Sequence[bytes] = (), ranges: Sequence[Range] = ()) -> list[Result]:
        """Run statements that look at keys and ranges, after all that must come before them, in one trip."""
        return self._exchange(asked)

    def _exchange(self, asked: list[Statement]) -> list[Result]:
        if self._connection is None:
            return self._begin(asked)
        try:
            return self._connection.exchange(asked)
        except (ServerError, LostError) as error:
            self._open, self._failed = False, True
            raise failures.translate(error, self._origin.location) from error

    def _begin(self, asked: list[Statement]) -> list[Result]:
        """Begin with the first exchange, again where an idle connection turns out to be lost, or lent to others."""
        pool, fresh = self._origin.pool, False
        while True:
            connection = pool.take(fresh=fresh)
            head = self._head()
            try:
                results = connection.exchange([*head, *asked])
            except BaseException as error:
                if not connection.broken:
                    connection.post(statements.ROLLBACK)
                pool.give(connection)
                if not isinstance(error, ServerError | LostError):
                    raise
                self._failed = True
                if failures.is_of_names(error):  # nothing was seen yet, and they are sent without from now on
                    continue
                if fresh or not failures.is_gone(error):
                    raise failures.translate(error, self._origin.location) from error
                pool.forget_idle()
                fresh = True
            else:
                self._connection, self._failed = connection, False
                self._begun(results[: len(head)])
                return results[len(head) :]

    def _leave(self, end: Statement | None) -> None:
        """Give the connection back, the transaction's end being on its way, unless it has ended."""
        connection, self._connection = self._connection, None
        if connection is not None:
            if end is not None and not connection.broken:
                connection.post(end)
            self._origin.pool.give(connection)

    def _check_open(self) -> None:
        if not self._open:
            where = self._origin.location
            raise StorageError(f"a transaction of {where} was used outside its block; begin another one")


def _rows(result: Result) -> list[Row]:
    return [(key or b"", value or b"") for key, value in result]


def _pair(result: Result) -> tuple[int, int]:
    ((count, size),) = result
    return to_integer(count), to_integer(size)


def _next_page(rows: list[Row], page: int) -> int:
    size = sum(len(value) for _, value in rows) or 1
    return max(1, min(4 * page, LARGEST_PAGE, page * PAGE_BYTES // size))
