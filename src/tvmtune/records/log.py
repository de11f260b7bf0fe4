"""The log: one append-only file of JSON lines. ``docs/log-format.md`` documents every field.

A header line governs the lines after it until the next header, so concatenated logs are valid. Each
line is on disk before anyone is told of it. A torn last line, as a power cut or ``kill -9`` leaves
it, is passed over by the reader and cut off by the next writer.
"""

from __future__ import annotations

import errno
import fcntl
import gzip
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.records.designs import Design, PackedTrace, Packer, unpack
from tvmtune.records.repeats import add_repeats
from tvmtune.types import JSON, Trial

FORMAT = 2
COMPRESSED = ".gz"
_TRIAL_FIELDS = [f.name for f in fields(Trial) if f.name not in ("device", "extra")]
_NOT_EXTRA = {*_TRIAL_FIELDS, "type", "device", "design", "decisions", "postprocs"}


@dataclass
class Log:
    """What a log holds, verdicts already merged into their trials."""

    path: Path
    headers: list[JSON] = field(default_factory=list)
    tasks: dict[str, JSON] = field(default_factory=dict)
    """The last task line of each key."""
    trials: list[Trial] = field(default_factory=list)
    torn: bool = False
    """Whether the last line was cut short."""

    def devices(self) -> dict[str, JSON]:
        """Device descriptions by identity."""
        return {h["device"]["identity"]: h["device"] for h in self.headers}


def module_of(line: JSON | None, implementation: str) -> str | None:
    """The workload of a task line's implementation, as the log stores it; None if it does not."""
    found = (line or {}).get("implementations", ())
    return next((i.get("module") for i in found if i["name"] == implementation), None)


class LogWriter:
    """Appends to a log under an exclusive lock that ends with the process.

    Raises :class:`TvmtuneError` if another process writes to the file, or if it cannot be written;
    :class:`UsageError` for a compressed one.
    """

    def __init__(self, path: Path) -> None:
        refuse_compressed(path)
        self.path = path
        self._packer = Packer()
        self._written: set[str] = set()
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
        """Whether it has written anything; until then the file is as it was found."""
        sync_directory(path.parent)

    def append(self, kind: str, record: JSON) -> None:
        """Write one line and wait until it is on disk."""
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
            # Never leave half a line: what was measured before stays readable.
            os.ftruncate(self._fd, start)
            raise TvmtuneError(
                f"cannot write to the log {self.path}: {error.strerror}. Everything before is kept; "
                "free some space and run the same command again to continue."
            ) from None

    def trial(self, trial: Trial) -> None:
        """Write a trial, its design first if need be; from then on it holds its trace packed."""
        packed = self._packer.pack(trial.trace)
        if packed and packed.design.key not in self._written:
            self.append("design", packed.design.to_json())
            self._written.add(packed.design.key)
        self.append("trial", trial_to_json(trial, packed))
        if packed:
            trial.trace = packed

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
            os.write(self._fd, b"\n")  # whole but for its newline, as an editor may leave it
        elif position < size and position > 0:
            os.ftruncate(self._fd, position)
        # A file that is one long torn line may not be a log at all: the reader decides, not we.


def sync_directory(folder: Path) -> None:
    """Have new and renamed entries of a directory survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:  # not every file system can
        pass
    finally:
        os.close(descriptor)


def read_log(path: Path) -> Log:
    """Read a log of this or an older format; one whose name ends in ``.gz`` is decompressed.

    Raises :class:`TvmtuneError` for a file that is missing, empty, no log, of a newer format, or
    damaged anywhere but in a last line that was cut short.
    """
    reader = _Reader(path)
    log = reader.log
    for number, record, cut in _lines(path):
        if record is None:
            if cut and log.headers:
                log.torn = True
                break
            if cut:
                raise TvmtuneError(
                    f"{path} is not a tvmtune log, or was cut short before anything was measured: its "
                    "only line is no JSON record. Delete it, or choose another file."
                )
            where = "its first line" if not log.headers else f"line {number}"
            raise TvmtuneError(f"{path} is not a tvmtune log: {where} is not a JSON record.")
        try:
            reader.take(number, record)
        except (KeyError, TypeError) as error:
            raise TvmtuneError(
                f"{path} is not a tvmtune log: line {number} lacks what it needs ({error})."
            ) from None
        except ValueError as error:
            raise TvmtuneError(f"{path} is damaged: line {number}: {error}.") from None
    if not log.headers:
        raise TvmtuneError(f"{path} is empty: there is nothing in this log.")
    return log


class _Reader:
    """Fills a :class:`Log` line by line; older formats are packed as the present one is."""

    def __init__(self, path: Path) -> None:
        self.log = Log(path)
        self._identity = ""
        """Of the device that governs the next line."""
        self._designs: dict[str, Design] = {}
        self._packer = Packer()
        self._by_candidate: dict[tuple[str, str, str], Trial] = {}

    def take(self, number: int, record: JSON) -> None:
        """Add one line."""
        log, kind = self.log, record.get("type")
        if kind == "header":
            _check_header(log.path, record)
            self._identity = record["device"]["identity"]
            log.headers.append(record)
        elif not log.headers:
            raise TvmtuneError(f"{log.path} is not a tvmtune log: it does not begin with a header.")
        elif kind == "task":
            log.tasks[record["task"]] = record
        elif kind == "design":
            if record["design"] not in self._designs:
                self._designs[record["design"]] = Design.from_json(record)
        elif kind == "trial":
            trial = trial_from_json(record, self._trace(number, record))
            trial.device = trial.device or self._identity
            log.trials.append(trial)
            self._by_candidate[trial.device, trial.workload, trial.candidate] = trial
        elif kind == "verdict":
            self._judge(record)
        elif kind == "remeasure":
            again = self._subject(record)
            if again is not None:
                add_repeats(again, record["seconds"])

    def _trace(self, number: int, record: JSON) -> Any:
        if "design" not in record:
            return self._packer.pack(record["trace"]) or record["trace"]
        design = self._designs.get(record["design"])
        if design is None:
            raise TvmtuneError(
                f"{self.log.path} is not whole: the trial on line {number} needs the design "
                f"{record['design']}, which is on no line before it. Restore the file, or delete "
                "that line."
            )
        return unpack(record, design)

    def _subject(self, record: JSON) -> Trial | None:
        """The trial that a line is about."""
        return self._by_candidate.get((self._identity, record["workload"], record["candidate"]))

    def _judge(self, record: JSON) -> None:
        trial, verdict = self._subject(record), record["verified"]
        if trial is None or verdict is None:
            return
        trial.verified = bool(verdict)
        if not verdict:
            trial.error = {"stage": "wrong-answer", "message": record.get("message", "")}


def trial_to_json(trial: Trial, trace: PackedTrace | None = None) -> JSON:
    """The trial as a log line without its type; the governing header names the device.

    Without the packed ``trace`` the trial's own is written out, as format 1 has it.
    """
    record = {name: getattr(trial, name) for name in _TRIAL_FIELDS if name != "trace"}
    packed = trace.to_json() if trace else {"trace": trial.trace}
    return {**trial.extra, **record, **packed}


def trial_from_json(record: JSON, trace: Any) -> Trial:
    """Unknown fields are kept in ``extra``."""
    known = {name: record[name] for name in _TRIAL_FIELDS if name in record}
    extra = {name: value for name, value in record.items() if name not in _NOT_EXTRA}
    return Trial(**(known | {"trace": trace}), device=record.get("device", ""), extra=extra)


def refuse_compressed(path: Path) -> None:
    """Raise :class:`UsageError` for a name that says that the log is compressed."""
    if path.suffix == COMPRESSED:
        raise UsageError(
            f"cannot write to {path}: a compressed log can only be read. Choose a name without "
            f"{COMPRESSED}; gzip -d decompresses one that is to be continued."
        )


def _lines(path: Path) -> Iterator[tuple[int, JSON | None, bool]]:
    """(line number, record or None, whether it is a last line without its newline) for each line
    that is not blank."""
    try:
        with gzip.open(path) if path.suffix == COMPRESSED else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, _parse(line), not line.endswith(b"\n")
    except FileNotFoundError:
        raise TvmtuneError(f"there is no log at {path}.") from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise TvmtuneError(
            f"{path} is cut short, damaged or not compressed by gzip, which its name says: restore "
            f"the file, or name it without {COMPRESSED} if it is a plain log."
        ) from None
    except OSError as error:
        raise TvmtuneError(f"cannot read the log {path}: {error.strerror}.") from None


def _parse(line: bytes) -> JSON | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _is_json(data: bytes) -> bool:
    return _parse(data) is not None


def _check_header(path: Path, record: JSON) -> None:
    version: Any = record.get("format")
    parts = (record.get("device"), record.get("network"))
    if not isinstance(version, int) or not all(isinstance(part, dict) for part in parts):
        raise TvmtuneError(f"{path} is not a tvmtune log: its header is incomplete.")
    if version > FORMAT:
        raise TvmtuneError(
            f"{path} was written by a newer tvmtune (log format {version}; this one reads up to "
            f"{FORMAT}). Upgrade tvmtune."
        )
