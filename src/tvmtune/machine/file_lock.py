"""Locks of files and folders, which the kernel releases when their holder ends, however it ends."""

from __future__ import annotations

import fcntl


class CannotLock(OSError):
    """The file system has no locks, as NFS without its lock service, Lustre without ``flock`` and some
    FUSE have none."""


def take(fd: int) -> bool:
    """Lock an open file or folder until it is closed; returns False if another process holds the lock.

    Raises :class:`CannotLock`, which is no sign of another process.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise CannotLock(
            error.errno, f"its file system cannot lock files ({error.strerror})"
        ) from None
    return True
