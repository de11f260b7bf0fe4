"""Import rules that import-linter cannot express (its own are in pyproject.toml)."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
CORE = REPO / "src" / "tvmtune"


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


def test_the_third_party_example_imports_only_existing_names():
    """Each name that it imports from the core is defined in the core's sources."""
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


def test_every_backend_is_in_each_list_of_the_project_file():
    """Of what is missing in one of them, tools would say nothing."""
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no TOML parser")
    project = tomllib.loads((REPO / "pyproject.toml").read_text())
    tool = project["tool"]
    packages = {path.name for path in REPO.glob("plugins/*/tvmtune_*")}
    backends = packages - {"tvmtune_opencl"}  # part of the mali backend
    entries = project["project"]["entry-points"]["tvmtune"].values()
    assert {entry.split(".")[0] for entry in entries} == backends
    built = tool["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {Path(path).name for path in built} == packages | {"tvmtune"}
    folders = {f"plugins/{path.parent.name}" for path in REPO.glob("plugins/*/tvmtune_*")}
    assert set(tool["mypy"]["mypy_path"]) == folders | {"src"}
    assert set(tool["importlinter"]["root_packages"]) == packages | {"tvmtune"}
    contracts = {each["name"]: each for each in tool["importlinter"]["contracts"]}
    assert set(contracts["The core imports no backend"]["forbidden_modules"]) == packages
    assert set(contracts["Backends do not import each other"]["modules"]) == backends
    apart = contracts["Backends do not import the command line or the host"]
    assert set(apart["source_modules"]) == packages
    assert set(contracts["No cycle between modules"]["ancestors"]) == packages | {"tvmtune"}
    assert set(tool["deptry"]["known_first_party"]) == packages | {"tvmtune"}
    assert set(tool["coverage"]["run"]["source_pkgs"]) == packages | {"tvmtune"}
