"""A thread under repair: every row in its place or in quarantine, the header made of what is there.

Imports the other modules of repair, check and log. The invariant: a thread in which check finds nothing is never
touched, and what a plan leaves is looked at by check before anything is written.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain

import ormsgpack

from deltastore import ulid as ulids
from deltastore.codec import records as rec
from deltastore.codec.primitives import unseal
from deltastore.codec.recordrow import decode_row
from deltastore.errors import CorruptionError, InvalidIdError, MismatchError
from deltastore.log import keys, quarantine, retention, rows
from deltastore.log.dictionaries import Dictionaries
from deltastore.storage.port import ReadTransaction
from deltastore.upkeep.check_thread import ThreadCheck, nameless
from deltastore.upkeep.repair_chunks import Chunks
from deltastore.upkeep.repair_draft import Draft
from deltastore.upkeep.repair_namespace import Context, NamespaceRepair
from deltastore.upkeep.repair_plan import NAMED, QUARANTINED, REBUILT, Notes, ThreadPart
from deltastore.upkeep.report import Tally

RECOVERED = "recovered"
"""What a thread or namespace is called whose name nothing tells, before its number."""


def plan_thread(
    tx: ReadTransaction, number: int, name: str, known: Mapping[tuple[bytes, int], str], now_ms: int
) -> tuple[ThreadPart | None, list[str]]:
    """Plan the repair of a thread; None where there is nothing to do. Also tell what it has no remedy for.

    `known`: the names of channels, reducers and tags, by kind and number.
    """
    problems, left = _problems(tx, number, name, known)
    if not problems:
        return None, left
    known_rows = tx.scan(keys.DICTIONARIES, keys.end_of(keys.DICTIONARIES))  # to be read by, never changed
    draft = Draft(chain(known_rows, tx.scan(keys.thread(number), keys.thread(number + 1))), number, now_ms)

    def channel_name(channel: int) -> str:
        return known.get((keys.CHANNEL, channel), f"channel {channel}")

    repair = _ThreadRepair(draft, number, name, channel_name, now_ms)
    header = repair.run()
    draft.put(keys.header(number), header.encode())
    problems, left = _problems(draft, number, name, known)
    left = problems + left
    changes = draft.changes(keys.header(number))
    if not changes and not repair.is_other:
        return None, left
    return ThreadPart(number, name, tx.get(keys.header(number)), header, changes, repair.notes), left


def _problems(
    tx: ReadTransaction, number: int, name: str, known: Mapping[tuple[bytes, int], str]
) -> tuple[list[str], list[str]]:
    """Return what check finds in a thread, and the numbers in it that have lost their names: nothing mends these."""
    tally = Tally()
    thread = ThreadCheck(tx, number, name, tally)
    try:
        thread.run()
    except (CorruptionError, MismatchError) as error:
        tally.problem(f"thread {number}", error)
    unnamed = [f"{thread.where}: {what}" for what in nameless(thread.used, known)]
    return [f"{problem.where}: {problem.what}" for problem in tally.problems], unnamed


class _ThreadRepair:
    """One thread's rows, mended in a draft."""

    def __init__(self, draft: Draft, number: int, name: str, channel_name: Callable[[int], str], now_ms: int) -> None:
        self.draft = draft
        self.number = number
        self.name = name
        self.channel_name = channel_name
        self.now_ms = now_ms
        self.notes = Notes()
        self.where = f"thread {name!r}"
        self.is_other = False
        """Whether the header is to be another."""

    def run(self) -> rows.Header:
        """Mend the draft but for the header, which is returned."""
        self._foreign()
        self._retention()
        found = self._header()
        chunks = Chunks(self.draft, self.number, self.name, self.notes)
        context = Context(self.draft, self.number, self.name, chunks, self.notes, self.channel_name)
        namespaces = self._namespaces(context)
        for namespace in namespaces:
            namespace.run()
        self._store(namespaces)
        header = self._made(found, chunks, namespaces)
        self.is_other = header != found
        if self.is_other and found is not None:
            self._note("its header", REBUILT, "its counts weren't those of its rows")
        return header

    def _note(self, thing: str, action: str, reason: object) -> None:
        self.notes.note(self.where, thing, action, reason)

    def _quarantine(self, key: bytes, reason: object) -> None:
        self._note(f"row {key.hex()}", QUARANTINED, reason)
        self.draft.quarantine(key, reason)

    # --- rows by kind

    def _foreign(self) -> None:
        """Quarantine what no kind of row is, quarantine rows that are damaged themselves among them."""
        for key, row in list(self.draft.scan(keys.thread(self.number), keys.thread(self.number + 1))):
            if not keys.is_well_formed(key):
                self._quarantine(key, "no row of this format has such a key")
            elif key.startswith(keys.quarantine(self.number)):
                try:
                    quarantine.decode(key, row)
                except CorruptionError as error:
                    self._quarantine(key, error)

    def _retention(self) -> None:
        key = keys.retention(self.number)
        try:
            retention.load(self.draft, self.number)
        except CorruptionError as error:
            self._note("its retention rules", REBUILT, f"{error}; it keeps all until it is told otherwise")
            self.draft.quarantine(key, error)
            self.draft.put(key, ormsgpack.packb({}))

    def _header(self) -> rows.Header | None:
        key = keys.header(self.number)
        try:
            found = rows.load_header(self.draft, self.number)
            reason = "it is missing"
        except CorruptionError as error:
            self.draft.quarantine(key, error)
            found, reason = None, str(error)
        if found is None:
            self._note("its header", REBUILT, reason)
        return found

    # --- namespaces

    def _namespaces(self, context: Context) -> list[NamespaceRepair]:
        """Return the repairs of all namespaces, those included of which only numbers are left."""
        prefix = keys.namespaces(self.number)
        found: list[rows.Namespace] = []
        unreadable: set[bytes] = set()
        for key, row in list(self.draft.scan(prefix, keys.end_of(prefix))):
            try:
                found += rows.decode_namespaces(key, unseal(key, row))
            except CorruptionError as error:
                unreadable.add(key)
                self._quarantine(key, error)
        taken = {namespace.name for namespace in found}
        lost = sorted(self._numbers() - {namespace.number for namespace in found})
        self._strays({namespace.number for namespace in found} | set(lost))
        roots = [number for number in lost if self._is_root(number, lost, unreadable)]
        out = [NamespaceRepair(context, namespace, False) for namespace in found]
        for number in lost:
            is_root = b"" not in taken and roots == [number]
            name = b"" if is_root else _free(f"{RECOVERED}-{number}", taken)
            taken.add(name)
            shown = keys.decode_name(name)
            self._note(f"namespace {number}", NAMED, f"the row with its name is lost; it is called {shown!r} now")
            out.append(NamespaceRepair(context, rows.Namespace(name, number, self._front(number)), True))
        return sorted(out, key=lambda repair: repair.namespace.number)

    def _strays(self, known: set[int]) -> None:
        """Quarantine ids and tags of namespaces that have nothing else."""
        for kind in (b"i", b"t"):
            prefix = keys.thread(self.number) + kind
            for key, _ in list(self.draft.scan(prefix, keys.end_of(prefix))):
                number = int.from_bytes(key[len(prefix) : len(prefix) + keys.NAMESPACE_BYTES], "big")
                if number not in known:
                    self._quarantine(key, f"namespace {number} isn't there")

    def _numbers(self) -> set[int]:
        """Return the numbers of namespaces that have records, or writes."""
        out: set[int] = set()
        for kind in (b"r", b"w"):
            prefix = keys.thread(self.number) + kind
            place = prefix
            while True:
                (found,) = self.draft.seek_many([(place, keys.end_of(prefix))])
                if found is None:
                    break
                number = int.from_bytes(found[0][len(prefix) : len(prefix) + keys.NAMESPACE_BYTES], "big")
                out.add(number)
                if number + 1 >= 1 << 8 * keys.NAMESPACE_BYTES:
                    break
                place = prefix + (number + 1).to_bytes(keys.NAMESPACE_BYTES, "big")
        return out

    def _front(self, number: int) -> int:
        """Tell which API wrote a namespace: by its ids, which in a native one are the ULIDs' texts."""
        prefix = keys.ids(self.number, number)
        if next(self.draft.scan(prefix, keys.end_of(prefix)), None) is not None:
            return rows.LANGGRAPH
        records = self._some_records(number)
        if records:
            return rows.LANGGRAPH if records[0].id else rows.NATIVE
        prefix = keys.all_writes(self.number) + number.to_bytes(keys.NAMESPACE_BYTES, "big")
        for key, _ in self.draft.scan(prefix, keys.end_of(prefix)):
            try:
                ulids.from_text(key[len(prefix) + 1 : -keys.HASH_BYTES].decode())
            except (InvalidIdError, UnicodeDecodeError):
                return rows.LANGGRAPH
        return rows.NATIVE

    def _some_records(self, number: int) -> list[rec.Record]:
        prefix = keys.records(self.number, number)
        out: list[rec.Record] = []
        for key, row in self.draft.scan(prefix, keys.end_of(prefix)):
            try:
                out += decode_row(unseal(key, row), key[-ulids.ULID_BYTES :], Dictionaries(self.draft)).records
            except CorruptionError:
                continue
        return out

    def _is_root(self, number: int, lost: list[int], unreadable: set[bytes]) -> bool:
        """Tell whether a namespace was the thread's root, whose row must be seen to be damaged.

        If there are others that lost theirs, LangGraph's checkpoints tell: all but the root's name one of the root's.
        """
        root = keys.namespace(self.number, b"")
        if len(lost) == 1:
            return unreadable == {root}
        records = self._some_records(number)
        return root in unreadable and bool(records) and all(record.id and record.root is None for record in records)

    def _store(self, namespaces: list[NamespaceRepair]) -> None:
        wanted: dict[bytes, list[rows.Namespace]] = {}
        for repair in namespaces:
            key = keys.namespace(self.number, repair.namespace.name)
            wanted.setdefault(key, []).append(repair.namespace)
        for key, found in wanted.items():
            row = self.draft.get(key)
            if row is None or rows.decode_namespaces(key, unseal(key, row)) != found:
                self.draft.put(key, ormsgpack.packb([namespace.fields() for namespace in found]))

    # --- the header

    def _made(self, found: rows.Header | None, chunks: Chunks, namespaces: list[NamespaceRepair]) -> rows.Header:
        lost = sum(repair.lost for repair in namespaces)
        if found is None:
            header = self._new(chunks, namespaces)
        else:
            header = replace(found, loose_rows=list(found.loose_rows), loose_bytes=list(found.loose_bytes))
            header.deleted += lost  # a child of these that is put late isn't taken for one without ancestors
        header.name = keys.encode_name(self.name)
        header.next_chunk = [max(pair) for pair in zip(header.next_chunk, chunks.next_free, strict=True)]
        newest = max((repair.last_ulid for repair in namespaces), default=b"")
        if newest > (header.last_ulid or b""):
            header.last_ulid = newest
        header.next_namespace = max(header.next_namespace, *(r.namespace.number + 1 for r in namespaces), 1)
        for series in range(rec.SERIES):
            loose = chunks.loose(series, header.packed_up_to[series])
            header.loose_rows[series], header.loose_bytes[series] = loose
        header.checkpoints = sum(repair.namespace.count for repair in namespaces)
        return header

    def _new(self, chunks: Chunks, namespaces: list[NamespaceRepair]) -> rows.Header:
        """Return a header of what the rows tell.

        What counts changes begins at the time, far from any count that caches may know; and checkpoints may have been
        deleted.
        """
        times = [time for repair in namespaces for time in repair.times]
        header = rows.Header(b"", min(times, default=self.now_ms), max(times, default=self.now_ms))
        header.collected = header.changes = self.now_ms
        header.deleted = 1
        for series in range(rec.SERIES):
            named = max((repair.named_up_to[series] for repair in namespaces), default=0)
            header.next_chunk[series] = max(chunks.next_free[series], named + 1)
        return header


def _free(name: str, taken: set[bytes]) -> bytes:
    """Return a name that nothing has."""
    encoded = keys.encode_name(name)
    while encoded in taken:
        encoded += b"'"
    return encoded
