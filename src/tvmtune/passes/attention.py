"""Attention on CPUs: scores, mask, softmax and product as one kernel, a block of queries at a time.

As kernels of their own, they write and read the scores three times; those of 1500 tokens and six heads
take 54 MB, more than most caches hold. Here the scores of a block of queries stay in a core's own cache
until they have weighted the values. The softmax divides once, at the end (Dao et al., "FlashAttention",
2022, whose rescaling is not needed, as the block has all keys).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvmtune import cpu_features
from tvmtune.cpu_features import VectorUnit
from tvmtune.passes.bindings import bindings, is_constant, is_float32, operator_of, reads, rebind
from tvmtune.passes.blocks import LEFT_ALONE
from tvmtune.passes.fusable_calls import call_fusable
from tvmtune.passes.softmax import SMALLEST
from tvmtune.static_shapes import static_shape
from tvmtune.types import product

if TYPE_CHECKING:
    import tvm

RULE = "tvmtune.cpu_attention"
"""Rule of the product with the values, which schedules all stages."""
TILES = ("queries", "block")
"""Annotations of its block: fields of :class:`Tiles`."""

VECTORS = 2
"""Vectors of keys, or of a value's columns, in a tile of sums."""
FEWEST_QUERIES, FEWEST_KEYS = 16, 160
"""Of each head, at least. The scores of fewer keys stay in the cache between kernels: 128 tokens took
as long either way on a Zen 3, 64 1.5 times as long in one kernel."""
MOST_COLUMNS = 256
"""Columns of a query and a value together, at most; four times as many with 32 registers. Products of
more take so long that the scores' traffic does not matter."""
CACHED = 256 * 1024
"""Bytes of a block's scores, at most: half of a core's second-level cache, or less. What the schedule
adds to rows, a tenth or so, is not counted."""
_LOWEST = -1e30
"""Scores of this and less are of keys that a mask hides."""
MOST_TILES = 6
"""Tiles of queries in a block, at most: more save little."""
FEWEST_BLOCKS = 4
"""Blocks of queries for each core, at least."""


@dataclass(frozen=True)
class Tiles:
    """What a kernel computes at a time."""

    queries: int
    """Of a tile of sums."""
    block: int
    """Queries whose scores are in the cache."""
    lanes: int
    """Keys of a tile of sums."""


@dataclass(frozen=True)
class Step:
    """An elementwise operator between the scores and the softmax."""

    operator: str
    place: int
    """Of the scores among its operands."""
    others: tuple[Any, ...]
    """The other operands: Relax expressions, or numbers."""


@dataclass(frozen=True)
class Attention:
    queries: Any
    """(..., M, D)"""
    keys: Any
    """(..., D, N)"""
    values: Any
    """(..., N, E)"""
    steps: tuple[Step, ...]
    """In the order of their computation."""
    nan_to_zero: bool
    """Whether the weights are zero where softmax is not a number, as of queries without a key."""


def fuse(mod: tvm.IRModule, target: dict[str, Any], cores: int) -> tvm.IRModule:
    """``mod`` with such kernels where they are quicker; itself if there are none. They were measured
    with AVX2 and AVX-512, and other CPUs get none."""
    if not cpu_features.has(target, "avx2"):
        return mod
    unit = cpu_features.vector_unit(target)
    most = MOST_COLUMNS if unit.has_few_registers else 4 * MOST_COLUMNS
    made: dict[Any, Callable[[Any], Any]] = {}
    for variable, found in matches(mod):
        heads, queries, depth, keys, columns = _sizes(found)
        if depth + columns > most:
            continue
        tiles = tiles_of(heads, queries, keys, unit, cores)
        if tiles is not None:
            made[variable] = functools.partial(_call, found, tiles)
    return rebind(mod, made)


def tiles_of(heads: int, queries: int, keys: int, unit: VectorUnit, cores: int) -> Tiles | None:
    """For so many heads, queries and keys; None if there are too few."""
    lanes = VECTORS * unit.lanes
    if queries < FEWEST_QUERIES or keys < FEWEST_KEYS:
        return None
    height = min(
        range(1, unit.sums // VECTORS + 1),
        key=lambda rows: _rounded(queries, rows) * (rows + 3) / rows,
    )
    row = 4 * _rounded(keys, lanes)
    most = max(1, min(MOST_TILES, CACHED // (row * height)))

    def blocks(tiles: int) -> int:
        return heads * -(-queries // (height * tiles))

    counts = [n for n in range(1, most + 1) if n == 1 or blocks(n) >= FEWEST_BLOCKS * cores]
    tiles = min(counts, key=lambda n: (_rounded(queries, height * n), -n))
    return Tiles(height, height * tiles, lanes)


def _rounded(extent: int, step: int) -> int:
    return -(-extent // step) * step


def matches(mod: tvm.IRModule) -> Iterator[tuple[Any, Attention]]:
    """The variables whose values are attention, in program order."""
    values = {each.var: each.value for each in bindings(mod)}
    count = reads(mod)

    def only_read(expr: Any, times: int = 1) -> Any:
        """What a variable is bound to that nothing else reads, or None."""
        return values.get(expr) if count.get(expr) == times else None

    for variable, value in values.items():
        if (found := _match(value, only_read)) is not None:
            yield variable, found


def _match(value: Any, only_read: Callable[..., Any]) -> Attention | None:
    """The attention whose result is ``value``."""
    if operator_of(value) != "matmul":
        return None
    weights = softmax = only_read(value.args[0])
    is_masked = False
    if operator_of(weights) == "where":
        softmax = _without_nan(weights, only_read)
        is_masked = softmax is None
        if is_masked:
            softmax = _without_hidden(weights, only_read)
    if operator_of(softmax) != "nn.softmax":
        return None
    if int(softmax.attrs.axis) not in (-1, softmax.ty.ndim - 1):
        return None
    found = _scores(softmax.args[0], only_read)
    if found is None:
        return None
    scores, steps = found
    if is_masked:
        hiding = _hiding(weights.args[0], steps)
        if hiding is None:
            return None
        steps[-1] = hiding
    nan_to_zero = not weights.same_as(softmax)
    if not all(map(is_float32, (scores, value))):
        return None
    queries, keys = scores.args
    shapes = [static_shape(each) for each in (queries, keys, value.args[1], softmax)]
    heads = {None if shape is None or len(shape) < 3 else (*shape[:-2],) for shape in shapes}
    if None in heads or len(heads) > 1:
        return None
    return Attention(queries, keys, value.args[1], tuple(steps), nan_to_zero)


def _without_hidden(where: Any, only_read: Callable[..., Any]) -> Any:
    """The softmax that is read by ``where(allowed, softmax, 0)``, or None."""
    _, kept, zero = where.args
    if _number(zero) != 0.0 or static_shape(where) != static_shape(kept):
        return None
    return only_read(kept)


def _hiding(allowed: Any, steps: Sequence[Step]) -> Step | None:
    """The last of the steps as one that gives hidden keys a score of minus infinity, if it is
    ``where(allowed, scores, the lowest number)``; else None. Then weights of hidden keys are zero, and
    those of a query that sees no key are not numbers, so that ``where(allowed, weights, 0)`` only makes
    these zero."""
    if not steps or steps[-1].operator != "where" or steps[-1].place != 1:
        return None
    condition, other = steps[-1].others
    if not isinstance(other, float) or other > _LOWEST or not condition.same_as(allowed):
        return None
    return Step("where", 1, (condition, -math.inf))


def _without_nan(where: Any, only_read: Callable[..., Any]) -> Any:
    """What is read by ``where(isnan(x), 0, x)``, or None."""
    condition, zero, kept = where.args
    test = only_read(condition)
    if operator_of(test) != "isnan" or not test.args[0].same_as(kept):
        return None
    if _number(zero) != 0.0 or static_shape(where) != static_shape(kept):
        return None
    return only_read(kept, 2)


def _scores(expr: Any, only_read: Callable[..., Any]) -> tuple[Any, list[Step]] | None:
    """The product that the scores come from, and the steps after it."""
    call = only_read(expr)
    operator = operator_of(call)
    if operator == "matmul":
        return call, []
    if operator not in COMPUTE:
        return None
    for place, operand in enumerate(call.args):
        if static_shape(operand) != static_shape(call) or str(operand.ty.dtype) != "float32":
            continue
        found = _scores(operand, only_read)
        if found is not None:
            others = tuple(_number(each) for n, each in enumerate(call.args) if n != place)
            return found[0], [*found[1], Step(operator, place, others)]
    return None


def _number(operand: Any) -> Any:
    """The value of a float32 constant of one element; other operands as they are."""
    if is_constant(operand) and str(operand.ty.dtype) == "float32":
        value = operand.value.numpy()
        return float(value.reshape(())) if value.size == 1 else operand
    return operand


def _sizes(attention: Attention) -> tuple[int, ...]:
    """Heads, queries, columns of a query, keys, and columns of a value."""
    *heads, queries, depth = (int(n) for n in attention.queries.ty.shape)
    keys, columns = (int(n) for n in list(attention.values.ty.shape)[-2:])
    return product(heads), queries, depth, keys, columns


def _call(attention: Attention, tiles: Tiles, mutator: Any) -> Any:
    others = [each for step in attention.steps for each in step.others]
    tensors = [
        mutator.visit_expr(each)
        for each in (attention.queries, attention.keys, attention.values, *others)
        if not isinstance(each, float)
    ]
    program = functools.partial(_program, attention.steps, tiles, attention.nan_to_zero)
    return call_fusable(mutator.builder_, program, *tensors, name="attention", fuses=False)


def _program(
    steps: Sequence[Step], tiles: Tiles, nan_to_zero: bool, q: Any, k: Any, v: Any, *others: Any
) -> Any:
    """The kernel in TE. Queries, keys and columns are rounded up to whole blocks, tiles and vectors:
    queries repeat the last one, which is not stored, keys get a weight of zero, and columns are not
    stored."""
    from tvm import te, tirx

    *heads, queries, depth = (int(n) for n in q.shape)
    keys, columns = (int(n) for n in list(v.shape)[-2:])
    rows, lanes = _rounded(queries, tiles.block), tiles.lanes
    width = _rounded(columns, lanes // VECTORS)
    parts = -(-keys // lanes)
    is_whole = parts * lanes == keys

    def compute(shape: Sequence[int], element: Callable[..., Any], name: str) -> Any:
        return te.compute([*heads, *shape], element, name=name, attrs=LEFT_ALONE)

    def query(row: Any) -> Any:
        return tirx.min(row, queries - 1) if rows > queries else row

    def key(part: Any, lane: Any) -> Any:
        return part * lanes + lane

    def if_key(part: Any, lane: Any, value: Any, otherwise: float) -> Any:
        other = tirx.const(otherwise, "float32")
        return value if is_whole else tirx.Select(key(part, lane) < keys, value, other)

    def packed(*at: Any) -> Any:
        *head, part, d, lane = at
        value = k[(*head, d, key(part, lane))]
        zero = tirx.const(0.0, "float32")
        return value if is_whole else tirx.if_then_else(key(part, lane) < keys, value, zero)

    packed_keys = compute([parts, depth, lanes], packed, "keys")
    d = te.reduce_axis((0, depth), "d")
    scores = compute(
        [rows, parts, lanes],
        lambda *at: te.sum(
            q[(*at[:-3], query(at[-3]), d)] * packed_keys[(*at[:-3], at[-2], d, at[-1])], axis=d
        ),
        "scores",
    )
    given = iter(
        _widened(each, parts * lanes) if each.shape and int(each.shape[-1]) > 1 else each
        for each in others
    )
    operands = [[n if isinstance(n, float) else next(given) for n in s.others] for s in steps]

    def stepped(*at: Any) -> Any:
        *head, row, part, lane = at
        value = scores[at]
        for step, others in zip(steps, operands, strict=True):
            position = (*head, query(row), key(part, lane))
            read = [element(each, position) for each in others]
            read.insert(step.place, value)
            value = COMPUTE[step.operator](*read)
        return value

    # Stored: computed again for the weights, it could be rounded otherwise than for the maximum, by a
    # multiply-add, and large ones would differ by more than exp can take.
    score = compute([rows, parts, lanes], stepped, "steps") if steps else scores
    p, n = (te.reduce_axis((0, parts), name) for name in "pn")
    lane_max = compute(
        [rows, lanes],
        lambda *at: te.max(if_key(p, at[-1], score[(*at[:-1], p, at[-1])], -math.inf), axis=p),
        "lane_max",
    )
    lane = te.reduce_axis((0, lanes), "lane")
    row_max = compute([rows], lambda *at: te.max(lane_max[(*at, lane)], axis=lane), "row_max")

    def weight(*at: Any) -> Any:
        # As in :func:`tvmtune.passes.softmax.softmax`, none is a denormal number.
        power = score[at] - row_max[at[:-2]]
        value = tirx.Select(power < SMALLEST, tirx.const(0.0, "float32"), te.exp(power))
        return if_key(at[-2], at[-1], value, 0.0)

    weights = compute([rows, parts, lanes], weight, "weights")
    lane_sum = compute(
        [rows, lanes],
        lambda *at: te.sum(weights[(*at[:-1], n, at[-1])], axis=n),
        "lane_sum",
    )
    lane = te.reduce_axis((0, lanes), "lane")
    row_sum = compute([rows], lambda *at: te.sum(lane_sum[(*at, lane)], axis=lane), "row_sum")
    values = _widened(v, width)
    m = te.reduce_axis((0, keys), "m")
    weighted = te.compute(
        [*heads, rows, width],
        lambda *at: te.sum(
            weights[(*at[:-1], m // lanes, m % lanes)] * values[(*at[:-2], m, at[-1])], axis=m
        ),
        name="weighted",
        attrs={"schedule_rule": RULE, **{name: getattr(tiles, name) for name in TILES}},
    )

    def normalized(*at: Any) -> Any:
        total = row_sum[at[:-1]]
        value = weighted[at] / total
        # Also of NaN: then all scores are minus infinity, or one is NaN.
        return tirx.Select(total > 0, value, tirx.const(0.0, "float32")) if nan_to_zero else value

    result = compute([rows, width], normalized, "normalized")
    return compute([queries, columns], lambda *at: result[at], "attention")


def _widened(tensor: Any, width: int) -> Any:
    """An operand with so many columns, of which further ones are zeros; itself if it has them."""
    from tvm import te, tirx

    *outer, columns = (int(n) for n in tensor.shape)
    if columns == width:
        return tensor
    return te.compute(
        [*outer, width],
        lambda *at: tirx.if_then_else(at[-1] < columns, tensor(*at), tirx.const(0, tensor.dtype)),
        name="operand",
        attrs=LEFT_ALONE,
    )


def element(operand: Any, position: Sequence[Any]) -> Any:
    """The element of an operand, which is broadcast to the scores, at a position of theirs."""
    from tvm import tirx

    if isinstance(operand, float):
        return tirx.const(operand, "float32")
    extents = [int(n) for n in operand.shape]
    last = position[len(position) - len(extents) :]
    return operand[tuple(0 if n == 1 else i for n, i in zip(extents, last, strict=True))]


def _maximum(one: Any, other: Any) -> Any:
    from tvm import tirx

    return tirx.max(one, other)


def _minimum(one: Any, other: Any) -> Any:
    from tvm import tirx

    return tirx.min(one, other)


def _where(condition: Any, one: Any, other: Any) -> Any:
    from tvm import tirx

    return tirx.Select(condition, one, other)


COMPUTE: dict[str, Callable[..., Any]] = {
    "add": lambda one, other: one + other,
    "divide": lambda one, other: one / other,
    "maximum": _maximum,
    "minimum": _minimum,
    "multiply": lambda one, other: one * other,
    "subtract": lambda one, other: one - other,
    "where": _where,
}
"""Elementwise operators that may follow the scores."""
