"""Check the outputs of a library against a reference that the library carries.

The check is made once, when the library is compiled, from a reference that is not TVM: the seed of the
inputs and, for each output, its shape and, for two inputs, its largest magnitude and values at some
places. So a library can be checked on any machine, without the network or its reference.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from tvmtune import accuracy
from tvmtune.accuracy import differing, integer_error, relative_error
from tvmtune.arrays import from_text, numpy_dtype, to_text
from tvmtune.errors import TvmtuneError
from tvmtune.networks.inputs import inputs_of, random_inputs, ranges_of
from tvmtune.passes.exact_outputs import Kind, kinds_of_outputs
from tvmtune.types import is_operator

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tvmtune.types import JSON, Network, TensorSpec

SAMPLES, SECOND_SAMPLES = 4096, 1024
"""Values of an output, for the first and the second input, that a check has at most."""

_SPREADS = 2
"""How far a network that rounds to bytes may be from its reference, in distances between two runtimes'
results."""
_MOST, _MOST_COUNTED = 0.95, 0.5
"""However far these are apart: outputs of only zeros are off by 1. The second is that of shares."""
_LOOSE = 0.5
"""The tolerance above which a check sees only gross errors."""


class Allowed(NamedTuple):
    """How far an output may be from the reference."""

    error: float
    """0 for integers and booleans that must be equal."""
    counts: bool = False
    """Whether the error is the share of values that differ: of integers that a network that rounds to
    bytes chooses, such as classes, another one is as wrong as any."""

    @property
    def unit(self) -> str:
        """What the error is."""
        return "share of values that differ" if self.counts else "max|y - ref| / max|ref|"

    def measure(self, got: np.ndarray, want: np.ndarray, scale: float | None = None) -> float:
        """The error; ``scale`` as in :func:`relative_error`."""
        if self.counts:
            return differing(got, want)
        return relative_error(got, want, scale) if self.error else integer_error(got, want)

    def widened(self, pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> Allowed:
        """With these pairs of outputs of two runtimes that round differently."""
        apart = max((self.measure(one, other) for one, other in pairs), default=0.0)
        if not np.isfinite(apart):
            return self
        most = _MOST_COUNTED if self.counts else _MOST
        return self._replace(error=max(self.error, min(_SPREADS * apart, most)))


class Runnable(Protocol):
    """Maps named inputs to outputs, such as a library."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]: ...

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]: ...


@dataclass(frozen=True)
class OutputCheck:
    """The comparison of one output with its reference."""

    name: str
    error: float
    """max|y - ref| / max|ref|, max|y - ref| of integers that must be equal, or the share of values that
    differ; infinite where shape, dtype or finiteness differ."""
    reason: str = ""
    """Why it is wrong, if the error does not say."""


@dataclass(frozen=True)
class CheckResult:
    """The comparison of all outputs with the reference."""

    passed: bool
    error: float
    """The worst of the outputs' errors."""
    tolerance: float
    """The loosest of the outputs' tolerances."""
    outputs: tuple[OutputCheck, ...]
    reasons: tuple[str, ...] = field(default=())
    """What is wrong; empty if it passed."""
    warning: str = ""
    """Why the comparison says little, if so."""
    counts: bool = False
    """Whether the errors of all outputs are shares of values that differ."""

    def __str__(self) -> str:
        unit = Allowed(self.tolerance, self.counts).unit
        figure = f"{unit} = {self.error:.1e}, at most {self.tolerance:.0e} allowed"
        if self.passed and self.warning:
            return f"right as far as can be seen ({figure}): {self.warning}"
        if self.passed:
            return f"right ({figure})"
        return f"wrong: {'; '.join(self.reasons)} ({figure})"

    def to_json(self) -> JSON:
        """``error`` is null if it is infinite, which JSON cannot express; ``warning`` only if there is
        one."""
        result: JSON = {
            "passed": self.passed,
            "error": self.error if np.isfinite(self.error) else None,
            "tolerance": self.tolerance,
            "reasons": list(self.reasons),
        }
        return result | ({"warning": self.warning} if self.warning else {})


def make_check(network: Network, seed: int = 0) -> JSON:
    """Run the network's reference and make the check that a library carries.

    The result is JSON: ``seed``; ``varies``, whether the reference's outputs differ for the inputs of
    ``seed + 1``; and for each of ``outputs`` whether it ``varies`` and its ``name``, ``shape``,
    ``dtype``, ``tolerance``, ``max_abs``, ``finite`` and ``values``, the base64 text of the
    little-endian values at :func:`sample_places`. ``second`` has the last three for ``seed + 1``.
    ``counts`` stands with an output whose error is the share of values that differ.
    ``ranges`` are those of integer inputs, if the network has any, see
    :func:`tvmtune.networks.inputs.random_inputs`.
    """
    first = network.reference(inputs_of(network, seed))
    second = network.reference(inputs_of(network, seed + 1))
    outputs = [
        {
            "name": spec.name,
            "shape": list(array.shape),
            "dtype": array.dtype.name,
            "varies": _differ([array], [other]),
            "tolerance": allowed.error,
            **({"counts": True} if allowed.counts else {}),
            **_sampled(array, seed, SAMPLES),
            "second": _sampled(other, seed, SECOND_SAMPLES),
        }
        for spec, allowed, array, other in zip(
            network.outputs, allowed_errors(network), first, second, strict=True
        )
    ]
    check: JSON = {"seed": seed, "varies": _differ(first, second), "outputs": outputs}
    ranges = ranges_of(network)
    return check | ({"ranges": ranges} if ranges else {})


def _sampled(array: np.ndarray, seed: int, most: int) -> JSON:
    finite = np.isfinite(array) if array.dtype.kind != "b" else np.ones(array.shape, bool)
    magnitudes = np.abs(array[finite].astype(np.float64))
    values = array.reshape(-1)[sample_places(array.size, seed, most)]
    return {
        "max_abs": float(magnitudes.max()) if magnitudes.size else 0.0,
        "finite": bool(finite.all()),
        "values": to_text(values),
    }


def allowed_errors(network: Network) -> list[Allowed]:
    """Of each output against the network's reference."""
    specs = network.outputs
    kinds = [Kind.ROUNDED] * len(specs)
    if not all("float" in spec.dtype for spec in specs):
        kinds = kinds_of_outputs(network.to_relax())
    rounds = getattr(network, "computes", "") == "int8"
    runs = getattr(network, "rounding_runs", []) if rounds else []

    def allowed(place: int, spec: TensorSpec, kind: Kind) -> Allowed:
        if kind is Kind.EXACT or (kind is Kind.CHOSEN and not rounds):
            return Allowed(0.0)
        error = allowed_error(network, spec.dtype)
        pairs = ((one[place], other[place]) for one, other in runs)
        return Allowed(error, counts=kind is Kind.CHOSEN).widened(pairs)

    pairs = zip(specs, kinds, strict=True)
    return [allowed(place, spec, kind) for place, (spec, kind) in enumerate(pairs)]


def allowed_error(network: Network, dtype: str) -> float:
    """The tolerance for an output of this dtype that is computed from floats."""
    computes = getattr(network, "computes", dtype)
    if not dtype.startswith("float") and computes != "int8":
        computes = dtype
    return accuracy.tolerance(computes, network=not is_operator(network))


def sample_places(size: int, seed: int, most: int = SAMPLES) -> np.ndarray:
    """Ascending flat indices into an output of ``size`` values: all, or up to ``most`` of them."""
    if size <= most:
        return np.arange(size)
    rng = np.random.RandomState(seed)  # its stream is frozen, unlike that of default_rng
    return np.unique(rng.randint(0, size, most, dtype=np.int64))


def compare(
    outputs: Sequence[np.ndarray],
    check: JSON,
    *,
    others: Sequence[np.ndarray] | None = None,
    tolerance: float | None = None,
) -> CheckResult:
    """Compare the outputs for the inputs of ``check["seed"]`` with the reference in ``check``.

    ``tolerance``: by default each output has its own. ``others`` are the outputs for the inputs of
    ``seed + 1``, which are compared, too, unless an earlier version made the check. If one is the same
    but the reference's differs, the library ignores its inputs and fails. If the reference's do not
    differ, the result has a warning. Raises TvmtuneError unless :func:`make_check` made ``check``.
    """
    try:
        seed, wanted = check["seed"], check["outputs"]
        allowed = [
            entry.get("tolerance", accuracy.TOLERANCE) if tolerance is None else tolerance
            for entry in wanted
        ]
        loosest = max(allowed, default=accuracy.TOLERANCE)
        if len(outputs) != len(wanted):
            reason = f"there are {len(outputs)} outputs instead of {len(wanted)}"
            return CheckResult(False, float("inf"), loosest, (), (reason,))
        results = tuple(
            _compare_one(array, entry, seed, SAMPLES)
            for array, entry in zip(outputs, wanted, strict=True)
        )
        if others is not None:
            results = tuple(
                _worse(result, _compare_one(other, entry | entry["second"], seed, SECOND_SAMPLES))
                if "second" in entry
                else result
                for result, other, entry in zip(results, others, wanted, strict=True)
            )
        # Checks of earlier versions tell only whether any output varies.
        every = [entry.get("varies") for entry in wanted]
        varies = check["varies"]
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise TvmtuneError(f"the library's check is damaged ({exc!r}). Compile it again.") from exc
    reasons = []
    for result, most, entry in zip(results, allowed, wanted, strict=True):
        if not result.error <= most:
            reason = result.reason or f"is off by {result.error:.1e}{_magnitude(entry['max_abs'])}"
            reasons.append(f"output '{result.name}' {reason}")
    if others is not None and varies and not _differ(outputs, others):
        reasons.append("different inputs give the same outputs")
    elif others is not None:
        reasons += [
            f"output '{result.name}' is the same for different inputs"
            for result, array, other, differs in zip(results, outputs, others, every, strict=True)
            if differs and not _differ([array], [other])
        ]
    worst = max((result.error for result in results), default=0.0)
    constant = [
        result.name for result, differs in zip(results, every, strict=True) if differs is False
    ]
    warning = _blindness(varies, constant)
    if not warning and tolerance is None and loosest > _LOOSE:
        warning = (
            "the check sees gross errors only, because later layers amplify what earlier ones round: "
            "on random inputs, two runtimes that round differently are far apart, too. Try real data"
        )
    counts = bool(wanted) and all(entry.get("counts") for entry in wanted)
    return CheckResult(not reasons, worst, loosest, results, tuple(reasons), warning, counts)


def run_check(library: Runnable, check: JSON, *, tolerance: float | None = None) -> CheckResult:
    """Run the library on the inputs of the check and on other inputs, and compare."""
    seed = check["seed"]
    ranges = check.get("ranges")
    outputs = library.run(random_inputs(library.inputs, seed, ranges))
    others = library.run(random_inputs(library.inputs, seed + 1, ranges))
    return compare(outputs, check, others=others, tolerance=tolerance)


def _magnitude(largest: float) -> str:
    """What to say of values that are too small for the accuracy of their type, as of a network whose
    random weights let its signal fade."""
    if not 0 < largest < np.finfo(np.float32).tiny:
        return ""
    return f" of {largest:.1e} (denormal numbers have few digits: are the weights trained?)"


def _blindness(varies: bool, constant: Sequence[str]) -> str:
    """Why a check sees no errors, if so; ``constant``: the outputs that do not depend on the input."""
    if not varies:
        return (
            "the check cannot see errors, because the reference's output does not depend on the input. "
            "Give the network its trained weights"
        )
    if constant:
        return (
            f"the check cannot see errors of {', '.join(constant)}, because in the reference "
            f"{'it does' if len(constant) == 1 else 'they do'} not depend on the input"
        )
    return ""


def _worse(one: OutputCheck, other: OutputCheck) -> OutputCheck:
    return other if other.error > one.error else one


def _compare_one(array: np.ndarray, entry: JSON, seed: int, most: int) -> OutputCheck:
    name, shape, dtype = entry["name"], tuple(entry["shape"]), numpy_dtype(entry["dtype"])
    if array.shape != shape or array.dtype != dtype:
        reason = f"is {array.dtype.name} {list(array.shape)} instead of {dtype.name} {list(shape)}"
        return OutputCheck(name, float("inf"), reason)
    # The samples may miss a NaN, which spoils everything computed from it.
    if entry["finite"] and array.dtype.kind not in "biu" and not np.isfinite(array).all():
        return OutputCheck(name, float("inf"), "holds NaN or infinity")
    raw = from_text(entry["values"], dtype)
    values = array.reshape(-1)[sample_places(array.size, seed, most)]
    if raw.size and raw.dtype.kind not in "biu" and not np.isfinite(raw).any():
        return OutputCheck(
            name, float("inf"), "cannot be checked: no value of the reference is finite"
        )
    # Checks of early versions have no tolerance: all their outputs were floats.
    allowed = Allowed(entry.get("tolerance", accuracy.TOLERANCE), bool(entry.get("counts")))
    error = allowed.measure(values, raw.astype(dtype), entry["max_abs"])
    if allowed.counts:
        return OutputCheck(name, error, f"has other values at {error:.0%} of the places")
    return OutputCheck(name, error, "" if np.isfinite(error) else "holds NaN or infinity")


def _differ(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> bool:
    return any(
        not np.array_equal(one, two, equal_nan=one.dtype.kind == "f")
        for one, two in zip(first, second, strict=True)
    )
