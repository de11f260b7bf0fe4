"""The host's fingerprint, versions of packages, and the pins of TVM."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tvmtune.errors import TvmtuneError
from tvmtune.machine import cpu_count, fingerprint, package_versions

REPO = Path(__file__).resolve().parents[2]


def test_the_fingerprint_is_json_without_the_hosts_name():
    import json
    import platform

    contents = fingerprint.fingerprint()
    assert json.loads(json.dumps(contents)) == contents
    assert contents["cpu"] == cpu_count.cpu_model() != ""
    assert contents["cpus"]["usable"] == cpu_count.usable_cpus() >= 1
    assert contents["memory_bytes"] > 2**28
    assert platform.node() not in json.dumps(contents)


def test_versions_are_read_without_imports():
    code = (
        "import sys\n"
        "from tvmtune.machine.package_versions import check_pins, versions\n"
        "v = versions(); check_pins(); "
        "print(sorted(v)); print([m for m in ('tvm', 'numpy', 'xgboost') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "['apache-tvm', 'apache-tvm-ffi', 'numpy', 'tvmtune', 'xgboost']",
        "[]",
    ], done.stderr
    assert None not in package_versions.versions().values()


def test_the_pins_are_those_of_pyproject():
    text = (REPO / "pyproject.toml").read_text()
    assert dict(re.findall(r'"(apache-tvm[a-z-]*)==([^"]+)"', text)) == package_versions.PINS


def test_mismatched_pins_are_named_with_the_remedy(monkeypatch):
    monkeypatch.setitem(package_versions.PINS, "apache-tvm-ffi", "9.9")
    monkeypatch.setitem(package_versions.PINS, "no-such-package", "1.0")
    with pytest.raises(TvmtuneError) as caught:
        package_versions.check_pins()
    message = str(caught.value)
    assert "apache-tvm-ffi is 0.1.14.post1, not 9.9" in message
    assert "no-such-package is not installed" in message
    assert "segfault in TuneContext" in message
    assert "pip install apache-tvm==0.27.0.post1 apache-tvm-ffi==9.9" in message
