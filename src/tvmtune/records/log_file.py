"""The file of a log: who may write to it, and whether it is still where it was.

Two locks keep a second writer out. One is on the file itself, whatever it is called. The other is on
``.NAME.lock`` beside it, for as long as the log is in use: without it, a log that was removed or
renamed would be free for another run, while the first one goes on writing to a file without a name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tvmtune import atomic_write
from tvmtune.errors import TvmtuneError
from tvmtune.machine import file_lock

_NO_LOCK_FILE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG)
"""Where no lock file can be made; in such a folder nothing can be renamed or removed, either."""
_ATTEMPTS = 100
_BLOCK = 1 << 20


class LogLost(TvmtuneError):
    """The log was removed, moved or replaced while it was written to."""


class _CannotLock(TvmtuneError):
    """Nothing tells whether another process writes to the log."""


class LogFile:
    """A file that this process alone appends to, created if it is missing.

    Raises :class:`TvmtuneError` if another process holds it, or if its file system cannot lock files;
    OSError if it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        real = Path(os.path.realpath(path))
        with contextlib.ExitStack() as undo:
            self._lock_path = real.with_name(f".{real.name}.lock")
            self._lock = self._hold(self._lock_path, undo)
            self.fd = self._open(real, undo)
            self._undo = undo.pop_all()
        status = os.fstat(self.fd)
        self._identity = (status.st_dev, status.st_ino)

    def is_lost(self) -> bool:
        """Whether the path no longer leads to this file. Takes a microsecond."""
        try:
            status = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:  # no permission, say: nothing is known
            return False
        return (status.st_dev, status.st_ino) != self._identity

    def lost(self) -> LogLost:
        """The error that says where the content is; saves it first if the file has no name left."""
        moved = self._current_name()
        if moved is not None:
            return LogLost(
                f"the log {self.path} was moved while this run was writing to it: every trial is in "
                f"{moved}. Continue with --log {moved}, or move it back."
            )
        replaced = os.path.lexists(self.path)
        what = "replaced by another file" if replaced else "removed"
        try:
            saved = self._save()
        except OSError as error:
            return LogLost(
                f"the log {self.path} was {what} while this run was writing to it, and its trials "
                f"cannot be saved elsewhere: {error.strerror}. They are lost."
            )
        remedy = f"Continue with --log {saved}" + ("." if replaced else ", or rename it.")
        return LogLost(
            f"the log {self.path} was {what} while this run was writing to it: every trial was saved "
            f"to {saved}. {remedy}"
        )

    def close(self) -> None:
        self._undo.close()

    def _hold(self, path: Path, undo: contextlib.ExitStack) -> int | None:
        """Lock the file beside the log; removed by :meth:`close`, or by the next writer."""
        for _ in range(_ATTEMPTS):
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            except OSError as error:
                if error.errno in _NO_LOCK_FILE:
                    return None
                raise
            try:
                self._take(fd)
            except _CannotLock:
                path.unlink(missing_ok=True)  # there is no owner
                raise
            # Its last owner may have removed it after it was opened here.
            if _is_at(fd, path):
                undo.callback(os.close, fd)
                undo.callback(_remove_if_at, fd, path)
                return fd
            os.close(fd)
        raise self._busy()

    def _open(self, path: Path, undo: contextlib.ExitStack) -> int:
        for _ in range(_ATTEMPTS):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            self._take(fd)
            if _is_at(fd, path):  # distill may have replaced it meanwhile
                undo.callback(os.close, fd)
                return fd
            os.close(fd)
        raise self._busy()

    def _take(self, fd: int) -> None:
        """Lock a file, or close it and raise :class:`TvmtuneError`."""
        try:
            taken = file_lock.take(fd)
        except file_lock.CannotLock as error:
            os.close(fd)
            raise _CannotLock(
                f"cannot write the log {self.path}: {error.strerror}, so two runs could write to it at "
                "once. Put it on a local disk with --log."
            ) from None
        if not taken:
            os.close(fd)
            raise self._busy()

    def _busy(self) -> TvmtuneError:
        return TvmtuneError(
            f"another process is writing to {self.path}. Wait for it, or choose another --log."
        )

    def _current_name(self) -> Path | None:
        """Where the file was moved to; None if it has no name, or one that cannot be found."""
        try:
            name = Path(f"/proc/self/fd/{self.fd}").readlink()
        except OSError:
            return None
        return name if _is_at(self.fd, name) else None

    def _save(self) -> Path:
        """Copy the content to a new file beside the log, or else where there is a folder."""
        failure: OSError | None = None
        for folder in (self.path.absolute().parent, Path.cwd(), Path(tempfile.gettempdir())):
            try:
                return self._copy(folder)
            except OSError as error:
                failure = failure or error
        assert failure is not None
        raise failure

    def _copy(self, folder: Path) -> Path:
        for path in _free_names(folder / f"{self.path.name}.rescued"):
            try:
                copy = path.open("xb")
            except FileExistsError:
                continue
            try:
                with copy:
                    position = 0
                    while block := os.pread(self.fd, _BLOCK, position):
                        copy.write(block)
                        position += len(block)
                    copy.flush()
                    os.fsync(copy.fileno())
            except OSError:
                path.unlink(missing_ok=True)  # half a copy reads as a whole log
                raise
            atomic_write.sync_directory(folder)
            return path if folder != self.path.absolute().parent else self.path.with_name(path.name)
        raise AssertionError("names never run out")


def _is_at(fd: int, path: Path) -> bool:
    try:
        there = path.stat()
    except OSError:
        return False
    here = os.fstat(fd)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def _remove_if_at(fd: int, path: Path) -> None:
    if _is_at(fd, path):
        with contextlib.suppress(OSError):
            path.unlink()


def _free_names(path: Path) -> Iterator[Path]:
    yield path
    number = 2
    while True:
        yield path.with_name(f"{path.name}-{number}")
        number += 1
