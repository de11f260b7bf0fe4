"""Cut a prepared network into tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tvmtune.errors import TvmtuneError
from tvmtune.graph.algorithms import Algorithm, Choice, algorithms_for
from tvmtune.graph.pipeline import legalize
from tvmtune.graph.sites import Site, as_workload, call_sites, without_kernel
from tvmtune.graph.spaces import RuleSpace
from tvmtune.graph.template_space import TemplateSpace
from tvmtune.records.identity import anchor_key, workload_key
from tvmtune.types import Device, Implementation, Prepared, Space, Task, Templated, TensorSpec

if TYPE_CHECKING:
    import tvm

SpaceFor = Callable[[Any], Space]
Spaces = Mapping[str, Callable[[Any], Space | None]]
"""Further spaces by their names, for the workloads that they suit."""
DIRECT = "direct"
TEMPLATE = "template"
"""The direct workload in the space that the network's author made for it."""


def extract_tasks(
    prepared: Prepared,
    device: Device,
    space_for: SpaceFor | None = None,
    further: Spaces | None = None,
) -> list[Task]:
    """The distinct fused kernels of the network, each with its implementations.

    The first implementation is always ``direct``; ``further`` spaces of the same workload follow as
    implementations of those names. Another algorithm counts as an implementation of
    every kernel whose program it changes when the whole network is legalised with it.
    """
    make = space_for or (lambda mod: RuleSpace(device.target))
    program = legalize(prepared.graph, device)
    missing = without_kernel(program)
    if missing:
        raise TvmtuneError(
            f"{prepared.network.name} cannot be compiled: there is no kernel for "
            f"{', '.join(missing)}. Leave that part of the network to the program that uses the "
            "library, or express it by other operators."
        )
    direct = call_sites(program)
    if not direct:
        raise TvmtuneError(
            f"{prepared.network.name} has no kernel at all: there is nothing to compile."
        )
    tasks: dict[str, Task] = {}
    for site in direct:
        mod = as_workload(site.func)
        key = workload_key(mod)
        if key in tasks:
            task = tasks[key]
            task.weight += 1
            task.sites += (site.index,)
            continue
        tasks[key] = Task(
            index=len(tasks),
            name=site.name,
            key=key,
            anchor_key=anchor_key(mod),
            weight=1,
            flop=_flop(mod),
            args=_args(site),
            implementations=[Implementation(DIRECT, key, mod, make(mod))],
            sites=(site.index,),
        )
    for name, space_of in (further or {}).items():
        for task in tasks.values():
            mod = task.implementations[0].mod
            if (space := space_of(mod)) is not None:
                task.implementations.append(Implementation(name, task.key, mod, space))
    _add_templates(tasks.values(), prepared, device)
    for algorithm in algorithms_for(device):
        sites = algorithm_sites(prepared, device, algorithm)
        if len(sites) != len(direct):
            continue  # it changed how the network is fused: its kernels cannot be exchanged
        for task in tasks.values():
            mod = as_workload(sites[task.sites[0]].func)
            key = workload_key(mod)
            if key != task.key:
                task.implementations.append(
                    Implementation(algorithm.name, key, mod, make(mod), exact=algorithm.exact)
                )
    return list(tasks.values())


def _add_templates(tasks: Iterable[Task], prepared: Prepared, device: Device) -> None:
    import tvm

    if not isinstance(prepared.network, Templated):
        return
    target = tvm.target.Target(device.target)
    template = prepared.network.template([str(target.kind.name), *map(str, target.keys)])
    if template is None:
        return
    for task in tasks:
        mod = task.implementations[0].mod
        space = TemplateSpace(template, mod, target)
        task.implementations.append(Implementation(TEMPLATE, task.key, mod, space))


def algorithm_sites(prepared: Prepared, device: Device, algorithm: Algorithm) -> list[Site]:
    """The kernels of the network if the algorithm computes all that it can."""
    choice = Choice([algorithm], values=False)
    return call_sites(legalize(prepared.graph, device, choice.legalizers()))


def _flop(mod: tvm.IRModule) -> float:
    from tvm.s_tir.analysis import estimate_tir_flops

    return float(estimate_tir_flops(mod))


def _args(site: Site) -> tuple[TensorSpec, ...]:
    """The kernel's arguments by its own parameter names."""
    return tuple(
        TensorSpec(str(p.name), tuple(int(d) for d in p.shape), str(p.dtype))
        for p in site.func.params
    )
