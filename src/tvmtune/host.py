"""The plugin host: loads a backend by name and lists the installed ones.

Backends are found through the entry-point group ``tvmtune``. Only the requested one is imported, and
each has its own plugin manager: a hook call reaches that backend alone.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

import pluggy

from tvmtune import hookspecs
from tvmtune.errors import TvmtuneError, UsageError, nearest
from tvmtune.types import Algorithm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    import tvm

    from tvmtune.types import Device, ExtraSpace, Network, Prepared, Task, Trial

GROUP = "tvmtune"

_SPECS = {name: value for name, value in vars(hookspecs).items() if hasattr(value, "tvmtune_spec")}
HOOKS = tuple(_SPECS)
"""All hooks, in the order of :mod:`tvmtune.hookspecs`."""
OPTIONAL = tuple(name for name, spec in _SPECS.items() if getattr(spec, "optional", False))
"""Hooks that a backend may omit."""


@dataclass(frozen=True)
class PluginInfo:
    """One installed plugin, working or broken."""

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
    """One backend; its hooks are methods of the same names and arguments.

    Only hooks to which the host adds something are written out here. A failing hook raises
    TvmtuneError that names the backend and the hook, with the cause attached; the backend's own
    TvmtuneErrors pass through.
    """

    def __init__(
        self, name: str, plugin: object, distribution: str = "", version: str = ""
    ) -> None:
        """Check and register ``plugin``, a module or an object with hook implementations.

        Raises TvmtuneError for an unknown hook, an argument that a hook does not have, or a missing
        required hook.
        """
        self.name = name
        self.distribution = distribution
        self.version = version
        self._manager = pluggy.PluginManager(GROUP)
        self._manager.add_hookspecs(hookspecs)
        self.hooks = self._register(plugin)

    def __repr__(self) -> str:
        return f"<Backend {self.label}>"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in _SPECS:
            raise AttributeError(f"a backend has no hook '{name}'")
        return functools.partial(self._call, name)

    @property
    def label(self) -> str:
        """The backend and its distribution, for messages."""
        origin = f"{self.distribution} {self.version}".strip()
        return f"'{self.name}' ({origin})" if origin else f"'{self.name}'"

    @property
    def calibrates(self) -> bool:
        """Whether it can compute in int8, and so takes calibration data."""
        (hook,) = self._manager.hook.prepare.get_hookimpls()
        return "calibration" in hook.argnames

    def make_target(self, attrs: dict[str, Any] | None = None, remote: str | None = None) -> Device:
        device: Device = self._call("make_target", self.name, attrs or {}, remote)
        return device

    def prepare(
        self,
        network: Network,
        device: Device,
        layout: str | None = None,
        calibration: Mapping[str, np.ndarray] | None = None,
    ) -> Prepared:
        """Raises UsageError if the backend takes no calibration data and there are some."""
        if calibration is not None and not self.calibrates:
            raise UsageError(
                f"backend '{self.name}' takes no calibration data, because it does not quantize: "
                "omit --calibration"
            )
        prepared: Prepared = self._call("prepare", network, device, layout, calibration)
        return prepared

    def implementations(self, device: Device) -> Sequence[Algorithm | ExtraSpace] | None:
        """None if the backend omits the hook."""
        made: Sequence[Algorithm | ExtraSpace] | None = self._call("implementations", device)
        return made

    def extract_tasks(self, prepared: Prepared, device: Device) -> list[Task]:
        tasks: list[Task] = self._call(
            "extract_tasks", prepared, device, self.implementations(device)
        )
        return tasks

    def lower(
        self,
        prepared: Prepared,
        chosen: dict[str, Trial],
        device: Device,
        *,
        exact_defaults: bool = True,
    ) -> tvm.IRModule:
        """With ``exact_defaults``, tasks without a record get no algorithm that is not exact."""
        offered = self.implementations(device)
        if offered is not None and exact_defaults:
            offered = [
                replace(each, prefers=None)
                if isinstance(each, Algorithm) and not each.exact
                else each
                for each in offered
            ]
        return self._call("lower", prepared, chosen, device, offered)

    def serve_init(self, options: dict[str, Any] | None = None) -> None:
        """Does nothing if the backend has nothing to prepare."""
        self._call("serve_init", options or {})

    def _register(self, plugin: object) -> tuple[str, ...]:
        try:
            self._manager.register(plugin, self.name)
        except (pluggy.PluginValidationError, ValueError, TypeError) as exc:
            raise TvmtuneError(f"backend {self.label} is refused: {_flat(exc)}") from exc
        callers = self._manager.get_hookcallers(plugin) or []
        implemented = [caller.name for caller in callers]
        unknown = sorted(set(implemented) - set(HOOKS))
        if unknown:
            raise TvmtuneError(
                f"backend {self.label} is refused: '{unknown[0]}' is not a hook."
                f"{nearest(unknown[0], list(HOOKS))}"
            )
        missing = [hook for hook in HOOKS if hook not in implemented and hook not in OPTIONAL]
        if missing:
            unmarked = [hook for hook in missing if callable(getattr(plugin, hook, None))]
            hint = f" ({', '.join(unmarked)}: there, but without @hookimpl)" if unmarked else ""
            raise TvmtuneError(f"backend {self.label} is refused: it lacks {_hooks(missing)}{hint}")
        return tuple(hook for hook in HOOKS if hook in implemented)

    def _call(self, hook: str, *arguments: Any, **named: Any) -> Any:
        bound = inspect.signature(_SPECS[hook]).bind(*arguments, **named)
        try:
            result = getattr(self._manager.hook, hook)(**bound.arguments)
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
    distributions register the name.
    """
    available, _ = _discover()
    sources = [source for source in available if source.name == name]
    if not sources:
        known = sorted({source.name for source in available})
        if not known:
            raise UsageError(
                f"backend '{name}' is not known: no backend is installed. Backends are found "
                "through entry points: install tvmtune (pip install -e . in its checkout); a path "
                "to its sources is not enough."
            )
        raise UsageError(f"backend '{name}' is not known.{nearest(name, known)}")
    _refuse_duplicates(sources)
    return sources[0].load()


def names() -> list[str]:
    """Values of ``--target``, sorted; imports no plugin."""
    return sorted({source.name for source in _discover()[0]})


def installed() -> list[PluginInfo]:
    """Every installed plugin in alphabetical order, aliases joined; broken ones carry their error.

    Imports all of them. Never raises.
    """
    available, infos = _discover()
    by_name: dict[str, list[_PluginEntry]] = {}
    by_module: dict[tuple[str, str], list[_PluginEntry]] = {}
    for source in available:
        by_name.setdefault(source.name, []).append(source)
        by_module.setdefault((source.distribution, source.entry.value), []).append(source)
    for sources in by_module.values():
        first = sources[0]
        hooks: tuple[str, ...] = ()
        error = None
        try:
            for source in sources:
                _refuse_duplicates(by_name[source.name])
            hooks = first.load().hooks
        except TvmtuneError as exc:
            error = str(exc)
        names = tuple(sorted(source.name for source in sources))
        infos.append(
            PluginInfo(names, first.distribution, first.version, first.entry.value, hooks, error)
        )
    return sorted(infos, key=lambda info: (info.names, info.distribution))


@dataclass(frozen=True)
class _PluginEntry:
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
                f"backend {label} cannot be loaded: its module '{self.entry.module}' is missing. "
                f"Reinstall {self.distribution}."
            ) from exc
        except (Exception, SystemExit) as exc:
            raise TvmtuneError(f"backend {label} cannot be loaded: {_brief(exc)}") from exc
        if inspect.isclass(plugin):
            raise TvmtuneError(
                f"backend {label} is refused: its entry point is a class, not a module or object"
            )
        return Backend(self.name, plugin, self.distribution, self.version)


def _discover() -> tuple[list[_PluginEntry], list[PluginInfo]]:
    """The entry points of the group, and the distributions whose entry points cannot be read.

    Distributions are read one at a time, so that a damaged one does not affect the others.
    """
    available: list[_PluginEntry] = []
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
        # A distribution may be on the path twice: the one that Python would import counts.
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
        available += [_PluginEntry(entry, name, version) for entry in entries]
    return available, broken


def _identity(dist: metadata.Distribution) -> tuple[str, str]:
    try:
        return dist.metadata["Name"] or "unnamed", dist.version or "without a version"
    except Exception:  # unreadable metadata: importlib raises various types
        return "unnamed", "without a version"


def _refuse_duplicates(sources: list[_PluginEntry]) -> None:
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
