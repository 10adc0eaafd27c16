"""What a storage says about itself. Imports nothing; whoever puts and reads needs none of it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OldestReader:
    """The oldest read transaction under way, of whichever process: pages that it may see can't be used again.

    `behind`: how many transactions were committed since it began.
    """

    pid: int
    behind: int


@dataclass(frozen=True, slots=True)
class StorageInfo:
    """What a storage says about itself. Sizes are in bytes.

    `oldest_reader`: None where no transaction but the latest is being read, or the storage can't tell.
    """

    kind: str
    location: str
    file_bytes: int
    used_bytes: int
    map_bytes: int
    readers: int
    oldest_reader: OldestReader | None = None
