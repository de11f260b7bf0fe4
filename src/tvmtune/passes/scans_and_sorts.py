"""Legalization of cumulative operators and sorts, which TVM does in another pass.

Their kernels are hand-written loops that no schedule applies to; those for GPUs launch their own
threads.
"""

from __future__ import annotations

from typing import Any


def _topi_function(name: str) -> Any:
    """TOPI's function of this name for the current target."""
    import tvm
    from tvm import topi

    target = tvm.target.Target.current()
    return getattr(topi.gpu if target and "gpu" in target.keys else topi, name)


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


SCANS_AND_SORTS = {
    "relax.argsort": _argsort,
    "relax.cumprod": _cumulative("cumprod"),
    "relax.cumsum": _cumulative("cumsum"),
    "relax.sort": _sort,
    "relax.topk": _topk,
}
"""Legalizers by operator, as ``relax.transform.LegalizeOps`` takes them."""
