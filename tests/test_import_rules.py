"""Who may import whom, read from the sources; it holds for backends that are yet to come."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
CORE = REPO / "src" / "tvmtune"
BACKENDS = sorted(path.parent for path in REPO.glob("plugins/*/tvmtune_*/__init__.py"))

# What the parts of the core must not know of. ``*`` stands for everything but the command line.
FORBIDDEN = {
    "*": ["tvmtune.cli"],
    "records": ["tvmtune.tuning", "tvmtune.host", "tvmtune.measure", "tvmtune.networks"],
    # of records, graph needs no more than the keys of workloads
    "graph": [
        "tvmtune.host",
        "tvmtune.tuning",
        *(f"tvmtune.records.{name}" for name in ("best", "database", "header", "log", "repeats")),
    ],
    "farm": ["tvmtune.tuning", "tvmtune.measure", "tvmtune.graph", "tvmtune.deploy"],
    "measure": ["tvmtune.host", "tvmtune.tuning", "tvmtune.deploy"],
    "tuning": ["tvmtune.host"],
    "quantise": ["tvmtune.host", "tvmtune.tuning", "tvmtune.records", "tvmtune.measure"],
    "networks": ["tvmtune.host", "tvmtune.tuning", "tvmtune.records", "tvmtune.measure"],
}


def module_name(path: Path, root: Path) -> str:
    parts = list(path.relative_to(root).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that a file imports, inside functions too."""
    tree = ast.parse(path.read_text(), str(path))
    package = module_name(path, root).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            name = ".".join([*base, *filter(None, [node.module])])
            for alias in node.names:
                yield node.lineno, f"{name}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args:
            called = node.func
            named = getattr(called, "attr", getattr(called, "id", ""))
            first = node.args[0]
            if (
                named in ("import_module", "__import__")
                and isinstance(first, ast.Constant)
                and isinstance(first.value, str)
            ):
                yield node.lineno, first.value


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def offences(files: list[Path], root: Path, forbidden: list[str]) -> list[str]:
    return [
        f"{path.relative_to(REPO)}:{line} imports {name}"
        for path in files
        for line, name in imports(path, root)
        if any(within(name, package) for package in forbidden)
    ]


def core_files(part: str) -> list[Path]:
    if part == "*":
        entries = (CORE / "cli", CORE / "__main__.py")
        return [p for p in CORE.rglob("*.py") if not any(p.is_relative_to(e) for e in entries)]
    return sorted([*CORE.glob(f"{part}.py"), *(CORE / part).rglob("*.py")])


def test_the_reader_sees_every_kind_of_import(tmp_path):
    path = tmp_path / "tvmtune" / "graph" / "sample.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "import a.b as c\nfrom . import d\nfrom ..e import f\n"
        "def g():\n    from tvmtune import host\n    importlib.import_module('tvmtune_cpu')\n"
    )
    assert [name for _, name in imports(path, tmp_path)] == [
        "a.b",
        "tvmtune.graph.d",
        "tvmtune.e.f",
        "tvmtune.host",
        "tvmtune_cpu",
    ]


@pytest.mark.parametrize("part", sorted(FORBIDDEN))
def test_the_core_keeps_its_order(part):
    assert offences(core_files(part), CORE.parent, FORBIDDEN[part]) == []


def test_the_core_knows_no_backend():
    found = [
        f"{path.relative_to(REPO)}:{line} imports {name}"
        for path in CORE.rglob("*.py")
        for line, name in imports(path, CORE.parent)
        if name.startswith("tvmtune_")
    ]
    assert found == []


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda path: path.name)
def test_a_backend_knows_the_core_and_what_lies_beside_it(backend):
    own = [path.name for path in backend.parent.glob("tvmtune_*")]
    files = sorted(backend.rglob("*.py"))
    assert offences(files, backend.parent, ["tvmtune.cli", "tvmtune.host"]) == []
    others = [
        f"{path.relative_to(REPO)}:{line} imports {name}"
        for path in files
        for line, name in imports(path, backend.parent)
        if name.startswith("tvmtune_") and not any(within(name, package) for package in own)
    ]
    assert others == []


def test_the_third_party_example_imports_only_what_is_there():
    """Each name that it takes from the core stands in the core's sources."""
    root = REPO / "examples" / "third_party_backend"
    for path in root.rglob("*.py"):
        for line, name in imports(path, root):
            if not within(name, "tvmtune"):
                continue
            owner, last = name.rsplit(".", 1)
            folder = CORE.parent.joinpath(*owner.split("."))
            module = (folder / f"{last}.py").exists() or (folder / last).is_dir()
            source = folder.with_suffix(".py")
            assert module or (source.exists() and last in source.read_text()), (
                f"line {line}: {name}"
            )


def test_commands_load_tvm_only_when_they_run():
    names = [
        module_name(path, CORE.parent)
        for path in (CORE / "cli").rglob("*.py")
        if path.name != "__main__.py"
    ]
    heavy = ("tvm", "tvm_ffi", "numpy", "onnx", "onnxruntime", "xgboost", "torch", "rich")
    code = (
        f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
