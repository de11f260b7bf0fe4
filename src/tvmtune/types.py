"""The types that one stage hands to the next.

Nothing here imports TVM at run time: the command line can use these types without paying for the
import. It is one file of over 400 lines on purpose: these types are the vocabulary that all rooms and
backends share, and a reader looks them up in one place.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from tvmtune import checks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    import tvm
    from tvm.s_tir import Schedule
    from tvm.s_tir.meta_schedule.space_generator import SpaceGenerator

JSON = dict[str, Any]
Stage = Literal["space", "build", "timeout", "run", "crash", "wrong-answer"]
"""Where a trial failed. ``space``: the trace could not be applied; ``timeout``: the build or the run
exceeded its deadline; ``crash``: the worker process died."""


@dataclass(frozen=True)
class TensorSpec:
    """Name, static shape and NumPy dtype name of one input or output."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name}: {'x'.join(map(str, self.shape)) or 'scalar'} {self.dtype}"

    def to_json(self) -> JSON:
        return asdict(self) | {"shape": list(self.shape)}

    @staticmethod
    def from_json(data: JSON) -> TensorSpec:
        return TensorSpec(data["name"], tuple(data["shape"]), data["dtype"])


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
        """The serialized ONNX model, for peers that read ONNX; None if there is none."""

    def reference(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs, in order, computed without TVM."""


@dataclass(frozen=True)
class State:
    """A tensor that a network keeps: one of its inputs, whose value in the next run is an output."""

    output: str
    """Name of the output."""
    initial: np.ndarray | None = None
    """The value with which it begins; None for zeros."""


@runtime_checkable
class Stateful(Protocol):
    """A network that keeps tensors from run to run, such as the cache of a language model."""

    state: Mapping[str, State]
    """By the names of the inputs that they are. A run may overwrite these."""


@runtime_checkable
class Templated(Protocol):
    """A network with schedule templates written by its author."""

    def template(self, keys: Sequence[str]) -> Callable[[Schedule], None] | None:
        """The template for a target with these names, most specific first; it samples knobs."""


@dataclass(frozen=True)
class Device:
    """The hardware that kernels are tuned for. Measurements from devices with different
    :meth:`identity` are never ranked together."""

    backend: str
    target: JSON
    """The TVM target as a dict, host included where there is one."""
    threads: int
    """CPU threads, the same for measuring, compiling and benchmarking."""
    attrs: JSON = field(default_factory=dict)
    """Backend-specific attributes that TVM would reject as unknown target keys."""
    params: JSON = field(default_factory=dict)
    """Hardware parameters, read from the device or given by the user."""
    remote: str | None = None
    """Key of the boards that measure, ``KEY@HOST:PORT`` if their tracker is not the default one; None
    for this machine."""
    runtime: str = "cpu"
    """TVM's name of the device type that kernels run on."""
    model: str = ""
    """Human-readable name of the hardware, e.g. the CPU's."""
    needs_init: bool = False
    """Whether the backend's ``serve_init`` must run before a library is loaded, to register packed
    functions that the library calls. For devices other than the CPU it always runs."""

    board: JSON = field(default_factory=dict)
    """Identity of the boards that measure, if one was asked while planning
    (:mod:`tvmtune.machine.board_identity`): others under the same key are not used."""

    absent: bool = False
    """Whether this machine lacks the accelerator, so that kernels are compiled here but never run. For
    a CPU the target triple decides."""

    assumed: str = ""
    """Set if nothing is known here of the accelerator, so that this describes a typical one, good for
    looking at a plan only: the reason, and how to name one."""

    def identity(self) -> str:
        """Hex digest of everything that makes measured times comparable."""
        return digest(
            [self.backend, self.target, self.attrs, self.threads, self.model, self.key or ""]
        )

    @property
    def mtriple(self) -> str:
        """LLVM target triple of the system whose CPU calls the kernels; empty for this machine."""
        host = self.target.get("host", self.target)
        return str(host.get("mtriple", "")) if isinstance(host, dict) else ""

    @property
    def key(self) -> str | None:
        """Key of its boards, without the tracker's address."""
        return self.remote.partition("@")[0] if self.remote else None

    def to_json(self) -> JSON:
        data = asdict(self) | {"identity": self.identity()}
        del data["absent"], data["assumed"]  # of the machine that compiles, not of the device
        return data

    @staticmethod
    def from_json(data: JSON) -> Device:
        names = Device.__dataclass_fields__
        return Device(**{k: v for k, v in data.items() if k in names})


class Space(Protocol):
    """The design space of an implementation."""

    size: int | None
    """Number of points, if known."""

    def generator(self) -> SpaceGenerator:
        """The space as a MetaSchedule space generator."""

    def default(self, mod: tvm.IRModule, target: tvm.target.Target) -> Schedule:
        """A good schedule without any measurement: the first trial, and the fallback of compile."""


@dataclass
class Implementation:
    """One way to compute a task (direct, winograd, ...): a workload and the space of its schedules."""

    name: str
    workload_key: str
    mod: tvm.IRModule
    """One PrimFunc, ``main``."""
    space: Space
    exact: bool = True
    """False if its rounding errors may exceed the direct algorithm's, as those of Winograd's F(4x4) and
    Strassen's do."""
    preferred: bool = False
    """Whether compile takes it, in its default schedule, for a task without a record."""


@dataclass(frozen=True)
class Algorithm:
    """Another way to compute some calls of one Relax operator, e.g. Winograd's convolution.

    Every kernel whose program it changes gets an implementation of this name.
    """

    name: str
    operator: str
    """Name of the Relax operator, e.g. ``relax.nn.conv2d``."""
    applies: Callable[[Any], bool]
    """Whether it can compute this call."""
    replace: Callable[[Any, Any, bool], Any]
    """``(block_builder, call, values) -> expression`` for a call that it applies to. Without ``values``
    only the program is needed: precomputed weights may stay uninitialized."""
    exact: bool = True
    """False if its rounding errors may exceed the direct algorithm's."""
    prefers: Callable[[Any], bool] | None = None
    """Whether its default schedule is expected to be faster than the direct one's for a call that it
    applies to, so that compile takes it without a record. None: never. Of several algorithms compile
    takes the first; one that is not exact only where it can check the network's output."""
    superseded: bool = False
    """Whether only records in logs of earlier versions use it: tuning does not try it."""
    space_for: Callable[[tvm.IRModule], Space | None] | None = None
    """The space for a kernel that it changed, or None where it does not apply. Without it, the space
    that the backend uses for any kernel."""


@dataclass(frozen=True)
class ExtraSpace:
    """Another design space for the direct workload of some kernels, e.g. for tensor cores."""

    name: str
    space_for: Callable[[tvm.IRModule], Space | None]
    """The space for a workload, or None where it does not apply."""


DIRECT = "direct"
"""The implementation that every task has: the definition of its operator."""
DEFAULT, TRANSFER, SHIPPED = "default", "transfer", "shipped"
"""Values of :attr:`Trial.tuner` for default schedules, for records transferred from other logs, and for
the schedules of records that come with tvmtune. Those records themselves are of kind ``shipped``."""


@dataclass
class Task:
    """A distinct fused subgraph of the network."""

    index: int
    name: str
    key: str
    """Exact key: the structure of the direct workload, TVM's version, the space's version."""
    anchor_key: str
    """Operator, shapes, dtypes and layout of the anchor block, whatever is fused around it."""
    weight: int
    """How often it appears in the network."""
    flop: float
    args: tuple[TensorSpec, ...]
    """The inputs of the fused function, then its output."""
    implementations: list[Implementation]
    sites: tuple[int, ...] = ()
    """Indices of its calls in the prepared program, in program order."""

    def implementation(self, name: str) -> Implementation:
        return next(i for i in self.implementations if i.name == name)

    @property
    def untuned(self) -> Implementation:
        """The implementation that compile takes without a record."""
        return next((i for i in self.implementations if i.preferred), self.implementations[0])

    @property
    def untuned_exact(self) -> Implementation:
        """The same where compile may take only exact implementations."""
        exact = (i for i in self.implementations if i.preferred and i.exact)
        return next(exact, self.implementations[0])


@dataclass
class Prepared:
    """A network prepared for a device: layouts chosen, not yet split into kernels."""

    network: Network
    device: Device
    layout: str
    graph: tvm.IRModule
    """Relax operators, constants folded, before legalization."""
    extra: JSON = field(default_factory=dict)
    """Backend-specific data for its later hooks; the core ignores it."""
    keys: dict[int, str] = field(default_factory=dict, init=False, repr=False)
    """Once known: the workload keys of the direct kernels' calls, by index in program order."""
    changed: dict[str, dict[int, tuple[int, bool]]] = field(
        default_factory=dict, init=False, repr=False
    )
    """Once known: which of these calls each algorithm can compute, each call's number among them in the
    order of the graph, and whether the algorithm prefers itself."""


@dataclass(frozen=True)
class BuilderSpec:
    """How a candidate becomes an artifact. The core manages processes, deadlines and recycling."""

    build: str
    """``"package.module:function"``, called in a build worker as
    ``function(mod, target, options, directory) -> path``. If ``options["shipped"]`` is true, the kernel
    must be what the library will contain; otherwise the function may skip work that does not affect
    the kernel's speed. ``options["reference"]`` marks an unscheduled workload to check candidates
    against."""
    init: str | None = None
    """``"package.module:function"`` called once in each worker with ``options``."""
    options: JSON = field(default_factory=dict)
    reference: Reference | None = None
    """How to build the unscheduled workloads that candidates are checked against, if not like the
    candidates: for this machine, if candidates run on a board."""

    @dataclass(frozen=True)
    class Reference:
        """TVM target, and options that override the builder's."""

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
    GFLOPS``: the peak rate of the device in float32."""
    baseline: str | None = None
    """``"package.module:function"``, called in a run worker as ``function(target, options) ->
    seconds``: the time of a fixed kernel, which reveals drift of the device's speed."""
    init: str | None = None
    slots: int = 1
    exclusive: bool = True
    """True if building would disturb the timing (CPUs): builders pause while a candidate is timed."""
    recycle: int = 200
    """Calls after which a process is replaced, because drivers and TVM leak memory."""
    kind: Literal["measured", "modelled"] = "measured"
    options: JSON = field(default_factory=dict)


@dataclass(frozen=True)
class Timing:
    """How often a candidate runs, and its deadlines in seconds."""

    number: int = 1
    """Calls per repeat. With 1, caches are flushed before each call, where the device has a function
    for that, but for a CPU's first argument; large weights are streamed on this machine's CPU."""
    repeat: int = 10
    min_repeat_ms: int = 0
    build_timeout: float = 20.0
    run_timeout: float = 10.0

    def __post_init__(self) -> None:
        """Raises :class:`UsageError` for a value out of range."""
        checks.at_least("--number", self.number, 1)
        checks.at_least("--repeat", self.repeat, 1)
        checks.at_least("--min-repeat-ms", self.min_repeat_ms, 0)
        checks.above_zero("--build-timeout", self.build_timeout)
        checks.above_zero("--run-timeout", self.run_timeout)


class _PackedField:
    """A dataclass field that may hold a function without arguments, called at each access.

    Traces are large, and a session keeps the trials of all its tasks: traces stay packed until used.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = f"_{name}"

    def __get__(self, trial: Any, owner: type | None = None) -> Any:
        if trial is None:
            raise AttributeError("no class-level value")  # so the field has no default
        value = getattr(trial, self.name)
        return value() if callable(value) else value

    def __set__(self, trial: Any, value: Any) -> None:
        object.__setattr__(trial, self.name, value)  # not by ``__dict__``, which costs 100 bytes


_packed_trace = attrgetter("_trace")


@dataclass(frozen=True)
class Trial:
    """One measured candidate, or a default schedule (:attr:`is_default`). Immutable: a stage that
    learns more about it returns a copy."""

    task: str
    """The task's key."""
    implementation: str
    workload: str
    candidate: str
    """Digest of the scheduled module: equal candidates are never measured twice."""
    trace: Any = _PackedField()
    """The schedule as MetaSchedule's JSON, ``[instructions, decisions]``, post-processors included;
    or a function that returns it. Trials share these lists: never modify them. None of a default
    schedule that was not measured."""
    seconds: Sequence[float] = field(default_factory=list)
    """One value per repeat; empty if it failed."""
    error: Mapping[str, Any] | None = None
    """``{"stage": Stage, "message": str}`` if it failed."""
    tuner: str = ""
    kind: str = "measured"
    verified: bool | None = None
    """None: not checked; False: its output was wrong."""
    time: float = 0.0
    """Seconds since the epoch."""
    device: str = ""
    """Identity of the device that measured it."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields of its log line that this version does not know, and the marks ``drift`` and
    ``remeasured``."""
    source_module: str | None = None
    """The workload it was recorded for, as the log stores it, if it serves as the schedule of another
    fusion of the same anchor block. Not part of the trial's log line."""

    def evolve(self, **changes: Any) -> Trial:
        """A copy with these fields changed. Unlike :func:`dataclasses.replace` it leaves a packed
        trace packed."""
        return replace(self, **({"trace": _packed_trace(self)} | changes))

    def with_verdict(self, verified: bool, message: str = "") -> Trial:
        """The trial after its output was checked; a wrong one has failed, with ``message``."""
        if verified:
            return self.evolve(verified=True)
        return self.evolve(verified=False, error={"stage": "wrong-answer", "message": message})

    def with_repeats(self, seconds: Sequence[float]) -> Trial:
        """The trial after a second measurement.

        The new repeats join its own, or replace them if they were measured while the machine was slow.
        """
        before = [] if "drift" in self.extra else self.seconds
        extra = {name: value for name, value in self.extra.items() if name != "drift"}
        extra["remeasured"] = extra.get("remeasured", 0) + len(seconds)
        return self.evolve(seconds=[*before, *seconds], extra=extra)

    @property
    def own(self) -> bool:
        """Whether it was measured for this log and counts as one of its trials."""
        return self.tuner != TRANSFER

    @property
    def is_default(self) -> bool:
        """Whether it has no trace and stands for the default schedule of its implementation."""
        return self.tuner == DEFAULT and self.trace is None

    @property
    def searched(self) -> bool:
        """Whether a tuner proposed it."""
        return self.tuner not in (DEFAULT, TRANSFER, SHIPPED)

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
    """Whether it is a single operator from a kernel file."""
    return isinstance(network, Templated)


def state_of(network: Network) -> Mapping[str, State]:
    """The network's state: see :class:`Stateful`. Empty for others."""
    return network.state if isinstance(network, Stateful) else {}


def state_positions(network: Network) -> dict[int, int]:
    """Positions of the outputs with the next values, by those of the inputs that are state."""
    inputs, outputs = ([spec.name for spec in each] for each in (network.inputs, network.outputs))
    state = state_of(network)
    return {inputs.index(name): outputs.index(each.output) for name, each in state.items()}


def batch_of(source: JSON, inputs: Sequence[TensorSpec]) -> int:
    """Batch size: the first extent of the first input; 1 for an operator, which has no batch."""
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
