"""Threads as LangGraph users know them: with the metadata of the thread rather than of a step.

Imports the log and terms. The invariant: of a thread one record and a few small rows are read; chunks are measured.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from deltastore.codec.blobs import Codec
from deltastore.langgraph import filters
from deltastore.log import rows
from deltastore.log.engine import Log
from deltastore.log.listing import ThreadRow
from deltastore.terms import ThreadInfo, check_limit, thread_info, thread_metadata


def list_threads(
    log: Log, codec: Codec, wanted: Mapping[str, Any], *, before: str | None, limit: int | None
) -> Iterator[ThreadInfo]:
    """Iterate over the threads with LangGraph checkpoints whose metadata match a filter, the newest created first.

    Raises InvalidInputError and ThreadNotFoundError at once; when a thread is reached that can't be read,
    ChecksumError, BrokenChainError, CodecMismatchError or TypeRefusedError, naming it.
    """
    check_limit(limit)

    def accept(row: ThreadRow) -> dict[str, Any] | None:
        if row.metadata is None:
            return None
        metadata = thread_metadata(codec.decode(row.metadata))
        return metadata if filters.matches(wanted, metadata) else None

    found = log.threads(rows.LANGGRAPH, accept, before=before, limit=limit)
    return (thread_info(row, metadata, size) for row, metadata, size in found)
