"""What a tracker knows of its boards, and what each of them says of itself."""

from __future__ import annotations

import contextlib
import json
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from tvmtune import system
from tvmtune.errors import TvmtuneError
from tvmtune.farm.protocol import Address, Tracker, Unreachable, find, is_alive
from tvmtune.workers import Workers

TELLING = (
    *("avx2", "avx512f", "avx512_vnni", "amx_int8"),
    *("neon", "asimd", "asimdhp", "asimddp", "i8mm", "sve"),
)
"""Extensions that are worth a place in a table, under Linux's names."""
PROBE = 15.0
"""Seconds that a probe may take, the wait for a free board aside."""
HOLD = 1.0
"""Seconds that a probe keeps its board, so that another probe gets another one."""
PROBING = "tvmtune.farm.devices:probe"
TRIPS = 5
"""Of which the quickest counts."""
MOST = 16
"""Probes at once."""
SILENT = "it does not answer"


@dataclass(frozen=True)
class Queue:
    """The boards of one key: how many there are, are free, and are waited for."""

    key: str
    total: int
    free: int
    pending: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Probe:
    """The round trip to one board."""

    key: str
    address: str
    reachable: bool
    message: str = ""
    """Why it is not, or what is wrong with it."""
    seconds: float | None = None
    """Of the trip there and back, the session open."""
    described: dict[str, Any] | None = None
    """What it says of itself; None where TVM's own server serves it."""

    @property
    def usable(self) -> bool:
        return self.reachable and not self.message

    @property
    def features(self) -> list[str]:
        """The extensions that matter to kernels."""
        told = set((self.described or {}).get("features", ()))
        return [name for name in TELLING if name in told]

    @property
    def gpus(self) -> list[str]:
        """Their names, where TVM's runtime on the board can use them."""
        found = (self.described or {}).get("gpus", ())
        return [f"{gpu.get('device_name') or '?'} ({gpu['kind']})" for gpu in found]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def queues(tracker: Tracker) -> list[Queue]:
    """A row for each key that has boards or is waited for, by name."""
    summary = tracker.summary()
    totals = servers(summary)
    rows = []
    for key in sorted({*totals, *summary.get("queue_info", {})}):
        info = summary.get("queue_info", {}).get(key, {})
        free, pending = int(info.get("free", 0)), int(info.get("pending", 0))
        total = len(totals.get(key, ()))
        if total or pending:
            rows.append(Queue(key, total, free, pending))
    return rows


def servers(summary: dict[str, Any], mark: str = "") -> dict[str, list[Address]]:
    """The boards by key; those alone whose entry has ``mark``, if it is given."""
    found: dict[str, list[Address]] = {}
    for entry in summary.get("server_info", ()):
        # whoever registers may say anything, an infinite port, too
        with contextlib.suppress(ValueError, TypeError, LookupError, OverflowError):
            key = str(entry.get("key", "")).partition(":")[2]
            host, port = entry["addr"]
            if not mark or mark in entry:
                found.setdefault(key, []).append(Address(str(host), int(port)))
    return found


def check_known(tracker: Tracker, key: str) -> None:
    """Raise :class:`Unreachable` if no board is registered under ``key``, naming those that are."""
    rows = queues(tracker)
    known = [row.key for row in rows if row.total]
    if key in known:
        return
    others = f"it has {', '.join(known)}" if known else "it has none at all"
    raise Unreachable(
        f"the tracker at {tracker.address} has no board '{key}': {others}. On the board, run "
        f"tvmtune serve --key {key} --tracker HOST:PORT."
    )


def ask(remote: str, wait: float = PROBE) -> dict[str, Any] | None:
    """What one of the boards of ``KEY`` or ``KEY@HOST:PORT`` says of itself; None where TVM's own
    server serves it. Raises :class:`TvmtuneError` if none answers within ``wait`` seconds."""
    key, tracker = find(remote)
    with Tracker(tracker) as line:
        check_known(line, key)
    with Workers(1) as workers:
        call = (key, str(tracker), wait, 0.0)
        outcome = workers.map(PROBING, [call], deadline=wait + PROBE, stage="run")[0]
    if not outcome.ok:
        raise Unreachable(f"the board '{key}' cannot be asked what it is: {outcome.message}")
    described: dict[str, Any] | None = outcome.value["described"]
    return described


def ask_if_there(remote: str) -> dict[str, Any] | None:
    """As :func:`ask`, with a warning and None where no board answers."""
    try:
        return ask(remote)
    except TvmtuneError as error:
        warnings.warn(f"the board's parameters are not read: {error}", stacklevel=2)
        return None


def no_device(runtime: str, backend: str) -> str:
    """What to say of a board that lacks a backend's kind of device, by TVM's name for that."""
    return (
        f"no {runtime} device that TVM can use: there, install its driver, and serve it with tvmtune "
        f"serve --target {backend}"
    )


def version_trouble(described: dict[str, Any] | None) -> str:
    """What keeps a board's TVM from working with this one; empty if nothing does."""
    if described is None:
        return ""
    theirs = described.get("versions", {}).get("apache-tvm")
    ours = system.version_of("apache-tvm")
    if theirs and ours and theirs != ours:
        return (
            f"the board has apache-tvm {theirs}, this machine {ours}: libraries would not fit. On "
            f"the board, run pip install apache-tvm=={ours}"
        )
    return ""


def probe_all(tracker: Address, rows: Sequence[Queue], wait: float) -> list[Probe]:
    """One probe for each board. The tracker chooses which board it lends, so the boards of a key are
    borrowed all at once, each by a process of its own that is killed if the board does not answer."""
    wanted = [row.key for row in rows for _ in range(row.total)]
    if not wanted:
        return []
    gate = min(MOST, len(wanted))
    limit = wait + HOLD + PROBE
    with Workers(gate) as workers:
        calls = [(key, str(tracker), wait, HOLD) for key in wanted]
        outcomes = workers.map(PROBING, calls, deadline=limit, stage="run")
    found = []
    failed: dict[str, list[str]] = {}
    for key, outcome in zip(wanted, outcomes, strict=True):
        if outcome.ok:
            message = version_trouble(outcome.value["described"])
            found.append(Probe(key=key, reachable=True, message=message, **outcome.value))
        else:
            why = SILENT if outcome.stage == "timeout" else outcome.message
            failed.setdefault(key, []).append(why)
    if failed:
        listed: dict[str, list[Address]] = {}
        with contextlib.suppress(Unreachable), Tracker(tracker) as line:
            listed = servers(line.summary())
        answered = {probe.address for probe in found}
        for key, reasons in failed.items():
            left = [each for each in listed.get(key, ()) if str(each) not in answered]
            found += [Probe(key, where, False, why) for where, why in _matched(left, reasons)]
    return sorted(found, key=lambda each: (each.key, each.address))


def _matched(boards: Sequence[Address], reasons: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Boards that failed, each with a reason: the tracker chose them, and told only of those that
    answered. Those that do not even greet are the silent ones; among others it is a guess."""
    with ThreadPoolExecutor(MOST) as pool:
        alive = dict(zip(boards, pool.map(is_alive, boards), strict=True))
    places = [str(board) for board in sorted(boards, key=lambda each: (alive[each], str(each)))]
    reasons = sorted(reasons, key=lambda why: why != SILENT)
    return zip(places + ["-"] * (len(reasons) - len(places)), reasons, strict=False)


def probe(key: str, tracker: str, wait: float, hold: float) -> dict[str, Any]:
    """Borrow a board and have it say what it is; runs in a process that may be killed.

    Returns ``address``, ``seconds`` of a round trip, and ``described`` or None.
    """
    from tvmtune.farm import lending

    with lending.borrow(Address.parse(tracker), key, wait) as board:
        # each of TVM's servers has this one, and it does next to nothing
        path = board.function("tvm.rpc.server.workpath")
        trips = []
        for _ in range(TRIPS):
            began = time.perf_counter()
            if path is not None:
                path("")
            trips.append(time.perf_counter() - began)
        describe = board.function("tvmtune.board.describe")
        found = None if describe is None else json.loads(str(describe()))
        time.sleep(hold)  # or the tracker would lend the same board to the next probe
        return {
            "address": str(board.address),
            "seconds": min(trips),
            "described": found,
        }
