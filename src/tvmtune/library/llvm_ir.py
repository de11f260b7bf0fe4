"""Code in LLVM IR, compiled for a library: TVM can do that where users have no compiler."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tvmtune import cpu_features
from tvmtune.library import embedded_weights

if TYPE_CHECKING:
    from tvmtune.types import Device

_POSITION_INDEPENDENT = """
!llvm.module.flags = !{!0, !1}
!0 = !{i32 8, !"PIC Level", i32 2}
!1 = !{i32 7, !"PIE Level", i32 2}
"""


def can_link(device: Device) -> bool:
    """Whether a library for the device has kernels for a CPU, with which such code can be linked."""
    return device.target["kind"] == "llvm" and embedded_weights.can_write_objects(device.mtriple)


def write_filled(source: Path, path: Path, device: Device, **values: object) -> str:
    """Compile the file ``source`` with each ``@NAME@`` replaced by its value; returns ``path``."""
    code = source.read_text()
    for name, value in values.items():
        code = code.replace(f"@{name}@", str(value))
    write_object(code, path, device)
    return str(path)


def write_object(code: str, path: Path, device: Device) -> None:
    """Compile ``code`` for the device's CPU into an object file; the source stays beside it."""
    import tvm

    source = path.with_suffix(".ll")
    triple = cpu_features.triple(device.target)
    source.write_text(f'target triple = "{triple}"\n{code}{_POSITION_INDEPENDENT}')
    tvm.runtime.load_module(str(source)).write_to_file(str(path))
