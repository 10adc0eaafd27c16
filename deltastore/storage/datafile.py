"""LMDB's data file read as bytes: whether it can be opened, and whether its tree is what a commit leaves.

LMDB believes its pages: on a file cut short it dies of SIGBUS, on a damaged page of SIGSEGV or of an assertion, and
the process with it. What is here reads pages with ordinary reads and believes nothing. Imports the errors alone. The
invariant: no file, whatever is in it, gets an exception out of here but CorruptionError and OSError.
"""

import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from deltastore.errors import CorruptionError

IS_KNOWN = sys.byteorder == "little" and struct.calcsize("P") == 8
"""Whether files have the layout that is read here: it follows the machine's. Elsewhere nothing is looked at."""

_MAGIC = 0xBEEFC0DE
_VERSION = 1
"""Of files of LMDB 0.9; another one is left to the engine to refuse."""

_HEADER = struct.Struct("<QHHHH")
"""Of a page: number, unused, flags, end of the places of nodes, begin of the nodes. An overflow run has 32 bits of its
length in place of the last two."""
_META = struct.Struct("<IIQQ" + "IHHQQQQQ" * 2 + "QQ")
_NODE = struct.Struct("<HHHH")
_NUMBER = struct.Struct("<Q")

_BRANCH, _LEAF, _OVERFLOW, _META_PAGE = 1, 2, 4, 8
_KINDS = 0x6F
"""The flags that say what a page is; the others are notes of the engine to itself."""
_BIG = 1
"""Flag of a node whose value stands in an overflow run."""

_NO_ROOT = (1 << 64) - 1
_META_PAGES = 2
_MAX_DEPTH = 32
_PAGE_SIZES = {1 << bits for bits in range(9, 17)}
_SMALLEST_PAGE = 512

_TRIES = 5
"""How often a file that looks damaged is read anew: another process may have been in the middle of a commit."""

MAX_FOUND = 100
"""Damaged places that are told at most."""


class _Tree(NamedTuple):
    pad: int
    flags: int
    depth: int
    branches: int
    leaves: int
    overflows: int
    entries: int
    root: int


class _Meta(NamedTuple):
    page_bytes: int
    free: _Tree
    main: _Tree
    last: int
    transaction: int


class _Damage(Exception):
    """A finding, on its way to whoever goes on with the next page."""


def check_openable(path: Path) -> None:
    """Refuse a data file that the engine would crash on at once, or read an older commit of without a word.

    Looks at the two pages that say where everything is, at the roots, and at the length of the file; a file that isn't
    there, or is empty, is none yet. Others may write meanwhile. Raises CorruptionError, OSError.
    """
    if not IS_KNOWN:
        return
    seen: tuple[bytes, str] | None = None
    for _ in range(_TRIES):
        try:
            with path.open("rb", buffering=0) as file:
                head = _metas_of(file)
                if not head:
                    return
                try:
                    _check_head(file, head)
                except _Damage as damage:
                    found = str(damage)
                else:
                    return
        except FileNotFoundError:
            return
        if seen == (head, found):
            break  # twice the same: nobody is writing
        seen = head, found
    raise CorruptionError(f"{path} is damaged: {found}; restore the store from a backup")


def damaged_places(path: Path, transaction: int) -> list[str] | None:
    """Return what is wrong with the tree that a read transaction sees, page by page; the transaction must be alive.

    None where two commits came since it began: nothing tells any more where its tree is; begin another one.
    Costs a read of every page that isn't the rest of a large value. Raises OSError.
    """
    if not IS_KNOWN:
        return []
    found: list[str] = []
    with path.open("rb", buffering=0) as file:
        for _ in range(_TRIES):
            try:
                metas = _parse_metas(_metas_of(file))
            except _Damage as damage:
                found = [str(damage)]
                continue
            for meta in metas:
                if meta.transaction == transaction:
                    return _Walk(file, meta).run()
            return None
    return found


def _metas_of(file: BinaryIO) -> bytes:
    """Return the first two pages of a file, as far as they are there, of the size that the first one names."""
    file.seek(0)
    head = file.read(_SMALLEST_PAGE)
    if len(head) < _SMALLEST_PAGE:
        return head
    size = _page_bytes(head)
    file.seek(0)
    return file.read(_META_PAGES * size)


def _page_bytes(head: bytes) -> int:
    """Return the page size that the first page names; the system's most common one where that is nonsense."""
    size: int = _META.unpack_from(head, _HEADER.size)[4]
    return size if size in _PAGE_SIZES else 4096


def _parse_metas(head: bytes) -> list[_Meta]:
    size = _page_bytes(head) if len(head) >= _SMALLEST_PAGE else 4096
    if len(head) < _META_PAGES * size:
        raise _Damage(f"it has {len(head)} bytes; expected at least its first two pages, of {size} each")
    return [_parse_meta(head, size, number) for number in range(_META_PAGES)]


def _parse_meta(head: bytes, size: int, number: int) -> _Meta:
    where = f"page {number}, which says where everything is,"
    own, _, flags, _, _ = _HEADER.unpack_from(head, number * size)
    magic, version, _, _, *fields = _META.unpack_from(head, number * size + _HEADER.size)
    if own != number or flags & _KINDS != _META_PAGE or magic != _MAGIC:
        raise _Damage(
            f"{where} has number {own}, flags {flags:#x}, mark {magic:#x}; expected {number}, 0x8, {_MAGIC:#x}"
        )
    free, main = _Tree(*fields[:8]), _Tree(*fields[8:16])
    meta = _Meta(free.pad, free, main, *fields[16:])
    if version != _VERSION:
        return meta  # the engine's to refuse
    if meta.page_bytes not in _PAGE_SIZES or meta.page_bytes != size:
        raise _Damage(
            f"{where} names a page size of {meta.page_bytes} bytes; expected a power of two, the same in both"
        )
    for tree in (free, main):
        if (tree.root == _NO_ROOT) != (tree.depth == 0) or tree.depth > _MAX_DEPTH:
            raise _Damage(f"{where} names a tree of depth {tree.depth} with its root at {tree.root}")
        if tree.root != _NO_ROOT and not _META_PAGES <= tree.root <= meta.last:
            raise _Damage(f"{where} names page {tree.root} as a root; expected one up to {meta.last}, the last")
    if meta.transaction and meta.transaction & 1 != number:
        raise _Damage(f"{where} is of commit {meta.transaction}, which goes to the other one")
    return meta


def _check_head(file: BinaryIO, head: bytes) -> None:
    metas = _parse_metas(head)
    if any(_META.unpack_from(head, place * metas[0].page_bytes + _HEADER.size)[1] != _VERSION for place in (0, 1)):
        return
    older, newest = sorted(metas, key=lambda meta: meta.transaction)
    if newest.transaction - older.transaction > 1 or (newest.transaction == older.transaction != 0):
        raise _Damage(
            f"its first two pages are of commits {older.transaction} and {newest.transaction}; expected two in a row"
        )
    walk = _Walk(file, newest)
    for tree in (newest.free, newest.main):
        if tree.root != _NO_ROOT:
            walk.page(tree.root, _LEAF if tree.depth == 1 else _BRANCH, "a root")
    walk.check_length()


class _Walk:
    """A walk over the pages of one commit. `used` has a mark for each page that was met."""

    def __init__(self, file: BinaryIO, meta: _Meta) -> None:
        self._file = file
        self._meta = meta
        self._size = meta.page_bytes
        file.seek(0, 2)
        self._pages = file.tell() // self._size
        # What lies beyond the file is looked at one by one; a number of pages that can't be isn't counted out.
        self._used = bytearray(min(self._pages, meta.last + 1))
        self._found: list[str] = []
        self._counts = [0, 0, 0, 0]

    def run(self) -> list[str]:
        """Walk both trees; return what is wrong."""
        for what, tree in (("free list", self._meta.free), ("tree", self._meta.main)):
            is_free = tree is self._meta.free
            self._counts = [0, 0, 0, 0]
            before = len(self._found)
            if tree.root != _NO_ROOT:
                self._below(tree.root, tree.depth, what, b"", None, self._free_value if is_free else None)
            counts = list(tree[3:7])
            if self._counts != counts and len(self._found) == before:
                self._note(
                    f"the {what} has {self._counts} branch, leaf and overflow pages and entries; expected {counts}"
                )
        try:
            self.check_length()
        except _Damage as damage:
            self._note(str(damage))
        return self._found

    def check_length(self) -> None:
        """Refuse a file that lacks pages in use; the last ones may be missing where they are free: never written."""
        last = self._meta.last
        if last < self._pages:
            return
        missing = last + 1 - self._pages
        free = 0

        def count(_: bytes, value: bytes) -> None:
            nonlocal free
            free += sum(1 for number in _free_pages(value) if self._pages <= number <= last)

        tree = self._meta.free
        # Another walk, of the free list alone: what this one counts mustn't be taken for met twice.
        beside = _Walk(self._file, self._meta)
        if tree.root != _NO_ROOT:
            beside._below(tree.root, tree.depth, "free list", b"", None, count)
        if free < missing or beside._found:
            raise _Damage(
                f"it has {self._pages} pages, and {last + 1} are in use, but for {free} that are free; it was cut short"
            )

    def page(self, number: int, kind: int, where: str) -> bytes:
        """Return a page that must be there, of this kind, and met for the first time."""
        if not _META_PAGES <= number <= self._meta.last:
            raise _Damage(f"{where} names page {number}; expected one from 2 to {self._meta.last}")
        if number >= self._pages:
            raise _Damage(f"{where} names page {number}, and the file ends after {self._pages} pages")
        self._claim(number, where)
        self._file.seek(number * self._size)
        page = self._file.read(self._size)
        if len(page) < self._size:
            raise _Damage(f"page {number} lies beyond the end of the file")
        own, _, flags, _, _ = _HEADER.unpack_from(page)
        if own != number or flags & _KINDS != kind:
            raise _Damage(f"page {number} has number {own} and flags {flags:#x}; expected {number} and {kind:#x}")
        return page

    def _claim(self, number: int, where: str) -> None:
        if number < len(self._used):
            if self._used[number]:
                raise _Damage(f"page {number} is in use twice, once by {where}")
            self._used[number] = 1

    def _note(self, what: str) -> None:
        if len(self._found) < MAX_FOUND:
            self._found.append(what)

    def _below(
        self,
        number: int,
        depth: int,
        what: str,
        low: bytes,
        high: bytes | None,
        see: Callable[[bytes, bytes], None] | None,
    ) -> None:
        """Walk what hangs below a page, whose keys must be from `low` to below `high`."""
        try:
            page = self.page(number, _LEAF if depth == 1 else _BRANCH, f"the {what}")
            nodes = list(self._nodes(page, number, is_leaf=depth == 1))
            self._check_order(number, [key for key, _ in nodes], depth, low, high, is_numeric=what == "free list")
        except _Damage as damage:
            self._note(str(damage))
            return
        self._counts[0 if depth > 1 else 1] += 1
        if depth == 1:
            self._counts[3] += len(nodes)
            for key, node in nodes:
                try:
                    value = self._value(number, node, whole=see is not None)
                    if see is not None:
                        see(key, value)
                except _Damage as damage:
                    self._note(str(damage))
            return
        for place, (key, node) in enumerate(nodes):
            below = node.low | node.high << 16 | node.flags << 32
            following = nodes[place + 1][0] if place + 1 < len(nodes) else high
            self._below(below, depth - 1, what, key if place else low, following, see)

    def _nodes(self, page: bytes, number: int, *, is_leaf: bool) -> Iterator[tuple[bytes, "_Node"]]:
        _, _, _, lower, upper = _HEADER.unpack_from(page)
        if not _HEADER.size < lower <= upper <= self._size or lower % 2:
            raise _Damage(f"page {number} has its nodes from {upper} on and their places up to {lower}")
        taken = 0
        for place in range(_HEADER.size, lower, 2):
            at = page[place] | page[place + 1] << 8
            if not upper <= at <= self._size - _NODE.size:
                raise _Damage(f"page {number} has a node at {at}; expected it from {upper} on, within the page")
            low, high, flags, key_bytes = _NODE.unpack_from(page, at)
            data_at = at + _NODE.size + key_bytes
            length = low | high << 16
            size = (8 if flags & _BIG else length) if is_leaf else 0
            if data_at + size > self._size or (is_leaf and flags & ~_BIG):
                raise _Damage(f"page {number} has a node of flags {flags:#x} with {key_bytes} and {length} bytes")
            taken += (data_at + size - at + 1) & ~1
            yield page[at + _NODE.size : data_at], _Node(low, high, flags, page[data_at : data_at + size], length)
        if taken != self._size - upper:
            raise _Damage(f"page {number} has nodes of {taken} bytes where it should have {self._size - upper}")

    def _check_order(
        self, number: int, keys: list[bytes], depth: int, low: bytes, high: bytes | None, *, is_numeric: bool
    ) -> None:
        first = 0 if depth == 1 else 1  # the first key of a branch means nothing
        bounds = [low, *keys[first:], *([] if high is None else [high])]
        if is_numeric:
            if any(len(key) != _NUMBER.size for key in keys[first:]):
                raise _Damage(f"page {number} of the free list has a key that is no number")
            bounds = [key[::-1] for key in bounds]
        for place, key in enumerate(bounds[1:], 1):
            # The first key of a leaf may be the bound itself.
            if key < bounds[place - 1] or (key == bounds[place - 1] and (place > 1 or depth > 1)):
                raise _Damage(f"page {number} has keys out of their order")

    def _value(self, number: int, node: "_Node", *, whole: bool) -> bytes:
        """Return the value of a node; of one in an overflow run the bytes only where the `whole` is wanted."""
        if not node.flags & _BIG:
            return node.data
        (first,) = _NUMBER.unpack(node.data)
        page = self.page(first, _OVERFLOW, f"page {number}")
        (count,) = struct.unpack_from("<I", page, 12)
        needed = (_HEADER.size + node.length + self._size - 1) // self._size
        # More than needed: a value of the same transaction was made smaller in its place.
        if count < needed or first + count > self._pages:
            raise _Damage(f"the run at page {first} has {count} pages; expected {needed} or more, within the file")
        for following in range(first + 1, first + count):
            self._claim(following, f"page {number}")
        self._counts[2] += count
        if not whole:
            return b""
        self._file.seek(first * self._size + _HEADER.size)
        return self._file.read(node.length)

    def _free_value(self, key: bytes, value: bytes) -> None:
        for number in _free_pages(value):
            if not _META_PAGES <= number <= self._meta.last:
                raise _Damage(f"the free list names page {number}; expected one from 2 to {self._meta.last}")
            self._claim(number, "the free list")


def _free_pages(value: bytes) -> list[int]:
    """Return the numbers of pages in a value of the free list."""
    count = _NUMBER.unpack_from(value)[0] if len(value) >= _NUMBER.size else -1
    if not 0 <= count <= len(value) // _NUMBER.size - 1:
        raise _Damage(f"the free list tells of {count} pages in {len(value)} bytes")
    return [number for (number,) in _NUMBER.iter_unpack(value[_NUMBER.size : (count + 1) * _NUMBER.size])]


class _Node(NamedTuple):
    """An entry of a page: its head's numbers, its bytes where it has any in the page, and how many it says it has."""

    low: int
    high: int
    flags: int
    data: bytes
    length: int
