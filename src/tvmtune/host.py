"""The plugin host: a backend by name, and what is installed.

Backends are found through the entry-point group ``tvmtune``. Only the one that is asked for is
imported, and each has a plugin manager of its own: a hook call reaches that backend and no other.
"""

from __future__ import annotations

import inspect
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

import pluggy

from tvmtune import hookspecs
from tvmtune.errors import TvmtuneError, UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np
    import tvm

    from tvmtune.types import BuilderSpec, Device, Network, Prepared, RunnerSpec, Task, Trial

GROUP = "tvmtune"

HOOKS = (
    "make_target",
    "hardware_params",
    "prepare",
    "extract_tasks",
    "make_builder",
    "make_runner",
    "lower",
    "export_lib",
    "serve_init",
)
OPTIONAL = ("serve_init",)
"""Hooks that a backend may leave out: only accelerators need it."""


@dataclass(frozen=True)
class PluginInfo:
    """One installed plugin, sound or broken."""

    names: tuple[str, ...]
    """The backend's name and its aliases."""
    distribution: str
    version: str
    module: str
    hooks: tuple[str, ...]
    """Hooks that it implements, in the order of :data:`HOOKS`; empty if it is broken."""
    error: str | None
    """Why it cannot be used, or None."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Backend:
    """The hooks of one backend, callable as methods.

    A hook that fails raises TvmtuneError naming the backend and the hook, the cause attached; a
    TvmtuneError of the backend's own passes through.
    """

    def __init__(
        self, name: str, plugin: object, distribution: str = "", version: str = ""
    ) -> None:
        """Check and register ``plugin``, a module or an object that carries hook implementations.

        Raises TvmtuneError if it implements something that is no hook, takes arguments that a hook
        does not have, or lacks a hook that is not optional.
        """
        self.name = name
        self.distribution = distribution
        self.version = version
        self._manager = pluggy.PluginManager(GROUP)
        self._manager.add_hookspecs(hookspecs)
        self.hooks = self._register(plugin)

    def __repr__(self) -> str:
        return f"<Backend {self.label}>"

    @property
    def label(self) -> str:
        """The backend and where it comes from, for messages."""
        origin = f"{self.distribution} {self.version}".strip()
        return f"'{self.name}' ({origin})" if origin else f"'{self.name}'"

    def make_target(self, attrs: dict[str, Any] | None = None, remote: str | None = None) -> Device:
        device: Device = self._call("make_target", name=self.name, attrs=attrs or {}, remote=remote)
        return device

    def hardware_params(self, device: Device) -> dict[str, Any]:
        params: dict[str, Any] = self._call("hardware_params", device=device)
        return params

    @property
    def calibrates(self) -> bool:
        """Whether it computes in whole numbers where it is asked to."""
        (hook,) = self._manager.hook.prepare.get_hookimpls()
        return "calibration" in hook.argnames

    def prepare(
        self,
        network: Network,
        device: Device,
        layout: str | None = None,
        calibration: Mapping[str, np.ndarray] | None = None,
    ) -> Prepared:
        """Raises UsageError if ``calibration`` is given to a backend that has no use for it."""
        if calibration is not None and not self.calibrates:
            raise UsageError(
                f"backend '{self.name}' computes as the network says and takes no calibration data: "
                "leave --calibration away."
            )
        prepared: Prepared = self._call(
            "prepare", network=network, device=device, layout=layout, calibration=calibration
        )
        return prepared

    def extract_tasks(self, prepared: Prepared, device: Device) -> list[Task]:
        tasks: list[Task] = self._call("extract_tasks", prepared=prepared, device=device)
        return tasks

    def make_builder(self, device: Device) -> BuilderSpec:
        spec: BuilderSpec = self._call("make_builder", device=device)
        return spec

    def make_runner(self, device: Device) -> RunnerSpec:
        spec: RunnerSpec = self._call("make_runner", device=device)
        return spec

    def lower(self, prepared: Prepared, chosen: dict[str, Trial], device: Device) -> tvm.IRModule:
        return self._call("lower", prepared=prepared, chosen=chosen, device=device)

    def export_lib(self, lowered: tvm.IRModule, device: Device, path: Path) -> Path:
        written: Path = self._call("export_lib", lowered=lowered, device=device, path=path)
        return written

    def serve_init(self, options: dict[str, Any] | None = None) -> None:
        """Does nothing where the backend has nothing to prepare."""
        self._call("serve_init", options=options or {})

    def _register(self, plugin: object) -> tuple[str, ...]:
        try:
            self._manager.register(plugin, self.name)
        except (pluggy.PluginValidationError, ValueError, TypeError) as exc:
            raise TvmtuneError(f"backend {self.label} is refused: {_flat(exc)}") from exc
        callers = self._manager.get_hookcallers(plugin) or []
        found = [caller.name for caller in callers]
        unknown = sorted(set(found) - set(HOOKS))
        if unknown:
            raise TvmtuneError(
                f"backend {self.label} is refused: '{unknown[0]}' is not a hook."
                f"{nearest(unknown[0], list(HOOKS))}"
            )
        missing = [hook for hook in HOOKS if hook not in found and hook not in OPTIONAL]
        if missing:
            unmarked = [hook for hook in missing if callable(getattr(plugin, hook, None))]
            hint = f" ({', '.join(unmarked)}: there, but without @hookimpl)" if unmarked else ""
            raise TvmtuneError(f"backend {self.label} is refused: it lacks {_hooks(missing)}{hint}")
        return tuple(hook for hook in HOOKS if hook in found)

    def _call(self, hook: str, **arguments: Any) -> Any:
        try:
            result = getattr(self._manager.hook, hook)(**arguments)
        except TvmtuneError:
            raise
        except Exception as exc:
            raise TvmtuneError(f"backend {self.label} failed in {hook}: {_brief(exc)}") from exc
        if result is None and hook not in OPTIONAL:
            raise TvmtuneError(f"backend {self.label} returned nothing from {hook}")
        return result


@cache
def backend(name: str) -> Backend:
    """Load the backend called ``name`` and nothing else.

    Raises UsageError if no plugin has that name, TvmtuneError if its plugin is broken or if two
    distributions claim the name.
    """
    found, _ = _discover()
    sources = [source for source in found if source.name == name]
    if not sources:
        known = sorted({source.name for source in found})
        if not known:
            raise UsageError(
                f"backend '{name}' is not known: no backend is installed. Backends are found "
                "through entry points, so tvmtune has to be installed (pip install -e . in its "
                "checkout), not only be on the path."
            )
        raise UsageError(f"backend '{name}' is not known.{nearest(name, known)}")
    _refuse_rivals(sources)
    return sources[0].load()


def names() -> list[str]:
    """What ``--target`` takes, sorted; no plugin is imported."""
    return sorted({source.name for source in _discover()[0]})


def installed() -> list[PluginInfo]:
    """Every installed plugin, aliases joined, in alphabetical order; broken ones say why.

    All of them are imported. Never raises.
    """
    found, infos = _discover()
    by_name: dict[str, list[_Source]] = {}
    by_module: dict[tuple[str, str], list[_Source]] = {}
    for source in found:
        by_name.setdefault(source.name, []).append(source)
        by_module.setdefault((source.distribution, source.entry.value), []).append(source)
    for sources in by_module.values():
        first = sources[0]
        hooks: tuple[str, ...] = ()
        error = None
        try:
            for source in sources:
                _refuse_rivals(by_name[source.name])
            hooks = first.load().hooks
        except TvmtuneError as exc:
            error = str(exc)
        names = tuple(sorted(source.name for source in sources))
        infos.append(
            PluginInfo(names, first.distribution, first.version, first.entry.value, hooks, error)
        )
    return sorted(infos, key=lambda info: (info.names, info.distribution))


@dataclass(frozen=True)
class _Source:
    """An entry point and the distribution that declares it."""

    entry: metadata.EntryPoint
    distribution: str
    version: str

    @property
    def name(self) -> str:
        return self.entry.name

    def load(self) -> Backend:
        label = f"'{self.name}' ({self.distribution} {self.version})"
        try:
            plugin = self.entry.load()
        except ModuleNotFoundError as exc:
            if exc.name is None or exc.name.split(".")[0] != self.entry.module.split(".")[0]:
                raise TvmtuneError(f"backend {label} cannot be loaded: {_brief(exc)}") from exc
            raise TvmtuneError(
                f"backend {label} cannot be loaded: its module '{self.entry.module}' is not there. "
                f"Install {self.distribution} again."
            ) from exc
        except (Exception, SystemExit) as exc:
            raise TvmtuneError(f"backend {label} cannot be loaded: {_brief(exc)}") from exc
        if inspect.isclass(plugin):
            raise TvmtuneError(
                f"backend {label} is refused: its entry point is a class, not a module or object"
            )
        return Backend(self.name, plugin, self.distribution, self.version)


def _discover() -> tuple[list[_Source], list[PluginInfo]]:
    """The entry points of the group, and the distributions whose entry points cannot be read.

    Distributions are read one at a time, so that a damaged one does no harm to the others.
    """
    found: list[_Source] = []
    broken: list[PluginInfo] = []
    seen: set[str] = set()
    for dist in metadata.distributions():
        try:
            text = dist.read_text("entry_points.txt") or ""
        except (OSError, UnicodeDecodeError):
            continue
        if f"[{GROUP}]" not in text:
            continue
        name, version = _identity(dist)
        # The same distribution may be on the path twice: what Python would import first counts.
        key = name.lower().replace("_", "-").replace(".", "-")
        if key in seen:
            continue
        seen.add(key)
        try:
            entries = list(dist.entry_points.select(group=GROUP))
        except Exception as exc:
            error = f"the entry points of {name} {version} cannot be read: {_brief(exc)}"
            broken.append(PluginInfo((), name, version, "", (), error))
            continue
        found += [_Source(entry, name, version) for entry in entries]
    return found, broken


def _identity(dist: metadata.Distribution) -> tuple[str, str]:
    try:
        return dist.metadata["Name"] or "unnamed", dist.version or "of no version"
    except Exception:  # metadata that cannot be read: importlib raises various things
        return "unnamed", "of no version"


def _refuse_rivals(sources: list[_Source]) -> None:
    if len(sources) > 1:
        names = " and ".join(f"{source.distribution} {source.version}" for source in sources)
        raise TvmtuneError(
            f"backend '{sources[0].name}' is registered by {names}: uninstall one of them"
        )


def _hooks(names: list[str]) -> str:
    return f"the hook{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _brief(exc: BaseException) -> str:
    """The exception's type and the first line of its text."""
    lines = str(exc).strip().splitlines()
    return f"{type(exc).__name__}: {lines[0]}" if lines else type(exc).__name__


def _flat(exc: BaseException) -> str:
    return " ".join(str(exc).split())
