"""Compile a lowered module and link it into a library on disk."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmtune.atomic_write import replacing
from tvmtune.errors import TvmtuneError, last_line
from tvmtune.library import embedded_weights
from tvmtune.operators import vector_math
from tvmtune.passes.call_sites import without_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import tvm

    from tvmtune.types import Device


def export_lib(
    lowered: tvm.IRModule,
    device: Device,
    path: Path,
    change: embedded_weights.ProgramChange | None = None,
) -> Path:
    """Compile the lowered network and link it into the library at ``path``.

    ``lowered`` holds scheduled PrimFuncs and the Relax function ``main`` that calls them; if its
    weights exceed 256 MB, it loses them. An existing library is replaced when the new one is
    complete. ``change`` is for :func:`tvmtune.library.embedded_weights.write_object`. Raises
    TvmtuneError if there is no linker, the module cannot be compiled, or the file cannot be written.
    """
    from tvmtune.machine import linkers

    linker = linkers.find_linker(device.mtriple)
    with replacing(path) as temporary:
        splits = embedded_weights.can_write_objects(device.mtriple)
        if change is not None and not splits:
            raise TvmtuneError(
                f"libraries for {device.model} can only be made for Linux on x86-64 and 64-bit ARM."
            )
        module, weights = embedded_weights.take_weights(lowered) if splits else (lowered, [])
        executable = build(module, device)
        written: list[int] = []

        def pack(library: Any, system_library: bool, prefix: str, workspace: str) -> str:
            packed = Path(workspace) / "devc.o"
            like = Path(workspace) / "lib0.o"
            written.append(embedded_weights.write_object(library, weights, like, packed, change))
            return str(packed)

        with _objects_in_memory() as (folder, inherited):

            def link(output: str, objects: Sequence[str], **_: Any) -> None:
                _link([*linker, "-shared", "-o", output, *objects], inherited, path)

            try:
                executable.mod.export_library(
                    str(temporary),
                    fcompile=link,
                    fpack_imports=pack if splits else None,
                    workspace_dir=str(folder),
                )
                if written and embedded_weights.read_crc(temporary) != written[0]:
                    raise TvmtuneError(f"cannot write {path}: the linker changed the weights")
            except (NotImplementedError, RecursionError):
                raise  # these RuntimeErrors are bugs
            except (OSError, RuntimeError) as exc:  # TVM's errors are RuntimeErrors
                raise TvmtuneError(f"cannot write {path}: {_first_line(exc)}") from exc
    return Path(path)


def build(lowered: tvm.IRModule, device: Device) -> tvm.runtime.Executable:
    """Compile for the VM and write nothing. Raises TvmtuneError if that fails."""
    import tvm

    try:
        return tvm.compile(
            lowered,
            tvm.target.Target(device.target),
            relax_pipeline=tvm.transform.Sequential(_passes()),
            tir_pipeline=vector_math.pipeline_for(device.target),
        )
    except Exception as exc:
        missing = without_kernel(lowered)
        why = f"no kernel for {', '.join(missing)}: " if missing else ""
        raise TvmtuneError(f"the network cannot be compiled: {why}{last_line(exc)}") from exc


def _passes() -> list[Any]:
    """The passes of TVM's default pipeline that a lowered module still needs.

    Left out: LegalizeOps, because an operator without a kernel would silently become naive loops
    (without the pass the compilation fails and names it), the dispatch of sampling and sorting,
    which belongs to it, and ComputePrimValue, which serves symbolic shapes. For static networks the
    instructions are the same as those of the default pipeline. RewriteCUDAGraph does nothing unless
    the PassContext has ``relax.backend.use_cuda_graph``.

    Memory is planned at compile time; the VM takes it from a pool on every run. Its own work is
    small: 2.1 us a run for a network of 4 kernels, 6.2 us for one of 14 (kernels of a microsecond
    or less included), called from Python.
    """
    from tvm import relax

    return [
        relax.transform.RewriteDataflowReshape(),
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        relax.transform.StaticPlanBlockMemory(),
        relax.transform.RewriteCUDAGraph(),
        relax.transform.LowerAllocTensor(),
        relax.transform.KillAfterLastUse(),
        relax.transform.LowerRuntimeBuiltin(),
        relax.transform.VMShapeLower(),
        relax.transform.AttachGlobalSymbol(),
    ]


@contextlib.contextmanager
def _objects_in_memory() -> Iterator[tuple[Path, list[int]]]:
    """A folder in which TVM's object files are links to memory, and the files that they link to.

    LLVM ends the process, without an exception, if the disk is full while it writes an object file.
    In memory that cannot happen, and a linker that finds the disk full merely fails.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix=f"tvmtune-{os.getpid()}-"))
        )
        files: list[int] = []
        if hasattr(os, "memfd_create"):
            # The names that export_library uses. Any other becomes a plain file.
            for name in ("lib0.o", "lib1.o", "devc.o"):
                file = os.memfd_create(name)
                stack.callback(os.close, file)
                (folder / name).symlink_to(f"/proc/self/fd/{file}")
                files.append(file)
        yield folder, files


def _link(command: list[str], inherited: Sequence[int], path: Path) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", pass_fds=inherited
        )
    except OSError as exc:
        raise TvmtuneError(f"the linker {command[0]} cannot be run: {exc.strerror}") from exc
    if done.returncode != 0:
        complaint = (done.stderr.strip() or done.stdout.strip()).splitlines()
        why = complaint[-1] if complaint else f"exit status {done.returncode}"
        if _is_full(path.parent, command):
            why = os.strerror(errno.ENOSPC)  # lld maps its output into memory, and crashes here
        raise TvmtuneError(f"cannot write {path}: {why}")


def _is_full(folder: Path, command: Sequence[str]) -> bool:
    """Whether the folder's disk has no room for the object files in a linker's command."""
    with contextlib.suppress(OSError):
        objects = sum(Path(word).stat().st_size for word in command if word.endswith(".o"))
        return shutil.disk_usage(folder).free < objects
    return False


def _first_line(exc: Exception) -> str:
    return next(iter(str(exc).splitlines()), type(exc).__name__)
