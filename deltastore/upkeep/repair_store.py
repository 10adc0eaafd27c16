"""The store's own rows under repair: names both ways, the queue, rules, counters, and numbers that nothing names.

Imports the draft and the plan's records, and log and below. The invariant: a name that leads to a thread goes on
leading there; a thread without a name gets one again, and rows that are no thread's are quarantined with the store.
"""

from collections.abc import Collection, Iterator

import ormsgpack

from deltastore.codec import chunkrow, recordrow
from deltastore.codec.primitives import unseal
from deltastore.errors import CorruptionError
from deltastore.log import dictionaries, keys, names, quarantine, retention, rows
from deltastore.log.dictionaries import Dictionaries
from deltastore.storage.port import ReadTransaction, Row
from deltastore.ulid import ULID_BYTES
from deltastore.upkeep.check import KINDS
from deltastore.upkeep.repair_draft import Draft
from deltastore.upkeep.repair_plan import NAMED, QUARANTINED, REBUILT, Notes, StorePart
from deltastore.upkeep.repair_thread import RECOVERED

SKIPPED_NUMBERS = 1 << 16
"""How many numbers a counter that was lost skips: deleted threads and lost names may have had greater ones."""
_WHERE = "store"

Pairs = dict[int, bytes]
"""Number → name."""


def plan_store(tx: ReadTransaction, now_ms: int) -> tuple[StorePart | None, dict[tuple[bytes, int], str]]:
    """Plan the repair of a store's own rows, None where there is nothing to do; and all names, by kind and number."""
    strays, numbers = _rows_outside(tx)
    repair = _StoreRepair(tx, [*strays, *tx.scan(keys.STORE, keys.thread(1))], numbers, now_ms)
    known = repair.run(strays)
    part = StorePart(repair.draft.changes(), tuple(repair.counters), repair.notes)
    return (part if part.changes or part.counters else None), known


def _rows_outside(tx: ReadTransaction) -> tuple[list[Row], list[int]]:
    """Return the rows whose keys hold no thread's number, and the numbers that have rows."""
    strays: list[Row] = []
    numbers: list[int] = []
    place, end = b"", b"\xff" * keys.THREAD_BYTES
    while True:
        (found,) = tx.seek_many([(place, end)])
        if found is None:
            return strays, numbers
        key, _ = found
        if len(key) <= keys.THREAD_BYTES:
            strays.append(found)
            place = key + b"\0"
            continue
        number = int.from_bytes(key[: keys.THREAD_BYTES], "big")
        if number:
            numbers.append(number)
        place = keys.thread(number + 1)


class _StoreRepair:
    def __init__(self, tx: ReadTransaction, found: list[Row], numbers: list[int], now_ms: int) -> None:
        self.tx = tx
        self.draft = Draft(found, 0, now_ms)
        self.numbers = set(numbers)
        self.now_ms = now_ms
        self.notes = Notes()
        self.counters: list[tuple[bytes, int]] = []
        self.by_name: dict[bytes, Pairs] = {kind: {} for kind in KINDS}
        self.by_number: dict[bytes, Pairs] = {kind: {} for kind in KINDS}
        self.queued: set[int] = set()
        self.dictionaries: set[int] = set()
        self.taken: dict[bytes, str] = {}
        """Why rows were quarantined; some are made anew then."""
        self.seen = {key for key, _ in found}

    def run(self, strays: list[Row]) -> dict[tuple[bytes, int], str]:
        """Mend the draft, and return all names."""
        for key, _ in strays:
            self._quarantine(key, "its key isn't of this format")
        self._read()
        wanted = {kind: self._agreed(kind) for kind in KINDS}
        wanted[keys.THREAD] = self._threads()
        for kind in KINDS:
            self._store(kind, wanted[kind])
            self._count(kind, {*wanted[kind], *(self.queued if kind == keys.THREAD else ())})
        if self.dictionaries:
            self._count(keys.DICTIONARY, self.dictionaries)
        for key, reason in self.taken.items():
            self._note(f"row {key.hex()}", QUARANTINED, reason)
        return {
            (kind, number): keys.decode_name(name) for kind, pairs in wanted.items() for number, name in pairs.items()
        }

    def _note(self, thing: str, action: str, reason: object) -> None:
        self.notes.note(_WHERE, thing, action, reason)

    def _quarantine(self, key: bytes, reason: object) -> None:
        self.taken[key] = str(reason)
        self.draft.quarantine(key, reason)

    # --- reading

    def _read(self) -> None:
        for key, row in list(self.draft.scan(keys.STORE + b"\0", keys.thread(1))):
            rest = key[keys.THREAD_BYTES + 1 :]
            try:
                match key[keys.THREAD_BYTES : keys.THREAD_BYTES + 1]:
                    case b"C" if rest in KINDS or rest == keys.DICTIONARY:
                        pass  # the storage's own: see `_count`
                    case b"F" if not rest:
                        rows.parse(key, unseal(key, row))
                    case b"H" if rest[:1] in KINDS and len(rest) == 1 + keys.HASH_BYTES:
                        self._read_names(key, row, rest[:1])
                    case b"N" if rest[:1] in KINDS and len(rest) == 1 + keys.NUMBER_BYTES:
                        name = unseal(key, row)
                        keys.decode_name(name)
                        self.by_number[rest[:1]][int.from_bytes(rest[1:], "big")] = name
                    case b"Q" if len(rest) == keys.THREAD_BYTES:
                        self._read_queue(key, row, int.from_bytes(rest, "big"))
                    case b"K" if not rest:
                        retention.decode(key, unseal(key, row))
                    case b"D" if len(rest) == keys.NUMBER_BYTES:
                        self.dictionaries.add(int.from_bytes(rest, "big"))
                        dictionaries.decode(key, unseal(key, row))
                    case b"q" if len(rest) == keys.HASH_BYTES:
                        quarantine.decode(key, row)
                    case _:
                        self._quarantine(key, "no row of the store has such a key")
            except CorruptionError as error:
                self._quarantine(key, error)

    def _read_names(self, key: bytes, row: bytes, kind: bytes) -> None:
        entries = names.parse_entries(key, unseal(key, row))
        for name, number in entries:
            keys.decode_name(name)
            if keys.of_name(kind, name) == key:
                self.by_name[kind].setdefault(number, name)

    def _read_queue(self, key: bytes, row: bytes, number: int) -> None:
        self.queued.add(number)
        try:
            match rows.parse(key, unseal(key, row)):
                case [int(), int()]:
                    return
            reason = "it is no queue row"
        except CorruptionError as error:
            reason = str(error)
        self._note(f"queue row of thread {number}", REBUILT, f"{reason}; whoever fills it has an hour again")
        self.draft.quarantine(key, reason)
        self.draft.put(key, ormsgpack.packb([rows.FILLING, self.now_ms]))

    # --- names

    def _agreed(self, kind: bytes) -> Pairs:
        """Return what numbers are called. A row by name bears its name's hash as a second witness, so it decides."""
        return self.by_number[kind] | self.by_name[kind]

    def _threads(self) -> Pairs:
        """Return the names of threads, each leading to rows, and each once."""
        out: Pairs = {}
        taken: set[bytes] = set()
        leading = sorted(self.by_name[keys.THREAD].items())  # a look-up goes by these
        for number, name in leading:
            if number in self.numbers and name not in taken:
                out[number] = name
                taken.add(name)
        for number, name in leading:
            if number not in self.numbers:
                shown = keys.decode_name(name)
                self._note(f"thread {shown!r}", QUARANTINED, f"its number {number} has no rows: all of it is lost")
        for number in sorted(self.numbers - out.keys() - self.queued):
            if self._holds_something(number):
                told = self.by_number[keys.THREAD].get(number) or self._name_in_header(number)
                out[number] = name = _free(number, told, taken)
                taken.add(name)
                self._note(f"thread {number}", NAMED, f"no name led to it; it is called {keys.decode_name(name)!r} now")
            else:
                self._take(number)
        for number in self.queued & out.keys():
            self._quarantine(keys.queued(number), f"thread {keys.decode_name(out[number])!r} is queued, and named")
        return out

    def _holds_something(self, number: int) -> bool:
        """Tell whether any checkpoint, chunk or write of a number can be read."""
        return any(self._readable(key, row) for key, row in self._of(number))

    def _of(self, number: int) -> Iterator[Row]:
        return self.tx.scan(keys.thread(number), keys.thread(number + 1))

    def _readable(self, key: bytes, row: bytes) -> bool:
        if not keys.is_well_formed(key):
            return False
        try:
            match key[keys.THREAD_BYTES : keys.THREAD_BYTES + 1]:
                case b"r":
                    recordrow.open_row(unseal(key, row), key[-ULID_BYTES:], Dictionaries(self.tx))
                case b"c":
                    chunkrow.decode_head(unseal(key, row), int.from_bytes(key[-keys.NUMBER_BYTES :], "big"))
                case b"w":
                    rows.decode_tasks(key, unseal(key, row))
                case _:
                    return False
        except CorruptionError:
            return False
        return True

    def _name_in_header(self, number: int) -> bytes | None:
        """Return the name that a header tells, if damaged rows bear witness that it led here.

        Without a trace of them the thread may have been deleted: it doesn't come back under its name.
        """
        try:
            header = rows.load_header(self.tx, number)
            if header is not None:
                keys.decode_name(header.name)
        except CorruptionError:
            return None
        if header is None:
            return None
        witnesses = {keys.of_name(keys.THREAD, header.name), keys.of_number(keys.THREAD, number)}
        return header.name if witnesses & self.seen else None

    def _take(self, number: int) -> None:
        """Quarantine all rows of a number that is no thread's, with the store."""
        reason = f"nothing names thread {number}, and it holds nothing that can be read"
        self._note(f"rows of number {number}", QUARANTINED, reason)
        for key, row in self._of(number):
            self.draft.take(key, row, reason)

    # --- storing

    def _store(self, kind: bytes, wanted: Pairs) -> None:
        by_name: dict[bytes, list[tuple[bytes, int]]] = {}
        led = self.by_name[kind]
        for number, name in sorted(wanted.items(), key=lambda item: (led.get(item[0]) != item[1], item[0])):
            by_name.setdefault(keys.of_name(kind, name), []).append((name, number))
        for prefix in (keys.STORE + b"H" + kind, keys.numbers_of(kind)):
            for key, row in list(self.draft.scan(prefix, keys.end_of(prefix))):
                held = by_name.get(key)
                if prefix == keys.numbers_of(kind):
                    number = int.from_bytes(key[-keys.NUMBER_BYTES :], "big")
                    if wanted.get(number) != unseal(key, row):
                        self._quarantine(key, "it doesn't lead where the others do")
                elif held is None or sorted(names.parse_entries(key, unseal(key, row))) != sorted(held):
                    self._quarantine(key, "it doesn't lead where the others do")
        for key, entries in by_name.items():
            self._put(key, ormsgpack.packb(entries))
        for number, name in wanted.items():
            self._put(keys.of_number(kind, number), name)

    def _put(self, key: bytes, value: bytes) -> None:
        if self.draft.get(key) is None:
            self._note(f"row {key.hex()}", REBUILT, self.taken.pop(key, "the way back from it is there"))
            self.draft.put(key, value)

    def _count(self, kind: bytes, wanted: Collection[int]) -> None:
        """See to it that no number is given twice."""
        used = max(wanted, default=names.first_number(kind) - 1)
        key = keys.counter(kind)
        row = self.draft.get(key)
        try:
            if self.tx.following(key) > used - names.first_number(kind) + 1:
                return
            reason = "its next number is in use" if row is not None else "it is missing"
        except CorruptionError as error:
            reason = str(error)
            self.draft.quarantine(key, reason)
        self._note(f"counter of kind {kind.decode()}", REBUILT, reason)
        # what was given since, and led nowhere any more, isn't known; of tags there are too few
        self.counters.append((kind, used if kind == keys.TAG else used + SKIPPED_NUMBERS))


def _free(number: int, told: bytes | None, taken: set[bytes]) -> bytes:
    """Return what a thread is to be called: as it was, or, where that is another one's name now, by its number."""
    if told is not None and told not in taken:
        return told
    name = keys.encode_name(f"{RECOVERED}-{number}")
    while name in taken:
        name += b"'"
    return name
