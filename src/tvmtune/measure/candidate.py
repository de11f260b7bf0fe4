"""What a build worker does with a candidate: replay its trace, note its arguments, hand it to the
backend's build function. The trace is replayed from the JSON that goes into the log, so that every
timing is proof that its record can be applied again."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from tvmtune.types import TensorSpec

MISFIT = "the trace cannot be applied"


class SpaceError(RuntimeError):
    """The trace does not fit the workload."""


def build(
    workload: str,
    trace: Any,
    whole: bool,
    function: str,
    target: dict[str, Any],
    options: dict[str, Any],
    directory: str,
) -> tuple[str, tuple[TensorSpec, ...]]:
    """Build one candidate in a worker; returns the artifact's path and its arguments.

    ``workload`` is the path of a module's JSON; ``trace`` None means the unscheduled workload. With
    ``whole`` the weights come in plain and are re-ordered inside, as verification wants it; without,
    they come in the order that the schedule chose, as in a compiled library.
    """
    from tvm.s_tir.meta_schedule.arg_info import ArgInfo
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    from tvmtune.graph import intrinsics, traces
    from tvmtune.workers import brief, resolve

    intrinsics.load_for(str(target["kind"]))
    mod = _workload(workload)
    if trace is not None:
        try:
            mod = traces.apply(mod, trace).mod
        except Exception as error:
            raise SpaceError(f"{MISFIT}: {brief(error)}") from None
    infos = ArgInfo.from_entry_func(mod, remove_preproc=not whole)
    if not whole:
        mod = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(mod)
    path = resolve(function)(mod, target, options, directory)
    specs = tuple(
        TensorSpec(f"arg{i}", tuple(int(d) for d in info.shape), str(info.dtype))
        for i, info in enumerate(infos)
    )
    return path, specs


@functools.lru_cache(maxsize=64)
def _workload(path: str) -> Any:
    import tvm

    return tvm.ir.load_json(Path(path).read_text())
