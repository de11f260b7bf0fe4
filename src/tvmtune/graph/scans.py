"""Scans and sorts, which TVM leaves to a pass of its own default pipeline.

Their kernels are loops of their own making: no schedule applies to them.
"""

from __future__ import annotations

from typing import Any


def _cumulate(name: str) -> Any:
    def legalize(builder: Any, call: Any) -> Any:
        from tvm import topi

        axis, kind = call.attrs.axis, call.attrs.dtype
        return builder.call_te(
            getattr(topi, name),
            call.args[0],
            None if axis is None else int(axis),
            str(kind) if kind else None,
            bool(call.attrs.exclusive),
            primfunc_name_hint=name,
        )

    return legalize


def _topk(builder: Any, call: Any) -> Any:
    from tvm import topi

    attrs = call.attrs
    return builder.call_te(
        topi.topk,
        call.args[0],
        k=int(attrs.k),
        axis=int(attrs.axis),
        ret_type=str(attrs.ret_type),
        is_ascend=not bool(attrs.largest),
        dtype=str(attrs.dtype),
        primfunc_name_hint="topk",
    )


def _sort(builder: Any, call: Any) -> Any:
    from tvm import topi

    ascending = not bool(call.attrs.descending)
    return builder.call_te(
        topi.sort, call.args[0], int(call.attrs.axis), ascending, primfunc_name_hint="sort"
    )


def _argsort(builder: Any, call: Any) -> Any:
    from tvm import topi

    attrs = call.attrs
    return builder.call_te(
        topi.argsort,
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
