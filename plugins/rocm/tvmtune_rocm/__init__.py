"""The rocm backend: code for AMD's GPUs, by LLVM. TVM's wheel has no runtime for them: what it compiles
runs in a TVM that was built with ROCm."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmtune.hookspecs import hookimpl
from tvmtune.types import BuilderSpec, Device, Network, Prepared, RunnerSpec, Task, Trial

if TYPE_CHECKING:
    import tvm


@hookimpl
def make_target(name: str, attrs: dict[str, Any], remote: str | None) -> Device:
    from tvmtune_rocm import quiet
    from tvmtune_rocm.target import describe_device

    with quiet.warnings():
        return describe_device(attrs, remote)


@hookimpl
def hardware_params(device: Device) -> dict[str, Any]:
    return dict(device.params)


@hookimpl
def prepare(network: Network, device: Device, layout: str | None) -> Prepared:
    from tvmtune.graph.pipeline import prepare
    from tvmtune_rocm import quiet

    with quiet.warnings():
        return prepare(network, device, layout or "NHWC")


@hookimpl
def extract_tasks(prepared: Prepared, device: Device) -> list[Task]:
    from tvmtune.graph import gpu_spaces
    from tvmtune.graph.tasks import extract_tasks
    from tvmtune_rocm import quiet

    with quiet.warnings():
        return extract_tasks(
            prepared,
            device,
            lambda mod: gpu_spaces.space(mod, device),
            gpu_spaces.further(device),
        )


@hookimpl
def make_builder(device: Device) -> BuilderSpec:
    from dataclasses import replace

    from tvmtune.measure import specs
    from tvmtune_rocm import toolchain

    spec = specs.builder(device)
    options = {**spec.options, "tools": toolchain.find(str(device.target["mcpu"])).to_json()}
    return replace(spec, init="tvmtune_rocm.toolchain:init", options=options)


@hookimpl
def make_runner(device: Device) -> RunnerSpec:
    from tvmtune.measure import specs

    return specs.runner(device)


@hookimpl
def lower(prepared: Prepared, chosen: dict[str, Trial], device: Device) -> tvm.IRModule:
    from tvmtune.graph import gpu_spaces
    from tvmtune.graph.lower import lower
    from tvmtune_rocm import quiet

    with quiet.warnings():
        return lower(prepared, chosen, device, lambda mod: gpu_spaces.space(mod, device))


@hookimpl
def export_lib(lowered: tvm.IRModule, device: Device, path: Path) -> Path:
    from tvmtune.deploy.export import export_lib
    from tvmtune_rocm import quiet, toolchain

    toolchain.find(str(device.target["mcpu"])).register()
    with quiet.warnings():
        return export_lib(lowered, device, path)


@hookimpl
def serve_init(options: dict[str, Any]) -> None:
    from tvmtune_rocm import target

    target.check_runtime()
