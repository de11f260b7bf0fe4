"""Scans and sorts, which TVM leaves to a pass of its own default pipeline.

Their kernels are loops of their own making: no schedule applies to them. Those for GPUs launch
their own threads.
"""

from __future__ import annotations

from typing import Any


def _of_the_target(name: str) -> Any:
    """TVM's operator of this name for the target that is being compiled for."""
    import tvm
    from tvm import topi

    target = tvm.target.Target.current()
    return getattr(topi.gpu if target and "gpu" in target.keys else topi, name)


def _cumulate(name: str) -> Any:
    def legalize(builder: Any, call: Any) -> Any:
        axis, kind = call.attrs.axis, call.attrs.dtype
        return builder.call_te(
            _of_the_target(name),
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
        _of_the_target("topk"),
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
        _of_the_target("sort"),
        call.args[0],
        int(call.attrs.axis),
        ascending,
        primfunc_name_hint="sort",
    )


def _argsort(builder: Any, call: Any) -> Any:
    attrs = call.attrs
    return builder.call_te(
        _of_the_target("argsort"),
        call.args[0],
        axis=int(attrs.axis),
        is_ascend=not bool(attrs.descending),
        dtype=str(attrs.dtype),
        primfunc_name_hint="argsort",
    )


SCANS = {
    "relax.argsort": _argsort,
    "relax.cumprod": _cumulate("cumprod"),
    "relax.cumsum": _cumulate("cumsum"),
    "relax.sort": _sort,
    "relax.topk": _topk,
}
"""Legalisers by operator, as ``relax.transform.LegalizeOps`` takes them."""
