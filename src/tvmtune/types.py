"""The nouns of the flow: what one stage hands to the next.

Nothing here imports TVM at run time, so that the command line can name these types without paying
for the import.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    import tvm
    from tvm.s_tir import Schedule
    from tvm.s_tir.meta_schedule.space_generator import SpaceGenerator

JSON = dict[str, Any]
Stage = Literal["space", "build", "timeout", "run", "crash", "wrong-answer"]
"""Where a trial failed. ``space``: the trace could not be applied; ``timeout``: build or run passed
its deadline; ``crash``: the worker process died."""


@dataclass(frozen=True)
class TensorSpec:
    """Name, static shape and NumPy dtype name of one input or output."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name}: {'x'.join(map(str, self.shape)) or 'scalar'} {self.dtype}"


class Network(Protocol):
    """A network with static shapes, from the zoo or from a file."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    source: JSON
    """Enough to load it again: ``{"zoo": "resnet-18", "batch": 1}`` or
    ``{"file": path, "batch": ..., "shapes": {...}, "arguments": {...}}``."""
    structure_hash: str
    """Hex digest over operators, attributes and shapes; independent of the weights' values."""
    weights_hash: str

    def to_relax(self) -> tvm.IRModule:
        """Import into Relax, weights as constants, one function ``main``."""

    def to_onnx(self) -> bytes | None:
        """The serialised ONNX model for peers that read it, or None where there is no such form."""

    def reference(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Run it in an implementation that is not TVM, output by output."""


@runtime_checkable
class Templated(Protocol):
    """A network that brings schedule templates of its author."""

    def template(self, keys: Sequence[str]) -> Callable[[Schedule], None] | None:
        """The one for a target of these names, the most specific first; it samples knobs."""


@dataclass(frozen=True)
class Device:
    """What is tuned for. Two devices whose :meth:`identity` differs are never ranked together."""

    backend: str
    target: JSON
    """The TVM target as a dict, host included where there is one."""
    threads: int
    """CPU threads used for measuring, compiling for and benching alike."""
    attrs: JSON = field(default_factory=dict)
    """The backend's own attributes, which TVM would reject as unknown keys."""
    params: JSON = field(default_factory=dict)
    """Hardware parameters, read from the device or given by the user."""
    remote: str | None = None
    """Key of the boards that it is measured on, ``KEY@HOST:PORT`` where their tracker is not the
    default one; None for this machine."""
    runtime: str = "cpu"
    """TVM's name of the device type that kernels run on."""
    model: str = ""
    """Human-readable name of the hardware, e.g. the CPU's."""
    needs_init: bool = False
    """Whether the backend's ``serve_init`` comes before a library is loaded, for packed functions that
    it calls; with what does not run on the CPU it does in any case."""

    absent: bool = False
    """Whether this machine lacks the accelerator: kernels for it are compiled here, and not run. Of a
    CPU, the triple tells."""

    def identity(self) -> str:
        """Hex digest of everything that makes measured times comparable."""
        return digest(
            [self.backend, self.target, self.attrs, self.threads, self.model, self.key or ""]
        )

    @property
    def mtriple(self) -> str:
        """LLVM's triple of the system whose CPU calls the kernels; empty for this machine's."""
        host = self.target.get("host", self.target)
        return str(host.get("mtriple", "")) if isinstance(host, dict) else ""

    @property
    def key(self) -> str | None:
        """What its boards are called, whichever tracker knows them."""
        return self.remote.partition("@")[0] if self.remote else None

    def to_json(self) -> JSON:
        data = asdict(self) | {"identity": self.identity()}
        del data["absent"]  # true of the machine that compiles, not of the device
        return data

    @staticmethod
    def from_json(data: JSON) -> Device:
        names = Device.__dataclass_fields__
        return Device(**{k: v for k, v in data.items() if k in names})


class Space(Protocol):
    """The schedules that an implementation may take."""

    size: int | None
    """Number of points, where it is known."""

    def generator(self) -> SpaceGenerator:
        """The space as MetaSchedule's search wants it."""

    def default(self, mod: tvm.IRModule, target: tvm.target.Target) -> Schedule:
        """A sound schedule without any measurement: the first trial, and what compile falls back to."""


@dataclass
class Implementation:
    """One way to compute a task (direct, winograd, ...): a workload and the space of its schedules."""

    name: str
    workload_key: str
    mod: tvm.IRModule
    """One PrimFunc, ``main``."""
    space: Space
    exact: bool = True
    """False if it rounds differently from the direct algorithm (Winograd does)."""


DEFAULT, TRANSFER = "default", "transfer"
"""In the place of a tuner's name: default schedules, and records that another log was found to hold."""


@dataclass
class Task:
    """A distinct fused subgraph of the network."""

    index: int
    name: str
    key: str
    """Exact key: the structure of the direct workload, TVM's version, the space's version."""
    anchor_key: str
    """Operator, shapes, dtypes and layout of the anchor block; survives another fusion around it."""
    weight: int
    """How often it appears in the network."""
    flop: float
    args: tuple[TensorSpec, ...]
    """Inputs and then the output of the fused function."""
    implementations: list[Implementation]
    sites: tuple[int, ...] = ()
    """Which calls of the prepared program it stands for, in program order."""

    def implementation(self, name: str) -> Implementation:
        return next(i for i in self.implementations if i.name == name)


@dataclass
class Prepared:
    """A network made ready for a device: laid out, and not yet cut into kernels."""

    network: Network
    device: Device
    layout: str
    graph: tvm.IRModule
    """Relax operators, constants folded, before legalisation."""
    extra: JSON = field(default_factory=dict)
    """A backend's own findings on the way, which its later hooks read; the core does not."""


@dataclass(frozen=True)
class BuilderSpec:
    """How a candidate becomes an artifact. The core owns processes, deadlines and recycling."""

    build: str
    """``"package.module:function"``, called in a build worker as
    ``function(mod, target, options, directory) -> path``. Where ``options["shipped"]`` is true the
    kernel has to be as it will be in the library; else the function may do without what costs time
    and changes no kernel's speed."""
    init: str | None = None
    """``"package.module:function"`` called once in each worker with ``options``."""
    options: JSON = field(default_factory=dict)
    reference: Reference | None = None
    """How the unscheduled workloads are built that candidates are checked against, where it is not as
    candidates are: for this machine, where candidates run on a board."""

    @dataclass(frozen=True)
    class Reference:
        """TVM target, and options that take the place of the builder's."""

        target: JSON
        options: JSON = field(default_factory=dict)


@dataclass(frozen=True)
class RunnerSpec:
    """How an artifact is timed."""

    run: str
    """``"package.module:function"``, called in a run worker as
    ``function(artifact, args, timing, options) -> list[seconds]``."""
    check: str
    """``"package.module:function"``, called in a run worker as
    ``function(artifact, reference_artifact, args, options) -> float``: max|y - ref| / max|ref|."""
    peak: str | None = None
    """``"package.module:function"``, called in a run worker as ``function(target, options) ->
    GFLOPS``: the most that the device can do in float32."""
    baseline: str | None = None
    """``"package.module:function"``, called in a run worker as ``function(target, options) ->
    seconds``: how long a kernel takes that is always the same, so that a device which drifts shows."""
    init: str | None = None
    slots: int = 1
    exclusive: bool = True
    """True where building would disturb the timing (CPUs): builders rest while a candidate is timed."""
    recycle: int = 200
    """Calls after which a process is replaced, because drivers and TVM grow."""
    kind: Literal["measured", "modelled"] = "measured"
    options: JSON = field(default_factory=dict)


@dataclass(frozen=True)
class Timing:
    """How often a candidate is run."""

    number: int = 1
    """Calls per repeat; with 1 caches are flushed before each; on CPUs the first argument stays."""
    repeat: int = 10
    min_repeat_ms: int = 0
    build_timeout: float = 20.0
    run_timeout: float = 10.0


class _Unpacked:
    """A field that may be set to a function of no arguments, which is called at each access.

    Traces are large, and a session keeps the trials of all its tasks: they stay packed until used.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = f"_{name}"

    def __get__(self, trial: Any, owner: type | None = None) -> Any:
        if trial is None:
            raise AttributeError("the class has no value of its own")  # hence the field no default
        value = getattr(trial, self.name)
        return value() if callable(value) else value

    def __set__(self, trial: Any, value: Any) -> None:
        setattr(trial, self.name, value)


@dataclass
class Trial:
    """One measured candidate, as it stands in the log."""

    task: str
    """The task's key."""
    implementation: str
    workload: str
    candidate: str
    """Digest of the scheduled module: equal candidates are never measured twice."""
    trace: Any = _Unpacked()
    """The schedule as MetaSchedule's JSON, ``[instructions, decisions]``, post-processors included;
    or a function that returns it. Lists are shared between trials: not to be changed."""
    seconds: list[float] = field(default_factory=list)
    """One value per repeat; empty if it failed."""
    error: JSON | None = None
    """``{"stage": Stage, "message": str}`` if it failed."""
    tuner: str = ""
    kind: str = "measured"
    verified: bool | None = None
    """None: not checked; False: its answer was wrong."""
    time: float = 0.0
    """Seconds since the epoch."""
    device: str = ""
    """Identity of the device that it was measured on."""
    extra: JSON = field(default_factory=dict)

    @property
    def own(self) -> bool:
        """Whether it was measured for the log that it is in, and counts as a trial of its."""
        return self.tuner != TRANSFER

    @property
    def searched(self) -> bool:
        """Whether a tuner proposed it."""
        return self.tuner not in (DEFAULT, TRANSFER)

    @property
    def ok(self) -> bool:
        return bool(self.seconds) and self.error is None and self.verified is not False

    @property
    def latency(self) -> float:
        """Median seconds, or infinity if it failed."""
        if not self.ok:
            return float("inf")
        ordered = sorted(self.seconds)
        mid = len(ordered) // 2
        if len(ordered) % 2:
            return ordered[mid]
        return (ordered[mid - 1] + ordered[mid]) / 2


def is_operator(network: Network) -> bool:
    """Whether it is one operator from a kernel file."""
    return isinstance(network, Templated)


def batch_of(source: JSON, inputs: Sequence[TensorSpec]) -> int:
    """Items per call: the first extent of the first input; 1 for an operator, which has no batch."""
    if "operator" in source or not inputs or not inputs[0].shape:
        return 1
    return inputs[0].shape[0]


def digest(value: Any) -> str:
    """16 hex digits of SHA-256 over the canonical JSON of ``value``."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def product(shape: Sequence[int]) -> int:
    result = 1
    for extent in shape:
        result *= int(extent)
    return result
