"""Huge pages for the weights of a library: ``huge_pages.ll``, compiled and linked with the kernels.

TVM's loader puts weights into ordinary pages, 25,000 for 100 MB. The library's own program asks for
huge ones on its first run, so that they do not depend on who loads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.arrays import nbytes
from tvmtune.library import embedded_weights, llvm_ir

if TYPE_CHECKING:
    import tvm

    from tvmtune.types import Device

NAME = "tvmtune_huge_pages"
"""The function of the library that the program calls with its large weights."""
LARGE = 1 << 19
"""Bytes of a weight from which on it is worth a huge page."""
STATE = 0x7476_6D74_7061_6765
"""The program's constant that tells the function whether it is the first call."""

_SOURCE = Path(__file__).with_suffix(".ll")


def write_object(path: Path, device: Device) -> str:
    """Write the object file of the function; returns its path."""
    return llvm_ir.write_filled(_SOURCE, path, device, NAME=NAME, LARGE=LARGE, STATE=STATE)


def add_call(mod: tvm.IRModule, weights: Sequence[Any]) -> bool:
    """Have ``main`` first call :data:`NAME` with the large ones of its weights; whether there are any.

    ``mod`` is changed, and comes with ``weights`` from
    :func:`tvmtune.library.embedded_weights.take_weights`.
    """
    import tvm
    from tvm import relax

    large = [
        embedded_weights.stand_in(index, relax.TensorType(weight.shape, str(weight.dtype)))
        for index, weight in enumerate(weights)
        if nbytes(weight) >= LARGE
    ]
    if not large:
        return False
    main, nothing = mod["main"], relax.ObjectType()
    # relax.const would make it an int32.
    state = tvm.ir.GenericConst(
        tvm.runtime.tensor(np.array([STATE], "int64")), relax.TensorType([1], "int64")
    )
    call = relax.Call(relax.ExternFunc(NAME), [state, *large], ty_args=[nothing])
    block = relax.BindingBlock([relax.VarBinding(relax.Var("moved", nothing), call)])
    body = relax.SeqExpr([block, *main.body.blocks], main.body.body)
    changed = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    mod.update_func(mod.get_global_var("main"), changed)
    return True
