"""Legalization of cumulative operators and sorts, which TVM does in another pass.

Their kernels are hand-written loops that no schedule applies to; those for GPUs launch their own
threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmtune.passes.cpu_threads import cpu_threads
from tvmtune.types import product

_FEW = 64
"""Elements that are kept by insertion; TVM sorts all, in one thread."""


def _topi_function(name: str) -> Any:
    """TOPI's function of this name for the current target."""
    from tvm import topi

    return getattr(topi.gpu if _is_gpu() else topi, name)


def _is_gpu() -> bool:
    import tvm

    target = tvm.target.Target.current()
    return target is not None and "gpu" in target.keys


def _cumulative(name: str) -> Any:
    def legalize(builder: Any, call: Any) -> Any:
        axis, kind = call.attrs.axis, call.attrs.dtype
        return builder.call_te(
            _topi_function(name),
            call.args[0],
            None if axis is None else int(axis),
            str(kind) if kind else None,
            bool(call.attrs.exclusive),
            primfunc_name_hint=name,
        )

    return legalize


def _topk(builder: Any, call: Any) -> Any:
    attrs = call.attrs
    return builder.call_te(
        _topi_function("topk"),
        call.args[0],
        k=int(attrs.k),
        axis=int(attrs.axis),
        ret_type=str(attrs.ret_type),
        is_ascend=not bool(attrs.largest),
        dtype=str(attrs.dtype),
        primfunc_name_hint="topk",
    )


def _topk_on_cpu(builder: Any, call: Any) -> Any:
    attrs = call.attrs
    extents = [int(extent) for extent in call.args[0].ty.shape]
    axis, count = int(attrs.axis) % len(extents), int(attrs.k)
    if str(attrs.ret_type) != "both" or not 1 <= count <= min(_FEW, extents[axis]):
        return _topk(builder, call)
    return builder.call_te(
        largest if attrs.largest else smallest,
        *(call.args[0], count, axis, str(attrs.dtype)),
        primfunc_name_hint="topk",
    )


def largest(data: Any, count: int, axis: int, dtype: str) -> list[Any]:
    """In TE, the ``count`` largest elements along an axis, in falling order, and their indices. Of
    equal elements the first comes first; NaN is larger than any number, as in ONNX Runtime and
    PyTorch."""
    return _inserted(data, count, axis, dtype, lambda new, old: (new, old))


def smallest(data: Any, count: int, axis: int, dtype: str) -> list[Any]:
    """As :func:`largest`, the smallest in rising order."""
    return _inserted(data, count, axis, dtype, lambda new, old: (old, new))


def _inserted(
    data: Any, count: int, axis: int, dtype: str, ordered: Callable[[Any, Any], tuple[Any, Any]]
) -> list[Any]:
    """Each element that precedes the last one so far is inserted into its place: the larger one of
    ``ordered(new, old)`` comes first."""
    from tvm import te, tirx
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as T

    shape = [int(extent) for extent in data.shape]
    extent, after = shape[axis], product(shape[axis + 1 :])
    rows = product(shape) // extent
    is_float = "float" in str(data.dtype)

    def precedes(new: Any, old: Any) -> Any:
        one, other = ordered(new, old)
        if not is_float:
            return one > other
        return tirx.any(one > other, tirx.all(tirx.isnan(one), tirx.Not(tirx.isnan(other))))

    results = [*shape[:axis], count, *shape[axis + 1 :]]

    def loops(source: Any, *outputs: Any) -> Any:
        x, values, places = (T.buffer_proxy(each) for each in (source, *outputs))
        shares = T.parallel(rows) if cpu_threads(rows * extent) > 1 else T.serial(rows)
        with IRBuilder() as builder, shares as row:
            first, kept = (row // after * n * after + row % after for n in (extent, count))
            slot = T.buffer_proxy(T.alloc_buffer((1,), "int32", scope="local"))
            with T.serial(extent) as i:
                new = x[first + i * after]
                last = values[kept + (count - 1) * after]
                with T.If(tirx.any(i < count, precedes(new, last))), T.Then():
                    slot[0] = tirx.min(i, count - 1)
                    # Both sides of "and" are evaluated.
                    before = kept + tirx.max(slot[0] - 1, 0) * after
                    with T.While(tirx.all(slot[0] > 0, precedes(new, values[before]))):
                        values[before + after] = values[before]
                        places[before + after] = places[before]
                        slot[0] = slot[0] - 1
                    values[kept + slot[0] * after] = new
                    places[kept + slot[0] * after] = i.astype(dtype)
        return builder.get()

    buffers = [
        tirx.decl_buffer(results, kind, name, layout=None)
        for kind, name in ((data.dtype, "values"), (dtype, "places"))
    ]
    return list(
        te.extern(
            [results, results],
            [data],
            lambda inputs, outputs: loops(inputs[0], *outputs),
            out_buffers=buffers,
            name="topk",
            tag="topk",
        )
    )


def _sort(builder: Any, call: Any) -> Any:
    ascending = not bool(call.attrs.descending)
    return builder.call_te(
        _topi_function("sort"),
        call.args[0],
        int(call.attrs.axis),
        ascending,
        primfunc_name_hint="sort",
    )


def _argsort(builder: Any, call: Any) -> Any:
    attrs = call.attrs
    return builder.call_te(
        _topi_function("argsort"),
        call.args[0],
        axis=int(attrs.axis),
        is_ascend=not bool(attrs.descending),
        dtype=str(attrs.dtype),
        primfunc_name_hint="argsort",
    )


LEGALIZERS = {
    "relax.argsort": _argsort,
    "relax.cumprod": _cumulative("cumprod"),
    "relax.cumsum": _cumulative("cumsum"),
    "relax.sort": _sort,
    "relax.topk": _topk,
}
"""Legalizers by operator, as ``relax.transform.LegalizeOps`` takes them."""

CPU_LEGALIZERS = {"relax.topk": _topk_on_cpu}
"""Those that differ for CPUs."""
