"""Attention of few queries on CPUs, as of a language model that generates token by token with a cache.

It takes as long as reading the keys and values does. So one kernel reads each of them once: threads
share chunks of keys, each weighs the values of a chunk by its own maximum, and a short second step
combines the chunks (Dao et al., "Flash-Decoding for long-context inference", 2023). Keys and values
that several heads share (grouped-query attention) are not repeated in memory.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune import cpu_features
from tvmtune.passes import attention
from tvmtune.passes.attention import Attention
from tvmtune.passes.bindings import bindings, operator_of, rebind
from tvmtune.passes.blocks import LEFT_ALONE
from tvmtune.passes.fusable_calls import call_fusable
from tvmtune.passes.softmax import SMALLEST
from tvmtune.static_shapes import static_shape

if TYPE_CHECKING:
    import tvm

RULE = "tvmtune.cpu_few_queries"
"""Rule of the product with the values, which schedules all stages."""
MOST_ROWS = 16
"""Queries of all heads that share a key, at most."""
FEWEST_KEYS = 64
"""The kernels for fewer are as fast."""
CHUNK = 128
"""Keys of a chunk, at most: with 64 columns each, they and their values fill 64 KB."""
VISIBLE = "visible"
"""Name of the stage that says whether a query sees a key of a chunk."""
_LOWEST = float(np.finfo("float32").min)
"""Takes the place of minus infinity as the maximum of a chunk all of whose scores are that. Masks add
this number itself: then all of its keys count alike."""


@dataclass(frozen=True)
class _Shared:
    """Keys or values in memory, and how many heads use each."""

    tensor: Any
    """(batch, groups, keys, columns)"""
    heads: int


def fuse(mod: tvm.IRModule, target: dict[str, Any]) -> tvm.IRModule:
    """``mod`` with such kernels; itself if there are none. CPUs without AVX2 get none: nobody has
    measured them there."""
    if not cpu_features.has(target, "avx2"):
        return mod
    lanes = cpu_features.vector_unit(target).lanes
    values = {each.var: each.value for each in bindings(mod)}
    made: dict[Any, Callable[[Any], Any]] = {}
    for variable, found in attention.matches(mod):
        if len(static_shape(found.queries) or ()) != 4:
            continue
        keys = _shared(_untransposed(found.keys, values), values)
        weighted = _shared(found.values, values)
        if keys is None or weighted is None or keys.heads != weighted.heads:
            continue
        if _suits(found, keys, lanes):
            made[variable] = functools.partial(_call, found, keys, weighted, lanes)
    return rebind(mod, made)


def _suits(found: Attention, keys: _Shared, lanes: int) -> bool:
    """Whether there are few queries, enough keys, and whole vectors of columns."""
    queries, depth = (int(n) for n in list(found.queries.ty.shape)[-2:])
    count, columns = (int(n) for n in list(found.values.ty.shape)[-2:])
    return (
        queries * keys.heads <= MOST_ROWS
        and queries < attention.FEWEST_QUERIES
        and count >= FEWEST_KEYS
        and depth % lanes == 0
        and columns % lanes == 0
    )


def _untransposed(keys: Any, values: dict[Any, Any]) -> Any:
    """Of (..., columns, keys): the (..., keys, columns) that are a transposition of it, or None."""
    call: Any = values.get(keys)
    if operator_of(call) != "permute_dims":
        return None
    axes = [int(axis) % 4 for axis in call.attrs.axes or ()]
    return call.args[0] if axes == [0, 1, 3, 2] else None


def _shared(tensor: Any, values: dict[Any, Any]) -> _Shared | None:
    """What a tensor of (batch, heads, keys, columns) repeats for consecutive heads."""
    shape = None if tensor is None else static_shape(tensor)
    if shape is None or len(shape) != 4:
        return None
    batch, heads, *each = shape
    call: Any = values.get(tensor)
    spread: Any = values.get(call.args[0]) if operator_of(call) == "reshape" else None
    if operator_of(spread) == "broadcast_to":
        whole, single = static_shape(spread) or [], static_shape(spread.args[0])
        if len(whole) == 5 and [whole[0], *whole[3:]] == [batch, *each]:
            groups, times = whole[1:3]
            if groups * times == heads and single == [batch, groups, 1, *each]:
                return _Shared(spread.args[0], times)
    return _Shared(tensor, 1)


def _call(found: Attention, keys: _Shared, values: _Shared, lanes: int, mutator: Any) -> Any:
    from tvm import relax

    batch, heads, queries, depth = (int(n) for n in found.queries.ty.shape)
    groups, rows = heads // keys.heads, keys.heads * queries
    count, columns = (int(n) for n in list(found.values.ty.shape)[-2:])

    def shaped(expr: Any, *shape: int) -> Any:
        made = mutator.visit_expr(expr)
        if static_shape(expr) == [*shape]:
            return made
        return mutator.builder_.emit(relax.op.reshape(made, shape))

    others = [each for step in found.steps for each in step.others]
    tensors = [
        shaped(found.queries, batch, groups, rows, depth),
        shaped(keys.tensor, batch, groups, count, depth),
        shaped(values.tensor, batch, groups, count, columns),
        *(mutator.visit_expr(each) for each in others if not isinstance(each, float)),
    ]
    program = functools.partial(_program, found.steps, found.nan_to_zero, queries, lanes)
    return call_fusable(
        mutator.builder_, program, *tensors, name="few_queries_attention", fuses=False
    )


def chunk_of(keys: int, lanes: int) -> int:
    """Keys of a chunk: whole vectors, and as many in each chunk, if possible."""
    sizes = range(CHUNK // 4, CHUNK + 1, lanes)
    return max((size for size in sizes if keys % size == 0), default=CHUNK // 2)


def _program(
    steps: Sequence[attention.Step],
    nan_to_zero: bool,
    queries: int,
    lanes: int,
    q: Any,
    k: Any,
    v: Any,
    *others: Any,
) -> Any:
    """The kernel in TE. Row ``r`` of a group is the query ``r % queries`` of its head ``r // queries``.

    The last chunk is rounded up: further keys repeat the last one, and get a weight of zero.
    """
    from tvm import te, tirx

    batch, groups, rows, depth = (int(n) for n in q.shape)
    keys, columns = (int(n) for n in list(v.shape)[-2:])
    size = chunk_of(keys, lanes)
    chunks = -(-keys // size)
    is_whole = chunks * size == keys

    def compute(shape: Sequence[int], element: Callable[..., Any], name: str, **attrs: Any) -> Any:
        whole = [batch, groups, *shape]
        return te.compute(whole, element, name=name, attrs={**LEFT_ALONE, **attrs})

    def key(chunk: Any, place: Any) -> Any:
        number = chunk * size + place
        return number if is_whole else tirx.min(number, keys - 1)

    d = te.reduce_axis((0, depth // lanes), "d")
    dots = compute(
        [chunks, size, rows, lanes],
        lambda b, g, c, i, r, lane: te.sum(
            q[b, g, r, d * lanes + lane] * k[b, g, key(c, i), d * lanes + lane], axis=d
        ),
        "dots",
    )
    quarters = compute(
        [chunks, size, rows, 4],
        lambda b, g, c, i, r, n: _tree([dots[b, g, c, i, r, 4 * j + n] for j in range(lanes // 4)]),
        "quarters",
    )
    given = iter(others)
    operands = [[n if isinstance(n, float) else next(given) for n in s.others] for s in steps]

    def stepped(b: Any, g: Any, c: Any, r: Any, i: Any) -> Any:
        value = _tree([quarters[b, g, c, i, r, n] for n in range(4)])
        position = (b, g * (rows // queries) + r // queries, r % queries, key(c, i))
        for step, others in zip(steps, operands, strict=True):
            read = [attention.element(each, position) for each in others]
            read.insert(step.place, value)
            value = attention.COMPUTE[step.operator](*read)
        return value

    scores = compute([chunks, rows, size], stepped, "scores")
    i, x = te.reduce_axis((0, size // lanes), "i"), te.reduce_axis((0, lanes), "x")
    lane_max = compute(
        [chunks, rows, lanes],
        lambda *at: te.max(scores[(*at[:-1], i * lanes + at[-1])], axis=i),
        "lane_max",
    )
    top = compute([chunks, rows], lambda *at: te.max(lane_max[(*at, x)], axis=x), "chunk_max")

    lowest = tirx.const(_LOWEST, "float32")

    def weight(b: Any, g: Any, c: Any, r: Any, i: Any) -> Any:
        power = scores[b, g, c, r, i] - tirx.max(top[b, g, c, r], lowest)
        zero = tirx.const(0.0, "float32")
        value = tirx.Select(power < SMALLEST, zero, te.exp(power))
        return value if is_whole else tirx.Select(c * size + i < keys, value, zero)

    weights = compute([chunks, rows, size], weight, "weights")
    n, y = te.reduce_axis((0, size // lanes), "n"), te.reduce_axis((0, lanes), "y")
    lane_sum = compute(
        [chunks, rows, lanes],
        lambda *at: te.sum(weights[(*at[:-1], n * lanes + at[-1])], axis=n),
        "lane_sum",
    )
    sums = compute([chunks, rows], lambda *at: te.sum(lane_sum[(*at, y)], axis=y), "chunk_sum")
    m = te.reduce_axis((0, size), "m")
    weighted = compute(
        [chunks, rows, columns],
        lambda b, g, c, r, e: te.sum(weights[b, g, c, r, m] * v[b, g, key(c, m), e], axis=m),
        "weighted",
        schedule_rule=RULE,
    )
    vectors = columns // lanes
    condition = _hiding(steps, operands)
    visible = None
    if condition is not None:
        query, place = te.reduce_axis((0, queries), "query"), te.reduce_axis((0, size), "place")

        def seen(b: Any, g: Any, c: Any) -> Any:
            is_seen = attention.element(condition, (b, 0, query, key(c, place)))
            return te.max(is_seen.astype("int32"), axis=[query, place])

        visible = compute([chunks], seen, VISIBLE)

    def of_chunk(b: Any, g: Any, c: Any, r: Any, vector: Any, lane: Any) -> Any:
        last = tirx.Select(lane == 0, sums[b, g, c, r], top[b, g, c, r])
        at = (b, g, c, r, tirx.min(vector, vectors - 1) * lanes + lane)
        value = tirx.Select(vector < vectors, weighted[at], last)
        if visible is None:
            return value
        nothing = tirx.Select(
            tirx.all(vector == vectors, lane == 1), lowest, tirx.const(0.0, "float32")
        )
        return tirx.Select(visible[b, g, c] > 0, value, nothing)

    # In one buffer: a schedule computes a stage in a loop only if all that reads it is there.
    parts = compute([chunks, rows, vectors + 1, lanes], of_chunk, "parts")

    def sum_of(b: Any, g: Any, c: Any, r: Any) -> Any:
        return parts[b, g, c, r, vectors, 0]

    def max_of(b: Any, g: Any, c: Any, r: Any) -> Any:
        return parts[b, g, c, r, vectors, 1]

    c = te.reduce_axis((0, chunks), "c")
    whole_max = compute([rows], lambda b, g, r: te.max(max_of(b, g, c, r), axis=c), "whole_max")

    def scale_of(b: Any, g: Any, r: Any, c: Any) -> Any:
        return te.exp(tirx.max(max_of(b, g, c, r), lowest) - tirx.max(whole_max[b, g, r], lowest))

    scales = compute([rows, chunks], scale_of, "scales")
    s = te.reduce_axis((0, chunks), "s")
    total = compute(
        [rows], lambda b, g, r: te.sum(sum_of(b, g, s, r) * scales[b, g, r, s], axis=s), "total"
    )
    w = te.reduce_axis((0, chunks), "w")
    combined = compute(
        [rows, columns],
        lambda b, g, r, e: te.sum(
            parts[b, g, w, r, e // lanes, e % lanes] * scales[b, g, r, w], axis=w
        ),
        "combined",
    )

    def normalized(b: Any, h: Any, m: Any, e: Any) -> Any:
        g, r = h // (rows // queries), h % (rows // queries) * queries + m
        value = combined[b, g, r, e] / total[b, g, r]
        zero = tirx.const(0.0, "float32")
        # Also of NaN: then all scores are minus infinity, or one is NaN.
        return tirx.Select(total[b, g, r] > 0, value, zero) if nan_to_zero else value

    heads = groups * rows // queries
    return te.compute(
        [batch, heads, queries, columns], normalized, name="attention", attrs=LEFT_ALONE
    )


def _hiding(steps: Sequence[attention.Step], operands: Sequence[Sequence[Any]]) -> Any:
    """The condition, the same for all heads, without which a key has a score of minus infinity; None if
    there is none. Then a chunk in which no query sees a key need not be read."""
    for step, others in zip(steps, operands, strict=True):
        if step.operator == "where" and step.place == 1 and others[1] == -math.inf:
            shape = [int(n) for n in others[0].shape]
            if len(shape) < 3 or shape[-3] == 1:
                return others[0]
    return None


def _tree(terms: Sequence[Any]) -> Any:
    """Their sum, of halves."""
    if len(terms) == 1:
        return terms[0]
    half = len(terms) // 2
    return _tree(terms[:half]) + _tree(terms[half:])
