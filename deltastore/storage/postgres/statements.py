"""The statements that rows are read and written by. Pure: SQL and parameters, no connection.

Each names rows by thread number and key, so that the table can be distributed by the first. The invariant: a range of
one thread is found by the primary key alone, whatever the planner believes about the table.
"""

from collections.abc import Sequence
from typing import NamedTuple

from deltastore.storage.port import SEAL_BYTES, Believed, Row
from deltastore.storage.postgres.arrays import integer, integers, strings
from deltastore.storage.postgres.wire import Statement

THREAD_BYTES = 6
"""The bytes at the head of a key that are its thread's number."""
LAST_THREAD = (1 << 8 * THREAD_BYTES) - 1
UNLIMITED = (1 << 63) - 1
IS_ANOTHER = "22P02"
"""SQLSTATE where a row isn't what it was believed to be: a text in place of a number."""

BEGIN_READING = Statement(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
BEGIN_WRITING = Statement(b"BEGIN ISOLATION LEVEL READ COMMITTED")
BEGIN_SERIALIZABLE = Statement(b"BEGIN ISOLATION LEVEL SERIALIZABLE")
COMMIT = Statement(b"COMMIT")
ROLLBACK = Statement(b"ROLLBACK")
COMMIT_LAZILY = Statement(b"SET LOCAL synchronous_commit TO off")
COMMIT_DURABLY = Statement(b"SET LOCAL synchronous_commit TO on")


class Range(NamedTuple):
    """Rows with lower <= key < upper: the first `limit` of them, or the last."""

    lower: bytes
    upper: bytes
    limit: int
    reverse: bool = False


def thread_of(key: bytes) -> int:
    """Return the thread number of a key; one that is too short stands before all that begin with it."""
    return int.from_bytes(key[:THREAD_BYTES].ljust(THREAD_BYTES, b"\0"), "big")


def _threads_of(lower: bytes, upper: bytes) -> tuple[int, int]:
    """Return the first and the last thread that a range has keys of."""
    first, last = thread_of(lower), thread_of(upper)
    # it ends where that thread begins; keys too short for a thread's number aren't the format's, but they are kept
    begins = len(upper) == THREAD_BYTES or (len(upper) < THREAD_BYTES and not upper.endswith(b"\0"))
    return first, last - 1 if begins and last > first else last


def is_of_one_thread(lower: bytes, upper: bytes) -> bool:
    """Tell whether a range's keys are all of the thread of `lower`."""
    first, last = _threads_of(lower, upper)
    return first == last


class Statements:
    """The statements on the tables of one schema."""

    def __init__(self, schema: str) -> None:
        rows, counters = f'"{schema}".rows', f'"{schema}".counters'
        # LATERAL and LIMIT make it one look into the index for each, however many there are
        self._get = (
            "SELECT r.key, r.value FROM unnest($1::bigint[], $2::bytea[]) AS q(thread_no, key), LATERAL ("
            f"SELECT key, value FROM {rows} AS t WHERE t.thread_no = q.thread_no AND t.key = q.key LIMIT 1) AS r"
        ).encode()
        asked = "unnest($1::bigint[], $2::bytea[], $3::bytea[], $4::bytea[]) WITH ORDINALITY"
        of_thread = f"FROM {rows} AS t WHERE t.thread_no = q.thread_no"
        self._run = (
            # a pack is in the runs of all that it holds: it goes over once
            "SELECT q.place, r.key, "
            "CASE row_number() OVER (PARTITION BY q.thread_no, r.key ORDER BY q.place) WHEN 1 THEN r.value END "
            f"FROM {asked} AS q(thread_no, low, last, high, place), "
            f"LATERAL (SELECT (SELECT t.key {of_thread} AND t.key >= q.last AND t.key < q.high ORDER BY t.key LIMIT 1) "
            "AS key OFFSET 0) AS stop, "
            f"LATERAL (SELECT t.key, t.value {of_thread} AND t.key >= q.low AND t.key < q.high "
            "AND t.key <= coalesce(stop.key, q.high) ORDER BY t.key OFFSET 0) AS r ORDER BY q.place, r.key"
        ).encode()
        of_one = f"FROM {rows} WHERE thread_no = $1 AND key >= $2 AND key < $3"
        of_many = f"FROM {rows} WHERE thread_no BETWEEN $1 AND $4 AND key >= $2 AND key < $3"
        # the cast fails for each row that is found to be another, in words that the server's log may show
        another = "SELECT ('deltastore: another writer was first; trying again. Key ' || encode({key}, 'hex'))::int"
        self._doubt = (
            f"{another.format(key='q.key')} FROM unnest($1::bigint[], $2::bytea[], $3::bytea[])"
            " AS q(thread_no, key, value)"
            f" LEFT JOIN LATERAL (SELECT t.value {of_thread} AND t.key = q.key LIMIT 1) AS r ON true"
            " WHERE r.value IS DISTINCT FROM q.value "
            f"UNION ALL {another.format(key='r.key')} FROM unnest($4::bigint[], $5::bytea[], $6::bytea[])"
            " AS q(thread_no, low, high),"
            f" LATERAL (SELECT t.key {of_thread} AND t.key >= q.low AND t.key < q.high ORDER BY t.key LIMIT 1) AS r "
            f"UNION ALL {another.format(key='q.key')} FROM unnest($7::bigint[], $8::bytea[], $9::bytea[])"
            " AS q(thread_no, key, seal)"
            f" LEFT JOIN LATERAL (SELECT t.value {of_thread} AND t.key = q.key LIMIT 1) AS r ON true"
            f" WHERE substring(r.value FROM octet_length(r.value) - {SEAL_BYTES - 1}) IS DISTINCT FROM q.seal"
        ).encode()
        order, back = " ORDER BY thread_no, key", " ORDER BY thread_no DESC, key DESC"
        self._scan = {
            (True, False): f"SELECT key, value {of_one}{order} LIMIT $4".encode(),
            (True, True): f"SELECT key, value {of_one}{back} LIMIT $4".encode(),
            (False, False): f"SELECT key, value {of_many}{order} LIMIT $5".encode(),
            (False, True): f"SELECT key, value {of_many}{back} LIMIT $5".encode(),
        }
        sums = "SELECT count(*), coalesce(sum(octet_length(key) + octet_length(value)), 0)::bigint "
        self._measure = {True: (sums + of_one).encode(), False: (sums + of_many).encode()}
        self._put = (
            f"INSERT INTO {rows} (thread_no, key, value) "
            "SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::bytea[]) "
            "ON CONFLICT (thread_no, key) DO UPDATE SET value = excluded.value"
        ).encode()
        self._delete = (
            f"DELETE FROM {rows} AS t USING unnest($1::bigint[], $2::bytea[]) AS q(thread_no, key) "
            "WHERE t.thread_no = q.thread_no AND t.key = q.key"
        ).encode()
        first = f"IN (SELECT key {of_one}{order} LIMIT $4)"
        self._delete_range = {
            True: f"DELETE FROM {rows} WHERE thread_no = $1 AND key {first} RETURNING key".encode(),
            False: (
                f"DELETE FROM {rows} AS t USING (SELECT thread_no, key {of_many}{order} LIMIT $5) AS q "
                "WHERE t.thread_no = q.thread_no AND t.key = q.key RETURNING t.key"
            ).encode(),
        }
        self._mint = (
            f"INSERT INTO {counters} AS c (key, following) VALUES ($1, 1 + $2::bigint) "
            "ON CONFLICT (key) DO UPDATE SET following = c.following + $2 RETURNING following - $2"
        ).encode()
        self._following = f"SELECT following FROM {counters} WHERE key = $1".encode()
        self.size = Statement(
            f"SELECT pg_total_relation_size('{rows}') + pg_total_relation_size('{counters}'), "
            "(SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND application_name = 'deltastore' AND state <> 'idle' AND pid <> pg_backend_pid())".encode()
        )

    def get(self, keys: Sequence[bytes]) -> Statement:
        """Rows by their keys: key and value of those that are there."""
        return Statement(self._get, (integers([thread_of(key) for key in keys]), strings(keys)), often=True)

    def runs(self, runs: Sequence[tuple[bytes, bytes, bytes]]) -> Statement:
        """The rows of runs, each of one thread: place (from 1), key and value, in order; a value once alone."""
        threads = integers([thread_of(lower) for lower, _, _ in runs])
        return Statement(self._run, (threads, *(strings([run[part] for run in runs]) for part in range(3))), often=True)

    def doubt(self, believed: Believed) -> Statement:
        """Fail with `IS_ANOTHER` unless rows are as they are believed to be, and gaps, each of one thread, are such."""
        seals = [(key, row[-SEAL_BYTES:]) for key, row in believed.sealed]
        return Statement(self._doubt, (*_pairs(believed.rows), *_pairs(believed.gaps), *_pairs(seals)), often=True)

    def scan(self, wanted: Range) -> Statement:
        """The rows of a range: key and value."""
        one, parameters = self._range(wanted.lower, wanted.upper)
        return Statement(self._scan[one, wanted.reverse], (*parameters, integer(wanted.limit)), often=True)

    def measure(self, lower: bytes, upper: bytes) -> Statement:
        """How many rows a range has, and their bytes."""
        one, parameters = self._range(lower, upper)
        return Statement(self._measure[one], parameters)

    def put(self, rows: Sequence[Row]) -> Statement:
        """Store rows."""
        return Statement(self._put, _pairs(rows), often=True)

    def delete(self, keys: Sequence[bytes]) -> Statement:
        """Remove rows."""
        return Statement(self._delete, (integers(list(map(thread_of, keys))), strings(keys)), often=True)

    def delete_range(self, lower: bytes, upper: bytes, limit: int) -> Statement:
        """Remove the first rows of a range: the keys that went."""
        one, parameters = self._range(lower, upper)
        return Statement(self._delete_range[one], (*parameters, integer(limit)), often=True)

    def mint(self, key: bytes, count: int) -> Statement:
        """Take numbers from a counter: the first."""
        return Statement(self._mint, (key, integer(count)), often=True)

    def following(self, key: bytes) -> Statement:
        """The next number of a counter; no row where none was ever taken."""
        return Statement(self._following, (key,), often=True)

    def _range(self, lower: bytes, upper: bytes) -> tuple[bool, tuple[bytes, ...]]:
        first, last = _threads_of(lower, upper)
        if first == last:
            return True, (integer(first), lower, upper)
        return False, (integer(first), lower, upper, integer(last))


def _pairs(pairs: Sequence[tuple[bytes, bytes]]) -> tuple[bytes, bytes, bytes]:
    """Return three arrays: the threads of the first of each pair, these, and the others."""
    firsts = [first for first, _ in pairs]
    return integers(list(map(thread_of, firsts))), strings(firsts), strings([other for _, other in pairs])
