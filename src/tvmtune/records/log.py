"""The log: an append-only file of JSON lines. ``docs/log-format.md`` documents every field.

A header line governs the lines after it until the next header, so concatenated logs are valid. Each
line is on disk before it is reported. The reader ignores a torn last line, as a power cut or
``kill -9`` leaves it; the next writer removes it.
"""

from __future__ import annotations

import errno
import fcntl
import gzip
import json
import lzma
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any

from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.records import schema
from tvmtune.records.designs import Design, Packer
from tvmtune.records.schema import FORMAT, Line
from tvmtune.types import JSON, Trial

__all__ = ["FORMAT", "Log", "LogWriter", "read_log", "refuse_compressed", "sync_directory"]

COMPRESSED = {".gz": "gzip", ".xz": "xz"}
"""Suffixes of compressed files, and what decompresses them."""
_DECODER = json.JSONDecoder()


@dataclass
class Log:
    """The content of a log; verdicts and second measurements are merged into their trials."""

    path: Path
    headers: list[JSON] = field(default_factory=list)
    tasks: dict[str, JSON] = field(default_factory=dict)
    """The last task line of each key."""
    trials: list[Trial] = field(default_factory=list)
    torn: bool = False
    """Whether the last line is incomplete."""

    def devices(self) -> dict[str, JSON]:
        """Device descriptions by identity."""
        return {h["device"]["identity"]: h["device"] for h in self.headers}


class LogWriter:
    """Appends to a log under an exclusive lock, which ends with the process at the latest.

    Raises :class:`TvmtuneError` if another process writes to the file or if it cannot be written,
    :class:`UsageError` for a compressed log.
    """

    def __init__(self, path: Path) -> None:
        refuse_compressed(path)
        self.path = path
        self._packer = Packer()
        self._written_designs: set[str] = set()
        """Keys of the designs that this writer has written."""
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise TvmtuneError(
                f"cannot write the log {path}: {error.strerror}. Choose another place with --log."
            ) from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise TvmtuneError(
                f"another process is writing to {path}. Wait for it, or choose another --log."
            ) from None
        self._begun = False
        """Whether it has written anything; until then the file is unchanged."""
        sync_directory(path.parent)

    def write(self, line: Line) -> None:
        """Write a line of :mod:`tvmtune.records.schema` and wait until it is on disk."""
        self.append(line.kind, line.fields)

    def append(self, kind: str, record: JSON) -> None:
        """Write one line of any kind and wait until it is on disk."""
        line = json.dumps({"type": kind, **record}, separators=(",", ":")) + "\n"
        data = line.encode()
        if not self._begun:
            self._cut_torn_line()
            self._begun = True
        start = os.fstat(self._fd).st_size
        try:
            written = os.write(self._fd, data)
            if written != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fdatasync(self._fd)
        except OSError as error:
            # Never leave half a line: earlier measurements must stay readable.
            os.ftruncate(self._fd, start)
            raise TvmtuneError(
                f"cannot write to the log {self.path}: {error.strerror}. Everything before is kept; "
                "free some space and run the same command again to continue."
            ) from None

    def trial(self, trial: Trial) -> Trial:
        """Write a trial, after its design if that is new; returns it with its trace packed."""
        packed = self._packer.pack(trial.trace)
        if packed and packed.design.key not in self._written_designs:
            self.write(schema.design(packed.design))
            self._written_designs.add(packed.design.key)
        self.write(schema.trial(trial, packed))
        return trial.evolve(trace=packed) if packed else trial

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _cut_torn_line(self) -> None:
        size = os.fstat(self._fd).st_size
        position = size
        while position > 0:
            step = min(65536, position)
            chunk = os.pread(self._fd, step, position - step)
            newline = chunk.rfind(b"\n")
            if newline >= 0:
                position = position - step + newline + 1
                break
            position -= step
        if position < size and _is_json(os.pread(self._fd, size - position, position)):
            os.write(self._fd, b"\n")  # complete except for its newline, as some editors leave it
        elif position < size and position > 0:
            os.ftruncate(self._fd, position)
        # A file that is one long torn line may not be a log at all: the reader decides, not the writer.


def sync_directory(folder: Path) -> None:
    """Make new and renamed entries of a directory survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:  # not every file system supports it
        pass
    finally:
        os.close(descriptor)


def read_log(path: Path) -> Log:
    """Read a log of this or an older format; a file named ``*.gz`` or ``*.xz`` is decompressed.

    Raises :class:`TvmtuneError` for a file that is missing, empty, not a log, of a newer format, or
    damaged anywhere but in an incomplete last line.
    """
    reader = _Reader(path)
    log = reader.log
    for number, record, incomplete in _lines(path):
        if record is None:
            if incomplete and log.headers:
                log.torn = True
                break
            if incomplete:
                raise TvmtuneError(
                    f"{path} is not a tvmtune log, or was cut short before anything was measured: its "
                    "only line is not a JSON record. Delete it, or choose another file."
                )
            where = "its first line" if not log.headers else f"line {number}"
            raise TvmtuneError(f"{path} is not a tvmtune log: {where} is not a JSON record.")
        try:
            reader.take(number, record)
        except (KeyError, TypeError) as error:
            raise TvmtuneError(
                f"{path} is not a tvmtune log: line {number} lacks a required field ({error})."
            ) from None
        except ValueError as error:
            raise TvmtuneError(f"{path} is damaged: line {number}: {error}.") from None
    if not log.headers:
        raise TvmtuneError(f"{path} is empty: there is nothing in this log.")
    return log


class _Reader:
    """Fills a :class:`Log` line by line; traces of older formats are packed, too."""

    def __init__(self, path: Path) -> None:
        self.log = Log(path)
        self._identity = ""
        """Of the device that governs the next line."""
        self._designs: dict[str, Design] = {}
        self._packer = Packer()
        self._places: dict[tuple[str, str, str], int] = {}
        """Where the latest trial of a device, workload and candidate is in ``log.trials``."""

    def take(self, number: int, record: JSON) -> None:
        """Add one line."""
        log, kind = self.log, record.get("type")
        if kind == schema.HEADER:
            try:
                schema.check_header(record)
            except TvmtuneError as error:
                raise TvmtuneError(f"{log.path} {error}") from None
            self._identity = record["device"]["identity"]
            log.headers.append(record)
        elif not log.headers:
            raise TvmtuneError(f"{log.path} is not a tvmtune log: it does not begin with a header.")
        elif kind == schema.TASK:
            log.tasks[record["task"]] = record
        elif kind == schema.DESIGN:
            if record["design"] not in self._designs:
                self._designs[record["design"]] = schema.parse_design(record)
        elif kind == schema.TRIAL:
            trial = schema.parse_trial(record, self._trace(number, record), self._identity)
            self._places[trial.device, trial.workload, trial.candidate] = len(log.trials)
            log.trials.append(trial)
        elif kind == schema.VERDICT:
            verdict = schema.parse_verdict(record)
            place = self._place(verdict)
            if place is not None and verdict.verified is not None:
                judged = log.trials[place].with_verdict(verdict.verified, verdict.message)
                log.trials[place] = judged
        elif kind == schema.REMEASURE:
            again = schema.parse_remeasurement(record)
            place = self._place(again)
            if place is not None:
                log.trials[place] = log.trials[place].with_repeats(again.seconds)

    def _trace(self, number: int, record: JSON) -> Any:
        if "design" not in record:
            return self._packer.pack(record["trace"]) or record["trace"]
        design = self._designs.get(record["design"])
        if design is None:
            raise TvmtuneError(
                f"{self.log.path} is incomplete: the trial on line {number} needs the design "
                f"{record['design']}, which no earlier line contains. Restore the file, or delete "
                "that line."
            )
        return schema.parse_packed_trace(record, design)

    def _place(self, about: schema.Verdict | schema.Remeasurement) -> int | None:
        return self._places.get((self._identity, about.workload, about.candidate))


def refuse_compressed(path: Path) -> None:
    """Raise :class:`UsageError` if the name says that the log is compressed."""
    if path.suffix in COMPRESSED:
        raise UsageError(
            f"cannot write to {path}: a compressed log can only be read. Choose a name without "
            f"{path.suffix}; {COMPRESSED[path.suffix]} -d decompresses a log that you want to "
            "continue."
        )


def _lines(path: Path) -> Iterator[tuple[int, JSON | None, bool]]:
    """(line number, record or None, whether it is a last line without a newline) for each line that
    is not blank."""
    try:
        with _open(path) as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, _parse(line), not line.endswith(b"\n")
    except FileNotFoundError:
        raise TvmtuneError(f"there is no log at {path}.") from None
    except (gzip.BadGzipFile, lzma.LZMAError, EOFError, zlib.error):
        raise TvmtuneError(
            f"{path} is truncated, damaged or, in spite of its name, not compressed with "
            f"{COMPRESSED[path.suffix]}: restore the file, or give a plain log a name without "
            f"{path.suffix}."
        ) from None
    except OSError as error:
        raise TvmtuneError(f"cannot read the log {path}: {error.strerror}.") from None


def _open(path: Path) -> gzip.GzipFile | lzma.LZMAFile | BufferedReader:
    if path.suffix == ".gz":
        return gzip.open(path)
    return lzma.open(path) if path.suffix == ".xz" else path.open("rb")


def _parse(line: bytes) -> JSON | None:
    try:
        # json.loads would spend a tenth of the time on guessing the encoding and skipping whitespace.
        text = line.decode().strip("\ufeff \t\r\n")
        record, end = _DECODER.raw_decode(text)
        if end != len(text):
            return None
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _is_json(data: bytes) -> bool:
    return _parse(data) is not None
