"""What a directory takes on disk."""

from pathlib import Path

BLOCK_BYTES = 512
"""The unit of st_blocks, whatever the file system's own block is."""


def allocated_bytes(directory: Path) -> int:
    """Return what a directory and all below it take on disk."""
    return sum(path.stat().st_blocks * BLOCK_BYTES for path in (directory, *directory.rglob("*")))
