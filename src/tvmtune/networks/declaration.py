"""The declarations of a kernel file: one operator, its NumPy reference, and schedule templates.

::

    @tvmtune.operator
    def scale(n: int = 1024):
        x = te.placeholder((n,), name="x")
        return [x, te.compute((n,), lambda i: x[i] * 2, name="y")]

    @scale.reference
    def in_numpy(x):
        return x * 2

    @scale.template("cpu")
    def on_cpu(sch):
        (i,) = sch.get_loops(sch.get_sblock("y"))
        outer, inner = sch.split(i, sch.sample_perfect_tile(i, n=2, max_innermost_factor=64))
        sch.parallel(outer)
        sch.vectorize(inner)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvmtune.errors import ArgumentError, UsageError, nearest

Function = Callable[..., Any]


class Operator:
    """An operator as declared by its author with :func:`operator`.

    ``declare`` returns TE tensors, inputs before outputs, or a PrimFunc. Its parameters are the
    operator's arguments (``--arg``); give them defaults.
    """

    def __init__(self, declare: Function) -> None:
        self.declare = declare
        self.name = declare.__name__
        self.references: list[Function] = []
        self.templates: dict[str, Function] = {}
        """Schedule templates by target kind or key."""
        self.ranges: dict[str, tuple[int, int]] = {}

    def reference(self, function: Function) -> Function:
        """Decorate the NumPy reference, which maps arrays to an array or a tuple of arrays."""
        self.references.append(function)
        return function

    def integers(self, **ranges: tuple[int, int]) -> None:
        """Set the range of random integers for an input, e.g. ``ids=(0, 999)``, both ends included.

        By default 8- and 16-bit integers take all values, wider ones -1000 to 1000.
        """
        for name, pair in ranges.items():
            low, high = pair
            if low > high:
                raise UsageError(f"'{self.name}': integers({name}={pair}) is an empty range")
            self.ranges[name] = (int(low), int(high))

    def template(self, *targets: str) -> Callable[[Function], Function]:
        """Decorate a function that schedules the operator for these target kinds (``llvm``,
        ``cuda``, ...) or keys (``cpu``, ``gpu``, ``mali``, ...).

        It takes a :class:`tvm.s_tir.Schedule` and samples its knobs on it. The instructions that it
        issues must not depend on sampled values: the search replays them with other decisions.
        """
        if not targets or not all(isinstance(t, str) for t in targets):
            raise UsageError("@OPERATOR.template takes names of targets, e.g. template('cpu')")

        def keep(function: Function) -> Function:
            known = _target_names()
            for target in targets:
                if target not in known:
                    raise UsageError(
                        f"'{self.name}' has a template for '{target}', which is not a target."
                        f"{nearest(target, known)}"
                    )
                if target in self.templates:
                    raise UsageError(f"'{self.name}' has two templates for '{target}'")
                self.templates[target] = function
            return function

        return keep

    def template_for(self, keys: Sequence[str]) -> tuple[str, Function] | None:
        """Name and template for a target with these names, which are given most specific first."""
        return next(((k, self.templates[k]) for k in keys if k in self.templates), None)

    def bind(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments, from ``given`` and the defaults, converted to the defaults' types.

        Raises :class:`ArgumentError` for an unknown, unsuitable or missing argument.
        """
        parameters = inspect.signature(self.declare).parameters
        for name in given:
            if name not in parameters:
                hint = nearest(name, [*parameters]) if parameters else " It takes none."
                raise ArgumentError(f"{name}: operator '{self.name}' has no such argument.{hint}")
        result = {}
        for name, parameter in parameters.items():
            default = None if parameter.default is parameter.empty else parameter.default
            if name in given:
                result[name] = _convert(name, given[name], default)
            elif parameter.default is not parameter.empty:
                result[name] = default
            else:
                raise ArgumentError(f"{name}=... is missing: operator '{self.name}' needs it")
        return result


def operator(declare: Function) -> Operator:
    """Declare the operator of a kernel file; see :mod:`tvmtune.networks.declaration`."""
    return Operator(declare)


def _target_names() -> list[str]:
    """Kinds of TVM's targets, and the keys that group them."""
    import tvm

    keys = ("cpu", "gpu", "mali", "adreno", "arm_cpu", "intel_graphics", "vta")
    return sorted({*map(str, tvm.target.Target.list_kinds()), *keys})


def call_with(function: Function, positional: Sequence[Any], arguments: Mapping[str, Any]) -> Any:
    """Call a reference or a template with ``positional`` and the operator's arguments that it names
    after these."""
    named = list(inspect.signature(function).parameters)[len(positional) :]
    return function(*positional, **{k: arguments[k] for k in named if k in arguments})


def _convert(name: str, value: Any, default: Any) -> Any:
    """``value`` as the type of the default; text is parsed."""
    kind = type(default)
    if default is None or type(value) is kind:
        return value
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    try:
        if kind is bool:
            return words[str(value).lower()]
        if kind in (float, str) or (kind is int and not isinstance(value, float)):
            return kind(value)
    except (ValueError, KeyError):
        pass
    raise ArgumentError(f"{name}={value}: must be of type {kind.__name__}")
