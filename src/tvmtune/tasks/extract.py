"""Split a prepared network into tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvmtune.errors import TvmtuneError
from tvmtune.operators.implementations import DEFAULT, AlgorithmSelection
from tvmtune.passes import call_marks
from tvmtune.passes.bindings import calls_by_operator
from tvmtune.passes.call_sites import CallSite, as_workload, call_sites, without_kernel
from tvmtune.passes.pipeline import legalize
from tvmtune.passes.workload_keys import anchor_key, workload_key
from tvmtune.spaces.rule_space import RuleSpace
from tvmtune.spaces.template_space import TemplateSpace
from tvmtune.types import (
    DIRECT,
    Algorithm,
    Device,
    ExtraSpace,
    Implementation,
    Prepared,
    Space,
    Task,
    Templated,
    TensorSpec,
)

if TYPE_CHECKING:
    import tvm

SpaceFor = Callable[[Any], Space]
TEMPLATE = "template"
"""The direct workload in the space that the network's author wrote for it."""


def extract_tasks(
    prepared: Prepared,
    device: Device,
    space_for: SpaceFor | None = None,
    implementations: Sequence[Algorithm | ExtraSpace] | None = None,
) -> list[Task]:
    """The distinct fused kernels of the network, each with its implementations.

    ``direct`` always comes first. Extra spaces of the same workload follow, then the network author's
    template, then algorithms: each is an implementation of every kernel whose program it changes when
    the whole network is legalized with it. ``space_for`` makes the space of a workload, by default
    TVM's rules for the target; ``implementations`` defaults to Winograd's convolution.

    Raises :class:`TvmtuneError` for an operator without a kernel, a network without kernels, and
    implementations of the same name.
    """
    make = space_for or (lambda mod: RuleSpace(device.target))
    offered = DEFAULT if implementations is None else implementations
    _check_names(offered, device)
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
        raise TvmtuneError(f"{prepared.network.name} has no kernels: there is nothing to compile")
    tasks: dict[str, Task] = {}
    keys: dict[int, str] = {}
    for site in direct:
        mod = as_workload(site.func)
        key = keys[site.index] = workload_key(mod)
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
    for extra in offered:
        if isinstance(extra, ExtraSpace):
            for task in tasks.values():
                mod = task.implementations[0].mod
                if (space := extra.space_for(mod)) is not None:
                    task.implementations.append(Implementation(extra.name, task.key, mod, space))
    prepared.keys = keys  # legalizing a large network takes seconds, and lowering needs the result
    _add_templates(tasks.values(), prepared, device)
    calls = calls_by_operator(prepared.graph)
    for algorithm in offered:
        if not isinstance(algorithm, Algorithm) or algorithm.superseded:
            continue
        changed = changed_workloads(prepared, device, algorithm, keys, calls)
        for task in tasks.values():
            other = changed.get(task.sites[0])
            if other is None:
                continue
            if (space := (algorithm.space_for or make)(other.mod)) is not None:
                task.implementations.append(
                    Implementation(
                        algorithm.name,
                        other.key,
                        other.mod,
                        space,
                        exact=algorithm.exact,
                        preferred=other.preferred,
                    )
                )
    return list(tasks.values())


def _check_names(offered: Sequence[Algorithm | ExtraSpace], device: Device) -> None:
    names = [DIRECT, TEMPLATE, *(each.name for each in offered)]
    for name in names:
        if names.count(name) > 1:
            raise TvmtuneError(
                f"backend '{device.backend}': two implementations are called '{name}'"
            )


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


@dataclass(frozen=True)
class ChangedWorkload:
    """A call's workload if an algorithm computes it."""

    key: str
    mod: tvm.IRModule
    number: int
    """Of the call among those that the algorithm can compute, in the order of the graph."""
    preferred: bool
    """Whether the algorithm prefers itself to the direct one."""


def changed_workloads(
    prepared: Prepared,
    device: Device,
    algorithm: Algorithm,
    keys: Mapping[int, str],
    calls: Mapping[str, Sequence[Any]],
) -> dict[int, ChangedWorkload]:
    """The workloads of the calls that ``algorithm`` computes, by index in program order.

    ``keys``: workload keys of the direct calls, by index. ``calls``: those of the network, by operator.
    Empty if the algorithm changes how the network is fused: its kernels cannot be exchanged one by one
    then. ``prepared`` keeps what lowering needs of it.
    """
    changed = _changed_workloads(prepared, device, algorithm, keys, calls)
    prepared.changed[algorithm.name] = {i: (w.number, w.preferred) for i, w in changed.items()}
    return changed


def _changed_workloads(
    prepared: Prepared,
    device: Device,
    algorithm: Algorithm,
    keys: Mapping[int, str],
    calls: Mapping[str, Sequence[Any]],
) -> dict[int, ChangedWorkload]:
    if not any(algorithm.applies(call) for call in calls.get(algorithm.operator, ())):
        return {}
    selection = AlgorithmSelection([algorithm], values=False)
    sites = call_sites(legalize(prepared.graph, device, selection.legalizers()))
    if len(sites) != len(keys):
        return {}
    changed: dict[int, ChangedWorkload] = {}
    for site in sites:
        number = call_marks.read(site.func)
        mod = as_workload(site.func if number is None else call_marks.remove(site.func))
        if (key := workload_key(mod)) != keys[site.index]:
            if number is None:
                return {}  # an operation moved to a kernel without a replaced call
            preferred = number in selection.preferred[algorithm.name]
            changed[site.index] = ChangedWorkload(key, mod, number, preferred)
    # A call whose program stays the same, or two in one kernel, could not be chosen alone.
    numbers = {each.number for each in changed.values()}
    return changed if numbers == {*range(selection.applicable[algorithm.name])} else {}


def _flop(mod: tvm.IRModule) -> float:
    from tvm.s_tir.analysis import estimate_tir_flops

    return float(estimate_tir_flops(mod))


def _args(site: CallSite) -> tuple[TensorSpec, ...]:
    """The kernel's arguments by its own parameter names."""
    return tuple(
        TensorSpec(str(p.name), tuple(int(d) for d in p.shape), str(p.dtype))
        for p in site.func.params
    )
