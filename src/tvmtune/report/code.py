"""What the best schedules are: trace, scheduled TensorIR, and the code that TVM generates from it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvmtune.errors import last_line
from tvmtune.machine import parallel
from tvmtune.records.schema import workload_module
from tvmtune.report.summary import Section, TaskSummary
from tvmtune.types import Trial

if TYPE_CHECKING:
    import tvm

LONGEST = 400_000
"""Characters of one text; of a longer one the page has the beginning."""

_FOR_DEBUGGERS = re.compile(
    r"^(\s*\.(cfi_|loc|file|ident).*|\.Ltmp\d+:|\.Lfunc_\w+:)\n", re.MULTILINE
)
_SOURCES = {"c": "C", "cl": "OpenCL C", "cu": "CUDA C++", "ll": "LLVM IR", "s": "assembly"}


@dataclass(frozen=True)
class Code:
    """The texts of one trial; one that could not be made is missing, and ``problem`` says why."""

    trace: str = ""
    tir: str = ""
    generated: str = ""
    language: str = ""
    """Of ``generated``."""
    problem: str = ""


def of_tasks(section: Section, tasks: Sequence[TaskSummary]) -> list[Code]:
    """The code of the trial that compile takes for each task; empty for a task without one."""
    from tvmtune.spaces import rules, tensor_intrinsics

    rules.register()  # before there are threads
    for task in tasks:
        with contextlib.suppress(Exception):  # a log may hold anything; generate reports it
            if task.shipped is not None:
                tensor_intrinsics.load_named(task.shipped.trace[0])

    def made(task: TaskSummary) -> Code:
        return Code() if task.shipped is None else generate(section, task, task.shipped)

    on_cpu = section.device["target"].get("kind") == "llvm"
    return parallel.each(made, tasks, "generating code", threads=None if on_cpu else 1)


def generate(section: Section, task: TaskSummary, trial: Trial) -> Code:
    """Replay the trial's trace on its workload and compile the result for the log's target."""
    stored = workload_module(task.line, trial.implementation)
    if not stored:
        return Code(problem="the log does not hold the workload")
    import tvm

    from tvmtune.spaces import traces

    made: dict[str, str] = {}
    try:
        scheduled = traces.apply(traces.load_module(stored), trial.trace)
        made["trace"] = _cut("\n".join(map(str, scheduled.trace.as_python())))
        made["tir"] = _cut(scheduled.mod["main"].script(show_meta=False))
        target = tvm.target.Target(section.device["target"])
        made["generated"], made["language"] = _source(scheduled.mod, target)
    except Exception as error:  # a log may hold anything, and a target may have no compiler here
        return Code(**made, problem=last_line(error))
    return Code(**made)


def _source(mod: tvm.IRModule, target: tvm.target.Target) -> tuple[str, str]:
    """The generated code and its language: a device's kernels, or the CPU's assembly."""
    import tvm

    from tvmtune.operators import cpu_pipeline

    pipeline = cpu_pipeline.pipeline_for(target.export())
    compiled: Any = tvm.compile(mod, target, tir_pipeline=pipeline)
    for module in _modules(compiled.mod):
        if module.kind in ("llvm", "c"):
            continue
        for form in ("", *_SOURCES):
            text = _inspected(module, form)
            if text:
                return _cut(text), _SOURCES.get(form, module.kind)
    return _cut(_readable(_inspected(compiled.mod, "asm"))), "assembly"


def _readable(assembly: str) -> str:
    """Without what is for debuggers and stack unwinders, which is most of it."""
    code = re.split(r"^\s*\.section\s+\.debug", assembly, maxsplit=1, flags=re.MULTILINE)[0]
    return _FOR_DEBUGGERS.sub("", code)


def _modules(module: Any) -> Iterator[Any]:
    yield module
    for each in module.imports:
        yield from _modules(each)


def _inspected(module: Any, form: str) -> str:
    try:
        return str(module.inspect_source(form))
    except Exception:  # not every kind of module has every form
        return ""


def _cut(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    return text[:LONGEST] + f"\n... {len(text) - LONGEST:,} more characters\n"
