"""What a kernel's program says about its arguments: which it writes, and which values they may take.

A check needs inputs that make errors visible, yet an index must stay within its table, and a shift
within its word. The unscheduled program tells which integer arguments are indices or shifts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tvmtune.arrays import numpy_dtype
from tvmtune.types import TensorSpec

if TYPE_CHECKING:
    import tvm

MOST_DIVISOR = 7
_EXACT_CALLS = ("tirx.if_then_else", "tirx.likely")


@dataclass(frozen=True)
class KernelArgument(TensorSpec):
    """An argument of a kernel."""

    written: bool = False
    """Whether it is an output."""
    low: int | None = None
    high: int | None = None
    """Of an integer input: the lowest and highest value that it may take; None if any will do."""
    shifts: bool = False
    """Whether it says by how many bits to shift."""
    products: int = 1
    """Of the whole kernel: the number of terms of its longest sum."""
    shifted: int = 0
    """Of the whole kernel: by how many bits integers of 32 bits are shifted right, if that is a
    constant."""
    exact: bool = False
    """Whether it is of integers, and nothing that the kernel computes is rounded: any difference is an
    error."""


def kernel_arguments(mod: tvm.IRModule) -> list[KernelArgument]:
    """The arguments of an unscheduled ``main``, in order."""
    program = _Program(mod["main"])
    tables = program.tables()
    arguments = []
    for n, buffer in enumerate(program.params):
        shape, dtype = tuple(int(d) for d in buffer.shape), str(buffer.dtype)
        shifts = buffer in program.shifts
        low = high = None
        if buffer in tables:
            low, high = 0, program.highest_index(buffer, tables)
        elif buffer in program.divisors:
            low, high = 1, MOST_DIVISOR
        arguments.append(
            KernelArgument(
                f"arg{n}",
                shape,
                dtype,
                written=n >= program.first_output,
                low=low,
                high=high,
                shifts=shifts,
                products=program.products,
                shifted=program.shifted,
                exact=program.exact and "float" not in dtype,
            )
        )
    return arguments


@dataclass
class _Index:
    """An index expression, and the extent of the dimension that it indexes."""

    expression: Any
    extent: int


@dataclass
class _Program:
    """The stores, indices and domains of a PrimFunc; buffers and variables are compared by identity."""

    func: Any
    products: int = 1
    stores: list[tuple[Any, Any]] = field(default_factory=list)
    """Buffer and stored value, in program order."""
    indices: list[_Index] = field(default_factory=list)
    shifts: set[Any] = field(default_factory=set)
    divisors: set[Any] = field(default_factory=set)
    """Arguments that are read where an integer is shifted or divided."""
    shifted: int = 0
    exact: bool = True
    """Whether no floating-point number is computed; they may be compared, selected and copied."""
    domains: list[tuple[Any, Any]] = field(default_factory=list)
    """Variables of loops and blocks with their ranges."""
    bound: dict[Any, Any] = field(default_factory=dict)
    """Variables that stand for a value."""

    def __post_init__(self) -> None:
        from tvm import ir, s_tir, tirx
        from tvm_ffi import structural_walk

        self._load = ir.TensorLoad
        self._var = ir.Var
        self.params = list(self.func.params)
        known = set(self.params)
        narrowing = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)

        def note_indices(buffer: Any, indices: Any) -> None:
            for index, extent in zip(indices, buffer.shape, strict=True):
                if isinstance(extent, tirx.IntImm):
                    self.indices.append(_Index(index, int(extent)))

        def load(node: Any) -> None:
            note_indices(node.source, node.indices)

        def store(node: Any) -> None:
            self.stores.append((node.buffer, node.value))
            note_indices(node.buffer, node.indices)

        def block(node: Any) -> None:
            terms = 1
            for each in node.iter_vars:
                self.domains.append((each.var, each.dom))
                if each.iter_type == tirx.IterVar.CommReduce:
                    terms *= int(each.dom.extent) if isinstance(each.dom.extent, tirx.IntImm) else 1
            self.products = max(self.products, terms)

        def loop(node: Any) -> None:
            self.domains.append((node.loop_var, ir.Range.from_min_extent(node.min, node.extent)))

        def bind(node: Any) -> None:
            self.bound[node.var] = node.value

        def shift(node: Any) -> None:
            self.shifts |= known & self._sources(node.b)

        def shift_right(node: Any) -> None:
            shift(node)
            if isinstance(node.b, tirx.IntImm) and numpy_dtype(str(node.a.ty.dtype)).itemsize > 2:
                self.shifted = max(self.shifted, int(node.b))

        def compute(node: Any) -> None:
            self.exact &= "float" not in str(node.ty.dtype)

        def divide(node: Any) -> None:
            compute(node)
            if "int" in str(node.b.ty.dtype):
                self.divisors |= known & self._sources(node.b)

        def call(node: Any) -> None:
            name = str(getattr(node.op, "name", ""))
            if name not in _EXACT_CALLS and ("float" in str(node.ty.dtype) or "call_" in name):
                self.exact = False

        structural_walk(
            self.func.body,
            (
                (self._load, load),
                (tirx.BufferStore, store),
                (s_tir.SBlock, block),
                (tirx.For, loop),
                ((tirx.Bind, tirx.Let), bind),
                (tirx.LShift, shift),
                (tirx.RShift, shift_right),
                (narrowing, divide),
                ((tirx.Add, tirx.Sub, tirx.Mul), compute),
                (ir.Call, call),
            ),
            order="pre",
        )
        written = {buffer for buffer, _ in self.stores}
        self.first_output = len(self.params) - 1
        while self.first_output > 0 and self.params[self.first_output - 1] in written:
            self.first_output -= 1

    def tables(self) -> dict[Any, list[_Index]]:
        """By integer input, the index expressions that depend on it."""
        inputs = [p for p in self.params[: self.first_output] if "int" in str(p.dtype)]
        if not inputs:
            return {}
        origins: dict[Any, set[Any]] = {p: {p} for p in inputs}
        for _ in range(
            len(self.stores) + 1
        ):  # until nothing new flows through intermediate buffers
            before = sum(map(len, origins.values()))
            for buffer, value in self.stores:
                found = {o for s in self._sources(value) for o in origins.get(s, ())}
                if found and "int" in str(buffer.dtype):
                    origins.setdefault(buffer, set()).update(found)
            if sum(map(len, origins.values())) == before:
                break
        result: dict[Any, list[_Index]] = {}
        for index in self.indices:
            for origin in {o for s in self._sources(index.expression) for o in origins.get(s, ())}:
                result.setdefault(origin, []).append(index)
        return result

    def highest_index(self, buffer: Any, tables: Mapping[Any, list[_Index]]) -> int:
        """The highest value of an index for which all indices that depend on it are provably in
        bounds; 1 if nothing can be proven."""
        candidates = {index.extent - 1 for index in tables[buffer]}
        value = max(candidates)
        while value > 0:
            value //= 2
            candidates.add(value)
        for most in sorted(candidates, reverse=True):
            values = dict.fromkeys(tables, (0, 1)) | {buffer: (0, most)}
            if most >= 0 and self._in_bounds(tables[buffer], values):
                return most
        return min(1, max(candidates))

    def _in_bounds(self, indices: list[_Index], values: dict[Any, tuple[int, int]]) -> bool:
        from tvm import sym

        analyzer = sym.Analyzer()
        for variable, domain in self.domains:
            analyzer.bind(variable, domain, True)
        values = dict(values)
        for target, value in self.stores:
            if "int" in str(target.dtype) and self._sources(value) & values.keys():
                low, high = self._bounds(value, values, analyzer)
                old = values.get(target, (low, high))
                values[target] = min(low, old[0]), max(high, old[1])
        for index in indices:
            low, high = self._bounds(index.expression, values, analyzer)
            if low < 0 or high >= index.extent:
                return False
        return True

    def _bounds(
        self, value: Any, values: dict[Any, tuple[int, int]], analyzer: Any
    ) -> tuple[int, int]:
        from tvm import sym, tirx
        from tvm_ffi import structural_map

        def known(load: Any) -> Any:
            fresh = tirx.Var("value", str(load.ty.dtype))
            if load.source in values:
                analyzer.update(fresh, sym.ConstIntBound(*values[load.source]))
            return fresh

        def variable(var: Any) -> Any:
            return self.bound.get(var, var)

        for _ in range(1 + len(self.bound)):  # values that stand for others
            if not any(v in self.bound for v in self._found(value, self._var)):
                break
            value = structural_map(value, (self._var, variable))
        value = analyzer.simplify(structural_map(value, (self._load, known)))
        bound = analyzer.const_int_bound(value)
        return int(bound.min_value), int(bound.max_value)

    def _sources(self, value: Any) -> set[Any]:
        """The buffers that are read in an expression, also through variables."""
        found, waiting, seen = set(), [value], set()
        while waiting:
            for node in self._found(waiting.pop(), (self._load, self._var)):
                if isinstance(node, self._load):
                    found.add(node.source)
                elif node in self.bound and node not in seen:
                    seen.add(node)
                    waiting.append(self.bound[node])
        return found

    @staticmethod
    def _found(value: Any, kinds: Any) -> Iterator[Any]:
        from tvm_ffi import structural_walk

        nodes: list[Any] = []
        structural_walk(value, (kinds, nodes.append), order="pre")
        return iter(nodes)
