"""Compile a lowered module and link it into a library on disk."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmtune import phases
from tvmtune.atomic_write import replacing
from tvmtune.errors import TvmtuneError, first_line, last_line
from tvmtune.library import (
    embedded_weights,
    huge_pages,
    linking,
    llvm_ir,
    static_library,
    thread_pool,
)
from tvmtune.machine import parallel, scratch
from tvmtune.operators import cpu_pipeline
from tvmtune.passes.call_sites import without_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import tvm

    from tvmtune.types import Device

PARTS = 64
"""Object files, at most, that a network's kernels are spread over: a linker inherits all of them open.
"""


def export_lib(
    lowered: tvm.IRModule,
    device: Device,
    path: Path,
    change: embedded_weights.ProgramChange | None = None,
) -> Path:
    """Compile the lowered network and link it into the library at ``path``.

    ``lowered`` holds scheduled PrimFuncs and the Relax function ``main`` that calls them; if its
    weights exceed 256 MB, it loses them. An existing library is replaced when the new one is
    complete. If ``path`` ends in ``.tar``, the object files are written there instead, to be linked by
    :mod:`tvmtune.library.static_library`. ``change`` is for
    :func:`tvmtune.library.embedded_weights.write_object`. Raises TvmtuneError if there is no linker,
    the module cannot be compiled, or the file cannot be written.
    """
    from tvmtune.machine import linkers

    linker = linkers.find_linker(device.mtriple)
    with replacing(path) as temporary:
        splits = embedded_weights.can_write_objects(device.mtriple)
        if change is not None and not splits:
            raise TvmtuneError(
                f"libraries for {device.model} can only be made for Linux on x86-64 and 64-bit ARM"
            )
        module, weights = embedded_weights.take_weights(lowered) if splits else (lowered, [])
        moves = llvm_ir.can_link(device) and huge_pages.add_call(module, weights)
        written: list[int] = []

        def pack(library: Any, system_library: bool, prefix: str, workspace: str) -> str:
            packed = Path(workspace) / "devc.o"
            like = Path(workspace) / "lib0.o"
            phases.report("writing the library")
            written.append(embedded_weights.write_object(library, weights, like, packed, change))
            return str(packed)

        with _objects_in_memory() as (folder, inherited):
            executable, parts = _build_parts(module, device, folder)
            if thread_pool.is_supported(device):
                parts.append(thread_pool.write_object(folder / "threads.o", device))
            if moves:
                parts.append(huge_pages.write_object(folder / "pages.o", device))

            def link(output: str, objects: Sequence[str], **_: Any) -> None:
                if path.suffix == ".tar":
                    static_library.pack(Path(output), [*map(Path, objects), *map(Path, parts)])
                    return
                command = [*linker, "-shared", "-o", output, *objects, *parts]
                linking.link(command, path, inherited)

            try:
                executable.mod.export_library(
                    str(temporary),
                    fcompile=link,
                    fpack_imports=pack if splits else None,
                    workspace_dir=str(folder),
                )
                is_linked = path.suffix != ".tar"
                if is_linked and written and embedded_weights.read_crc(temporary) != written[0]:
                    raise TvmtuneError(
                        f"cannot write {path}: the linker changed the weights: name another linker in "
                        "TVMTUNE_LINKER"
                    )
            except (NotImplementedError, RecursionError):
                raise  # these RuntimeErrors are bugs
            except (OSError, RuntimeError) as exc:  # TVM's errors are RuntimeErrors
                raise TvmtuneError(f"cannot write {path}: {first_line(exc)}") from exc
    return Path(path)


def build(lowered: tvm.IRModule, device: Device) -> tvm.runtime.Executable:
    """Compile for the VM and write nothing. Raises TvmtuneError if that fails."""
    import tvm

    with _compiling(lowered):
        return tvm.compile(
            lowered,
            tvm.target.Target(device.target),
            relax_pipeline=tvm.transform.Sequential(_passes()),
            tir_pipeline=cpu_pipeline.pipeline_for(device.target),
        )


def _build_parts(
    lowered: tvm.IRModule, device: Device, folder: Path
) -> tuple[tvm.runtime.Executable, list[str]]:
    """As :func:`build`, with the kernels of a CPU in object files of their own, made in parallel.

    Returns the executable and the paths of these files in ``folder``. Which kernels share a file does
    not depend on the number of cores, so the library does not either.
    """
    if not _is_separable(lowered, device):
        phases.report("compiling kernels")
        return build(lowered, device), []
    import tvm
    from tvm import relax
    from tvm.relax import vm_build

    target = tvm.target.Target(device.target)
    with _compiling(lowered):
        with target:
            program = tvm.transform.Sequential(_passes())(lowered)
        builder = relax.ExecBuilder()
        # tvm.compile does the same, but takes the kernels only as one module.
        rest = vm_build._vmcodegen(builder, program)
        # The library needs a place for its kernels in the tree of modules: that of an empty one.
        nothing = tvm.get_global_func("target.build.llvm")(tvm.IRModule({}), target)
        executable = vm_build._vmlink(builder, target, ext_libs=[nothing])
        kernels = [(v, f) for v, f in rest.functions_items() if isinstance(f, tvm.tirx.PrimFunc)]
        pipeline = cpu_pipeline.pipeline_for(device.target)

        def compile_part(part: tuple[int, Sequence[tuple[Any, Any]]]) -> str:
            index, chosen = part
            path = str(folder / f"part{index}.o")
            module = tvm.IRModule(dict(chosen), attrs=rest.attrs)
            tvm.tirx.build(module, target, pipeline=pipeline).write_to_file(path)
            return path

        parts = list(enumerate(parallel.groups(kernels, PARTS)))
        # LLVM's own options are global.
        threads = 1 if "cl-opt" in device.target else None
        paths = parallel.each(
            compile_part,
            parts,
            "compiling kernels",
            threads=threads,
            size=lambda part: len(part[1]),
        )
    return executable, paths


def _is_separable(lowered: tvm.IRModule, device: Device) -> bool:
    """Whether the kernels are all for the CPU, and none calls another."""
    from tvm import ir, tirx
    from tvm_ffi import structural_walk

    if not llvm_ir.can_link(device):
        return False
    kernels = [f for f in lowered.functions.values() if isinstance(f, tirx.PrimFunc)]
    called: list[Any] = []
    for kernel in kernels:
        structural_walk(kernel.body, (ir.GlobalVar, called.append))
    return bool(kernels) and not called


@contextlib.contextmanager
def _compiling(lowered: tvm.IRModule) -> Iterator[None]:
    """Say in one message why a module cannot be compiled."""
    try:
        yield
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
        folder = stack.enter_context(scratch.folder(scratch.WORK))
        files: list[int] = []
        if hasattr(os, "memfd_create"):
            # The names that export_library uses, and our own. Any other becomes a plain file.
            ours = ("threads.o", "pages.o", *(f"part{i}.o" for i in range(PARTS)))
            for name in ("lib0.o", "lib1.o", "devc.o", *ours):
                file = os.memfd_create(name)
                stack.callback(os.close, file)
                (folder / name).symlink_to(f"/proc/self/fd/{file}")
                files.append(file)
        yield folder, files
