"""Warnings about where and how a store is kept, said once for each path by each process, through `logging`.

Imports filesystem and the port. The invariant: a warning never fails or delays an opening, and names what was found,
what may come of it, and what to do.
"""

import logging
from typing import Final

from deltastore.storage.filesystem import mount_of
from deltastore.storage.port import SyncMode

_NETWORK: Final = (
    "a network file system. LMDB's locks and shared memory don't hold between machines, nor always on one, so the "
    "store may be damaged; keep it on a local disk, and take copies there with `backup` or `dump`"
)
_SHARED: Final = (
    "a directory of the host, shared with this machine. Locks and shared memory often don't hold there, so the store "
    "may be damaged, surely so when both sides use it; keep it on a disk of this machine"
)
_PROGRAM: Final = (
    "a file system that a program provides. Whether it keeps LMDB's locks, shared memory and flushes is up to that "
    "program, and if it doesn't, the store may be damaged; keep it on a local disk"
)
_LAYER: Final = (
    "the layer of a container or a live system. The store is gone when that ends, whatever `sync` says; mount a "
    "volume and keep it there"
)
_MEMORY: Final = (
    "memory. The store is gone when the machine or the container ends, whatever `sync` says; keep it on a disk, "
    "unless it may be lost"
)

_KINDS: Final = (
    dict.fromkeys(
        (
            *("nfs", "nfs3", "nfs4", "cifs", "smb2", "smb3", "smbfs", "ncpfs", "afs", "coda", "ceph", "glusterfs"),
            *("lustre", "gpfs", "beegfs", "ocfs2", "gfs2", "orangefs", "pvfs2", "panfs"),
            *("fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.ceph-fuse", "fuse.s3fs", "fuse.rclone"),
            *("fuse.juicefs", "fuse.gcsfuse", "fuse.blobfuse", "fuse.blobfuse2", "fuse.davfs", "fuse.curlftpfs"),
        ),
        _NETWORK,
    )
    | dict.fromkeys(("9p", "virtiofs", "vboxsf", "vmhgfs", "fuse.vmhgfs-fuse", "prl_fs", "drvfs"), _SHARED)
    | dict.fromkeys(("overlay", "overlayfs", "aufs", "unionfs", "fuse.fuse-overlayfs"), _LAYER)
    | dict.fromkeys(("tmpfs", "ramfs"), _MEMORY)
)

_logger = logging.getLogger("deltastore")
_told: dict[tuple[str, str], object] = {}


def caution_of(kind: str) -> str | None:
    """Return what is to be said of a type of file system; None of one that a store is safe on, as far as is known."""
    if kind == "fuse" or (kind.startswith("fuse.") and kind not in _KINDS):
        return _PROGRAM
    return _KINDS.get(kind)


def warn_of_place(location: str) -> None:
    """Warn when the directory is, or would be, on a file system that a store isn't safe on."""
    mount = mount_of(location)
    caution = caution_of(mount.kind) if mount else None
    if mount is not None and caution is not None:
        _warn_once(location, mount.kind, f"{location} is on {mount.kind} (mounted at {mount.point}): {caution}")


def warn_of_sync(location: str, sync: SyncMode) -> None:
    """Warn of a mode in which a power cut can damage the store."""
    if sync == "none":
        _warn_once(
            location,
            "sync",
            f"{location} is open with sync='none': a power cut or a crash of the machine may leave it silently wrong, "
            "also what others put with another mode; use 'full' or 'meta', or be ready to restore a backup",
        )


def _warn_once(location: str, what: str, text: str) -> None:
    mine = object()
    if _told.setdefault((location, what), mine) is mine:  # one step, so two threads don't both
        _logger.warning("%s", text)
