"""A library's metadata: one JSON object, readable on any machine without loading the library.

``docs/deploy.md`` has the same list for users:

``format``
    Version of this layout; readers refuse later ones.
``tvmtune``, ``versions``
    The version of tvmtune that wrote it; the versions of the packages that compiled it.
``network``
    ``name``, ``structure_hash``, ``weights_hash``, ``source`` (enough to load it again) and
    ``layout``.
``inputs``, ``outputs``
    In the order of the call: ``name``, ``shape``, ``dtype``.
``state``
    Only for networks that keep tensors from run to run: for each the ``name`` of the input, that of
    the ``output`` and its ``initial`` values (:mod:`tvmtune.library.state`).
``device``, ``threads``
    The device that it was tuned for (:meth:`tvmtune.types.Device.to_json`), and its CPU threads.
``cpu_features``
    SIMD extensions that its code may use, named as in /proc/cpuinfo.
``tasks``
    ``total`` and, out of these, how many had a record under their exact key (``exact``), under their
    anchor key (``anchor``), one that comes with tvmtune (``shipped``) or none (``default``); ``list``
    has for each its ``name``, ``weight``, ``implementation``, ``record`` (one of the four words),
    ``latency`` (seconds per call, or null; always null for a shipped record),
    ``flop`` (per call), ``bytes`` (of the inputs and the output, per call) and ``kernel`` (its name in
    the library, to which packing its weights appends ``_prepacked``).
``estimate_ms``
    Sum of weight x latency in milliseconds, or null if a latency is unknown.
``check``
    Reference outputs (:mod:`tvmtune.bench.verify`), or null.
``modelled``
    Only for simulated accelerators: for each program its ``name``, its modeled ``seconds`` including
    the ``launch_seconds``, the packed ``function`` that simulates it, the kernels that pack and unpack
    for it (``borders``), and what the backend adds.
``created``, ``machine``
    Seconds since the epoch; the host that compiled it (:mod:`tvmtune.machine.fingerprint`).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from tvmtune import fields
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.library import STATIC, elf, state, trailer
from tvmtune.machine import board_identity, cpu_features
from tvmtune.types import TensorSpec, state_of

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

    from tvmtune.types import JSON, Device, Network

GRAPHS = "cuda-graphs"
"""The device parameter with which libraries launch their kernels by a CUDA graph."""
_LATEST = 1e11
"""Seconds since the epoch; in the year 5138."""
PACKED = "_prepacked"
"""What packing its weights appends to the name of a kernel."""
RECORD_KINDS = ("exact", "anchor", "shipped", "default")


def describe(
    network: Network,
    device: Device,
    *,
    layout: str,
    tasks: Sequence[JSON] = (),
    check: JSON | None = None,
    dtypes: Iterable[str] = (),
) -> JSON:
    """The metadata of a library of ``network`` for ``device``.

    ``tasks`` has one object for each task, with the keys of ``tasks.list`` above; ``dtypes`` are those
    of what its kernels read and write.
    """
    from tvmtune.machine import fingerprint, package_versions

    versions = package_versions.versions()
    counts = {kind: sum(task["record"] == kind for task in tasks) for kind in RECORD_KINDS}
    latencies = [task.get("latency") for task in tasks]
    estimate = None
    if latencies and None not in latencies:
        estimate = 1e3 * sum(task["weight"] * task["latency"] for task in tasks)
    kept = state.encode(state_of(network))
    return {
        "format": trailer.FORMAT,
        "tvmtune": versions["tvmtune"],
        "versions": versions,
        "network": {
            "name": network.name,
            "structure_hash": network.structure_hash,
            "weights_hash": network.weights_hash,
            "source": network.source,
            "layout": layout,
        },
        "inputs": [spec.to_json() for spec in network.inputs],
        "outputs": [spec.to_json() for spec in network.outputs],
        **({"state": kept} if kept else {}),
        "device": device.to_json(),
        "threads": device.threads,
        "cpu_features": cpu_features.required(device.target, dtypes),
        "tasks": {"total": len(tasks), **counts, "list": list(tasks)},
        "estimate_ms": estimate,
        "check": check,
        "created": time.time(),
        "machine": fingerprint.fingerprint(),
    }


def append(path: str | os.PathLike[str], metadata: JSON) -> None:
    """Append ``metadata`` to the library at ``path``, or replace what it has.

    Raises TvmtuneError if the file is not an ELF file or cannot be written; it is then unchanged.
    """
    trailer.append(path, metadata | {"format": trailer.FORMAT})


def read(path: str | os.PathLike[str]) -> JSON:
    """The metadata of the library at ``path``, without loading it.

    Raises UsageError if there is no such file, TvmtuneError if it is not a library of tvmtune, is
    truncated or damaged, or has a later format.
    """
    return read_trailer(path).data


def read_any(path: str | os.PathLike[str]) -> tuple[JSON, str]:
    """As :func:`read`, of static libraries as well; and the machine that the code is for."""
    if Path(path).suffix not in STATIC or not Path(path).is_file():
        return read(path), elf_machine(path)
    from tvmtune.library import static_library

    found = static_library.read_metadata(Path(path))
    if found is None:
        raise TvmtuneError(f"{path} is not a library of tvmtune")
    _checked(path, found[0])
    return found


def read_trailer(path: str | os.PathLike[str]) -> trailer.Trailer:
    """As :func:`read`, with what is known of the code."""
    if Path(path).suffix in STATIC and Path(path).is_file():
        raise UsageError(
            f"{path} is a static library: link it into a program (docs/deploy.md). Only tvmtune "
            "inspect reads it."
        )
    found = trailer.read(path)
    _checked(path, found.data)
    return found


def _checked(path: str | os.PathLike[str], data: JSON) -> None:
    """Raise :class:`TvmtuneError` if a field is missing or of another type."""
    try:
        _check(data)
    except (KeyError, ValueError) as exc:
        what = f"it lacks {exc}" if isinstance(exc, KeyError) else str(exc)
        raise TvmtuneError(
            f"the metadata of {path} is damaged: {what}. Compile it again."
        ) from None


def _check(data: JSON) -> None:
    """Raise KeyError or ValueError for a field that is missing or of another type."""
    text, integer, number = fields.TEXT, fields.INTEGER, fields.NUMBER
    some, thing = fields.LIST, fields.OBJECT
    fields.check(
        data,
        {
            **dict.fromkeys(("network", "device", "tasks", "versions"), thing),
            "inputs": some,
            "outputs": some,
            "threads": integer,
            "created": number,
        },
        {
            "cpu_features": some,
            "estimate_ms": fields.NUMBER_OR_NULL,
            "check": fields.OBJECT_OR_NULL,
            "machine": thing,
            "modelled": some,
            "state": some,
        },
    )
    hashes = {"structure_hash": text, "weights_hash": text}
    fields.check(data["network"], {"name": text, "layout": text, "source": thing} | hashes)
    fields.check(
        data["device"],
        {"backend": text, "target": thing, "attrs": thing},
        {"model": text, "runtime": text, "params": thing, "board": thing}
        | {"remote": fields.TEXT_OR_NULL},
    )
    board_identity.check(data["device"].get("board", {}))
    for entry in fields.each([*data["inputs"], *data["outputs"]], thing, "inputs"):
        fields.check(entry, {"name": text, "shape": some, "dtype": text})
        fields.each(entry["shape"], integer, "shape")
    for entry in fields.each(data.get("state", []), thing, "state"):
        fields.check(entry, {"name": text, "output": text, "initial": fields.TEXT_OR_NULL})
        for part, name in (("inputs", entry["name"]), ("outputs", entry["output"])):
            if name not in [each["name"] for each in data[part]]:
                raise ValueError(f"'state' has '{name}', which is none of the {part}")
    fields.each(data.get("cpu_features", []), text, "cpu_features")
    tasks = data["tasks"]
    counts = dict.fromkeys(("total", "exact", "anchor", "default"), integer)
    fields.check(tasks, counts | {"list": some}, {"shipped": integer})
    for row in fields.each(tasks["list"], thing, "list"):
        fields.check(
            row,
            {**dict.fromkeys(("name", "implementation", "record"), text), "weight": integer},
            {"latency": fields.NUMBER_OR_NULL, "flop": number, "kernel": text, "bytes": integer},
        )
        if row.get("latency"):
            fields.check(row, {"flop": number})
    if data.get("check"):
        fields.check(data["check"], {"seed": integer, "outputs": some})
    if not 0 <= data["created"] < _LATEST:
        raise ValueError("'created' is not a time")


def elf_machine(path: str | os.PathLike[str]) -> str:
    """The machine that the file has code for: x86_64, aarch64, arm, ...

    Raises TvmtuneError if it is not an ELF file or cannot be read.
    """
    try:
        header = elf.read_header(path)
    except OSError as exc:
        raise TvmtuneError(f"cannot read {path}: {exc.strerror or exc}") from exc
    if header is None:
        raise TvmtuneError(f"{path} is not an ELF library")
    return header.machine


def check_runnable(path: str | os.PathLike[str], metadata: JSON, board: JSON | None = None) -> None:
    """Raise TvmtuneError if this machine cannot run the library; nothing of it is loaded.

    ``board``: the description (:mod:`tvmtune.machine.describe`) of a board that is to run it instead;
    what the description lacks is not checked.
    """
    machine = elf_machine(path)
    model = metadata.get("device", {}).get("model") or "another device"
    wanted = metadata.get("cpu_features", ())
    if board is None:
        here, what, missing = elf.host_machine(), "this machine", cpu_features.missing(wanted)
    else:
        here, what = elf.spelling(board.get("machine", machine)), "the board"
        missing = cpu_features.missing_on_board(wanted, board)
    if machine != here:
        raise TvmtuneError(
            f"{path} holds code for {machine} and {what} is {here}: "
            f"it was compiled for {model}. Run it there, or compile it for {what}."
        )
    where = runtime(metadata)
    if board and where != "cpu" and not any(g["kind"] == where for g in board.get("gpus", ())):
        from tvmtune.remote.client.boards import no_device

        what = no_device(where, metadata["device"]["backend"])
        raise TvmtuneError(f"{path} is for {model}, and the board has {what}")
    if missing:
        whose = "this CPU" if board is None else "the board's CPU"
        raise TvmtuneError(
            f"{path} uses {', '.join(missing)}, which {whose} lacks: it was compiled for {model}. "
            f"Compile it for {what}."
        )


def runtime(metadata: JSON) -> str:
    """TVM's name of the device that the kernels run on: ``cpu``, ``opencl``, ``cuda``."""
    return str(metadata.get("device", {}).get("runtime", "cpu"))


def uses_cuda_graphs(metadata: JSON) -> bool:
    """Whether the library launches its kernels by a CUDA graph."""
    return bool(metadata.get("device", {}).get("params", {}).get(GRAPHS))


def specs(entries: Iterable[JSON]) -> tuple[TensorSpec, ...]:
    """``inputs`` or ``outputs`` of the metadata as specs."""
    return tuple(map(TensorSpec.from_json, entries))
