"""Boards as their tracker lists them, and their descriptions of themselves."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from tvmtune.errors import TvmtuneError
from tvmtune.machine import package_versions
from tvmtune.remote.client.board_client import board_session
from tvmtune.remote.protocol import Address, Tracker, Unreachable, is_alive, split_remote
from tvmtune.workers import Workers

LISTED_FEATURES = (
    *("avx2", "avx512f", "avx512_vnni", "amx_int8"),
    *("neon", "asimd", "asimdhp", "asimddp", "i8mm", "sve"),
)
"""CPU features shown in tables, by their Linux names."""
PROBE_TIMEOUT = 15.0
"""Seconds that a probe may take, beside the wait for a free board."""
PROBE_HOLD = 1.0
"""Seconds that a probe keeps its board, so that other probes get other boards."""
PROBING = "tvmtune.remote.client.boards:probe"
ROUND_TRIPS = 5
"""Round trips per probe; the fastest counts."""
MAX_PROBES = 16
"""Concurrent probes."""
SILENT = "it does not answer"


@dataclass(frozen=True)
class KeySummary:
    """The boards of one key: all, free ones, and pending requests."""

    key: str
    total: int
    free: int
    pending: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Probe:
    """The result of probing one board."""

    key: str
    address: str
    reachable: bool
    message: str = ""
    """Why it is not reachable or not usable."""
    seconds: float | None = None
    """Round trip within an open session."""
    described: dict[str, Any] | None = None
    """The board's description of itself; None if TVM's own server serves it."""

    @property
    def usable(self) -> bool:
        return self.reachable and not self.message

    @property
    def features(self) -> list[str]:
        """The CPU features that matter to kernels."""
        features = set((self.described or {}).get("features", ()))
        return [name for name in LISTED_FEATURES if name in features]

    @property
    def gpus(self) -> list[str]:
        """Names of the GPUs that TVM's runtime on the board can use."""
        gpus = (self.described or {}).get("gpus", ())
        return [f"{gpu.get('device_name') or '?'} ({gpu['kind']})" for gpu in gpus]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def queues(tracker: Tracker) -> list[KeySummary]:
    """A row for each key that has boards or pending requests, sorted by key."""
    summary = tracker.summary()
    totals = servers(summary)
    rows = []
    for key in sorted({*totals, *summary.get("queue_info", {})}):
        info = summary.get("queue_info", {}).get(key, {})
        free, pending = int(info.get("free", 0)), int(info.get("pending", 0))
        total = len(totals.get(key, ()))
        if total or pending:
            rows.append(KeySummary(key, total, free, pending))
    return rows


def servers(summary: dict[str, Any], mark: str = "") -> dict[str, list[Address]]:
    """The boards by key; with ``mark``, only those whose entry has it."""
    boards: dict[str, list[Address]] = {}
    for entry in summary.get("server_info", ()):
        # Anyone may register anything, such as an infinite port.
        with contextlib.suppress(ValueError, TypeError, LookupError, OverflowError, AttributeError):
            key = str(entry.get("key", "")).partition(":")[2]
            host, port = entry["addr"]
            if not mark or mark in entry:
                boards.setdefault(key, []).append(Address(str(host), int(port)))
    return boards


def check_known(tracker: Tracker, key: str) -> None:
    """Raise :class:`Unreachable` if no board is registered under ``key``; the message names known
    keys."""
    rows = queues(tracker)
    known = [row.key for row in rows if row.total]
    if key in known:
        return
    others = f"it has {', '.join(known)}" if known else "it has none"
    raise Unreachable(
        f"the tracker at {tracker.address} has no board '{key}': {others}. On the board, run "
        f"tvmtune serve --key {key} --tracker HOST:PORT."
    )


@contextlib.contextmanager
def asked() -> Iterator[list[dict[str, Any]]]:
    """Collect the descriptions that :func:`ask` receives meanwhile. Backends ask boards in their
    hooks; whoever calls the hooks wants to know which board a device was made for."""
    answers: list[dict[str, Any]] = []
    _answers.append(answers)
    try:
        yield answers
    finally:
        _answers.remove(answers)


_answers: list[list[dict[str, Any]]] = []


def ask(remote: str, wait: float = PROBE_TIMEOUT) -> dict[str, Any] | None:
    """The description of one of the boards of ``KEY`` or ``KEY@HOST:PORT``; None if TVM's own server
    serves it. Raises :class:`TvmtuneError` if none answers within ``wait`` seconds."""
    key, tracker = split_remote(remote)
    with Tracker(tracker) as connection:
        check_known(connection, key)
    with Workers(1) as workers:
        call = (key, str(tracker), wait, 0.0)
        outcome = workers.map(PROBING, [call], deadline=wait + PROBE_TIMEOUT, stage="run")[0]
    if not outcome.ok:
        raise Unreachable(f"the board '{key}' does not describe itself: {outcome.message}")
    described: dict[str, Any] | None = outcome.value["described"]
    if described is not None:
        for answers in _answers:
            answers.append(described)
    return described


def ask_if_there(remote: str) -> dict[str, Any] | None:
    """As :func:`ask`; warns and returns None if no board answers."""
    try:
        return ask(remote)
    except TvmtuneError as error:
        warnings.warn(f"cannot read the board's parameters: {error}", stacklevel=2)
        return None


def no_device(runtime: str, backend: str) -> str:
    """Error text for a board without a device of ``runtime`` (TVM's name), which ``backend`` needs."""
    return (
        f"no {runtime} device that TVM can use: install its driver there, and serve the board with "
        f"tvmtune serve --target {backend}"
    )


def version_trouble(described: dict[str, Any] | None) -> str:
    """Why a board's TVM does not work with this machine's; empty if it does."""
    if described is None:
        return ""
    theirs = described.get("versions", {}).get("apache-tvm")
    ours = package_versions.version_of("apache-tvm")
    if theirs and ours and theirs != ours:
        return (
            f"the board has apache-tvm {theirs}, this machine {ours}: libraries would not fit. On "
            f"the board, run pip install apache-tvm=={ours}"
        )
    return ""


def probe_all(tracker: Address, rows: Sequence[KeySummary], wait: float) -> list[Probe]:
    """Probe each board. The tracker chooses which board it grants, so all boards of a key are leased at
    once, each by a process that is killed if the board does not answer."""
    wanted = [row.key for row in rows for _ in range(row.total)]
    if not wanted:
        return []
    limit = wait + PROBE_HOLD + PROBE_TIMEOUT
    with Workers(min(MAX_PROBES, len(wanted))) as workers:
        calls = [(key, str(tracker), wait, PROBE_HOLD) for key in wanted]
        outcomes = workers.map(PROBING, calls, deadline=limit, stage="run")
    probes = []
    failed: dict[str, list[str]] = {}
    for key, outcome in zip(wanted, outcomes, strict=True):
        if outcome.ok:
            message = version_trouble(outcome.value["described"])
            probes.append(Probe(key=key, reachable=True, message=message, **outcome.value))
        else:
            reason = SILENT if outcome.stage == "timeout" else outcome.message
            failed.setdefault(key, []).append(reason)
    if failed:
        listed: dict[str, list[Address]] = {}
        with contextlib.suppress(Unreachable), Tracker(tracker) as connection:
            listed = servers(connection.summary())
        answered = {probe.address for probe in probes}
        for key, reasons in failed.items():
            left = [each for each in listed.get(key, ()) if str(each) not in answered]
            probes += [Probe(key, where, False, why) for where, why in _matched(left, reasons)]
    return sorted(probes, key=lambda each: (each.key, each.address))


def _matched(boards: Sequence[Address], reasons: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Pair failed boards with reasons. The tracker chose the boards, and only those that answered
    gave their address. Boards that do not even greet get the silent failures; the rest is a guess."""
    with ThreadPoolExecutor(MAX_PROBES) as pool:
        alive = dict(zip(boards, pool.map(is_alive, boards), strict=True))
    places = [str(board) for board in sorted(boards, key=lambda each: (alive[each], str(each)))]
    reasons = sorted(reasons, key=lambda reason: reason != SILENT)
    return zip(places + ["-"] * (len(reasons) - len(places)), reasons, strict=False)


def probe(key: str, tracker: str, wait: float, hold: float) -> dict[str, Any]:
    """Lease a board and ask for its description; runs in a process that may be killed.

    Returns ``address``, ``seconds`` of a round trip, and ``described`` or None.
    """
    with board_session(Address.parse(tracker), key, wait) as board:
        # every TVM server has this function, and it does next to nothing
        path = board.function("tvm.rpc.server.workpath")
        trips = []
        for _ in range(ROUND_TRIPS):
            began = time.perf_counter()
            if path is not None:
                path("")
            trips.append(time.perf_counter() - began)
        described = board.describe()
        time.sleep(hold)  # or the tracker would grant the same board to the next probe
        return {
            "address": str(board.address),
            "seconds": min(trips),
            "described": described,
        }
