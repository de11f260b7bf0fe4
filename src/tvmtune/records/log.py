"""The log: an append-only file of JSON lines. ``docs/log-format.md`` documents every field.

A header line governs the lines after it until the next header, so concatenated logs are valid. Each
line is on disk before it is reported. The reader ignores a torn last line, as a power cut or
``kill -9`` leaves it; the next writer removes it.
"""

from __future__ import annotations

import errno
import json
import os
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tvmtune import atomic_write, fields
from tvmtune.bounded import Allowance
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.records import foreign, lines, schema
from tvmtune.records.designs import Design, Packer
from tvmtune.records.log_file import LogFile, LogLost
from tvmtune.records.schema import FORMAT, Line
from tvmtune.types import JSON, Trial

__all__ = ["FORMAT", "Log", "LogLost", "LogWriter", "is_empty", "read_log", "refuse_compressed"]

_FLOOR, _RATIO = 1 << 26, 200
"""The traces in a log may unpack to this many bytes, plus these times their lines (usually 10)."""


@dataclass
class Log:
    """The content of a log; verdicts and second measurements are merged into their trials."""

    path: Path
    headers: list[JSON] = field(default_factory=list)
    tasks: dict[str, JSON] = field(default_factory=dict)
    """The last task line of each key."""
    trials: list[Trial] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    """For each header, the number of trials before it."""
    drift: list[schema.Reading] = field(default_factory=list)
    """How fast the machine was, in the order in which it was read."""
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
        """As messages call it."""
        self._packer = Packer()
        self._written_designs: set[str] = set()
        """Keys of the designs that this writer has written."""
        try:
            self._file: LogFile | None = LogFile(path)
        except OSError as error:
            raise TvmtuneError(
                f"cannot write the log {path}: {error.strerror}. Choose another location with --log."
            ) from None
        self._begun = False
        """Whether it has written anything; until then the file is unchanged."""
        self._lost: LogLost | None = None
        atomic_write.sync_directory(path.parent)

    def write(self, line: Line) -> None:
        """Write a line of :mod:`tvmtune.records.schema` and wait until it is on disk."""
        self.append(line.kind, line.fields)

    def append(self, kind: str, record: JSON) -> None:
        """Write one line of any kind and wait until it is on disk.

        Raises :class:`LogLost` if the log is no longer where it was; it then says where the line, like
        all before it, is now.
        """
        self._append(kind, record)
        self.check()

    def _append(self, kind: str, record: JSON) -> None:
        assert self._file is not None
        if self._lost:
            raise self._lost
        line = json.dumps({"type": kind, **record}, separators=(",", ":")) + "\n"
        data = line.encode()
        fd = self._file.fd
        if not self._begun:
            self._cut_torn_line(fd)
            self._begun = True
        start = os.fstat(fd).st_size
        try:
            written = os.write(fd, data)
            if written != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fdatasync(fd)
        except OSError as error:
            # Never leave half a line: earlier measurements must stay readable.
            os.ftruncate(fd, start)
            raise TvmtuneError(
                f"cannot write to the log {self.path}: {error.strerror}. Everything before is kept; "
                "free some space and run the same command again to continue."
            ) from None

    def check(self) -> None:
        """Raise :class:`LogLost` if the log is no longer where it was, and says where it is."""
        assert self._file is not None
        if self._lost is None and self._begun and self._file.is_lost():
            self._lost = self._file.lost()
        if self._lost:
            raise self._lost

    def trial(self, trial: Trial) -> Trial:
        """Write a trial, after its design if that is new; returns it with its trace packed.

        One with impossible times, from a board whose clock is broken, is written as failed.
        """
        if not fields.are_times(trial.seconds):
            message = f"it reported impossible times: {trial.seconds}"[:300]
            trial = trial.evolve(seconds=[], error={"stage": "run", "message": message})
        packed = self._packer.pack(trial.trace)
        if packed and packed.design.key not in self._written_designs:
            design = schema.design(packed.design)
            # Without a check: if the log is lost, the trial must be saved, too.
            self._append(design.kind, design.fields)
            self._written_designs.add(packed.design.key)
        self.write(schema.trial(trial, packed))
        return trial.evolve(trace=packed) if packed else trial

    def close(self) -> None:
        """Release the locks. Warns if the log has been lost since the last line."""
        if self._file is None:
            return
        try:
            if self._lost is None:
                self.check()
        except LogLost as error:
            warnings.warn(str(error), stacklevel=2)
        finally:
            self._file.close()
            self._file = None

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _cut_torn_line(self, fd: int) -> None:
        size = os.fstat(fd).st_size
        position = size
        while position > 0:
            step = min(65536, position)
            chunk = os.pread(fd, step, position - step)
            newline = chunk.rfind(b"\n")
            if newline >= 0:
                position = position - step + newline + 1
                break
            position -= step
        torn = os.pread(fd, size - position, position)
        if torn and lines.parse(torn) is not None:
            os.write(fd, b"\n")  # complete except for its newline, as some editors leave it
        elif torn and (position > 0 or lines.begins_log(torn)):
            os.ftruncate(fd, position)
        # Any other file of one torn line may not be a log at all: the reader decides, not the writer.


def is_empty(path: Path) -> bool:
    """Whether there is no log at ``path``, or one without a single complete line."""
    try:
        with path.open("rb") as file:
            start = file.read(lines.LONGEST)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return not start or (b"\n" not in start and lines.begins_log(start) and not lines.parse(start))


def read_log(path: Path) -> Log:
    """Read a log of this or an older format; a file named ``*.gz`` or ``*.xz`` is decompressed.

    Trials with impossible times are left out, with a warning. Raises :class:`TvmtuneError` for a file
    that is missing, empty, not a log, of a newer format, or damaged anywhere but in an incomplete last
    line.
    """
    reader = _Reader(path)
    log = reader.log
    for number, line in lines.read(path):
        record = lines.parse(line)
        if record is None:
            incomplete = not line.endswith(b"\n")
            if incomplete and (log.headers or lines.begins_log(line)):
                log.torn = True
                break
            if incomplete:
                raise TvmtuneError(
                    f"{path} is not a tvmtune log, or was cut short before anything was measured: its "
                    "only line is not a JSON record. Delete it, or choose another file."
                )
            where = "its first line" if not log.headers else f"line {number}"
            raise TvmtuneError(f"{path} is not a tvmtune log: {where} is not a JSON record")
        try:
            reader.take(number, record, len(line))
        except (KeyError, TypeError) as error:
            raise TvmtuneError(
                f"{path} is not a tvmtune log: line {number} lacks a required field ({error})"
            ) from None
        except ValueError as error:
            raise TvmtuneError(f"{path} is damaged: line {number}: {error}") from None
    if not log.headers:
        raise TvmtuneError(f"{path} is empty: there is nothing in this log")
    reader.finish()
    return log


_Key = tuple[str, str, str]
"""Identity of the device, workload, candidate."""


class _Reader:
    """Fills a :class:`Log` line by line; traces of older formats are packed, too."""

    def __init__(self, path: Path) -> None:
        self.log = Log(path)
        self._identity = ""
        """Of the device that governs the next line."""
        self._identities: set[str] = set()
        self._designs: dict[str, Design] = {}
        self._packer = Packer()
        self._allowance = Allowance(_FLOOR, _RATIO)
        self._places: dict[_Key, int] = {}
        """Where the latest trial of a candidate is in ``log.trials``."""
        self._verdicts: dict[_Key, schema.Verdict] = {}
        self._repeats: dict[int, list[float]] = {}
        """Seconds of second measurements, by place of the trial."""
        self._impossible: list[int] = []
        """Lines with times that no clock can measure."""

    def take(self, number: int, record: JSON, size: int) -> None:
        """Add one line of ``size`` bytes."""
        log, kind = self.log, record.get("type")
        self._allowance.earn(size)
        if kind == schema.HEADER:
            try:
                schema.check_header(record)
            except TvmtuneError as error:
                raise TvmtuneError(f"{log.path} {error}") from None
            self._identity = record["device"]["identity"]
            self._identities.add(self._identity)
            log.headers.append(record)
            log.starts.append(len(log.trials))
        elif not log.headers:
            if other := foreign.tool(record):
                raise TvmtuneError(f"{log.path} {foreign.refusal(other)}")
            raise TvmtuneError(f"{log.path} is not a tvmtune log: it does not begin with a header")
        elif kind == schema.TASK:
            schema.check_task(record)
            log.tasks[record["task"]] = record
        elif kind == schema.DESIGN:
            design = schema.parse_design(record, self._allowance)
            self._designs.setdefault(design.key, design)
        elif kind == schema.TRIAL:
            self._take_trial(number, record)
        elif kind == schema.VERDICT:
            verdict = schema.parse_verdict(record)
            key = self._key(verdict)
            if verdict.verified is not None and not self._is_wrong(key):
                self._verdicts[key] = verdict
        elif kind == schema.REMEASURE:
            again = schema.parse_remeasurement(record)
            place = self._places.get(self._key(again))
            if not fields.are_times(again.seconds):
                self._impossible.append(number)
            elif place is not None:
                self._repeats.setdefault(place, []).extend(again.seconds)
        elif kind == schema.DRIFT:
            reading = schema.parse_drift(record, len(log.headers) - 1)
            if reading is not None:
                log.drift.append(reading)

    def finish(self) -> None:
        """Merge what is known of the trials into them.

        A verdict is about a candidate, so it holds for all of its copies in a concatenated log,
        whether before or after it. One that found it wrong is final.
        """
        trials = self.log.trials
        for place, seconds in self._repeats.items():
            trials[place] = trials[place].with_repeats(seconds)
        if self._verdicts:
            for place, trial in enumerate(trials):
                verdict = self._verdicts.get((trial.device, trial.workload, trial.candidate))
                if verdict is not None and trial.error is None:
                    trials[place] = trial.with_verdict(bool(verdict.verified), verdict.message)
        if self._impossible:
            more = len(self._impossible) - 1
            others = f", nor on {more} more lines" if more else ""
            warnings.warn(
                f"{self.log.path}: the times on line {self._impossible[0]} are not positive numbers"
                f"{others}: ignored",
                stacklevel=3,
            )

    def _take_trial(self, number: int, record: JSON) -> None:
        trial = schema.parse_trial(record, self._trace(number, record), self._identity)
        if not fields.are_times(trial.seconds):
            self._impossible.append(number)
            return
        if trial.device not in self._identities:
            raise ValueError(f"no header describes the device {trial.device}")
        self._places[trial.device, trial.workload, trial.candidate] = len(self.log.trials)
        self.log.trials.append(trial)

    def _trace(self, number: int, record: JSON) -> Any:
        if "design" not in record:
            return self._packer.pack(record["trace"]) or record["trace"]
        schema.check_packed_trace(record)
        design = self._designs.get(record["design"])
        if design is None:
            raise TvmtuneError(
                f"{self.log.path} is incomplete: the trial on line {number} needs the design "
                f"{record['design'][:100]}, which no earlier line contains. Restore the file, or "
                "delete that line."
            )
        return schema.parse_packed_trace(record, design, self._allowance)

    def _is_wrong(self, key: _Key) -> bool:
        verdict = self._verdicts.get(key)
        return verdict is not None and verdict.verified is False

    def _key(self, about: schema.Verdict | schema.Remeasurement) -> _Key:
        return self._identity, about.workload, about.candidate


def refuse_compressed(path: Path) -> None:
    """Raise :class:`UsageError` if the name says that the log is compressed."""
    if path.suffix in lines.COMPRESSED:
        raise UsageError(
            f"cannot write to {path}: a compressed log can only be read. Choose a name without "
            f"{path.suffix}; {lines.COMPRESSED[path.suffix]} -d decompresses a log that you want to "
            "continue."
        )
