"""Build a candidate in a build worker.

Replays its trace, notes its arguments and calls the backend's build function.

The trace is replayed from the JSON that goes into the log, so every timing proves that its record can
be applied again.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from tvmtune.types import TensorSpec

TRACE_NOT_APPLICABLE = "the trace cannot be applied"


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

    ``workload`` is the path of a module's JSON; ``trace`` is None for the unscheduled workload. With
    ``whole`` the kernel takes plain weights and reorders them inside, as verification needs it;
    without, it takes them in the layout that the schedule chose, as in a compiled library. The
    arguments of a whole kernel are :class:`KernelArgument`.
    """
    from tvm.s_tir.meta_schedule.arg_info import ArgInfo
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    from tvmtune.passes.kernel_arguments import kernel_arguments
    from tvmtune.spaces import tensor_intrinsics, traces
    from tvmtune.workers import brief, resolve

    tensor_intrinsics.load_for(str(target["kind"]))
    unscheduled = mod = _workload(workload)
    if trace is not None:
        try:
            mod = traces.apply(mod, trace).mod
        except Exception as error:
            raise SpaceError(f"{TRACE_NOT_APPLICABLE}: {brief(error)}") from None
    infos = ArgInfo.from_entry_func(mod, remove_preproc=not whole)
    if not whole:
        mod = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(mod)
    path = resolve(function)(mod, target, options, directory)
    if whole:
        return path, tuple(kernel_arguments(unscheduled))
    specs = tuple(
        TensorSpec(f"arg{i}", tuple(int(d) for d in info.shape), str(info.dtype))
        for i, info in enumerate(infos)
    )
    return path, specs


@functools.lru_cache(maxsize=64)
def _workload(path: str) -> Any:
    import tvm

    return tvm.ir.load_json(Path(path).read_text())
