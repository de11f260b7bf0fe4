"""LLVM's name for this machine's processor, also where a virtual machine reports the wrong model."""

from __future__ import annotations

import pytest
import tvm

from tvmtune.machine import amx, cpu_features, processor

AVX512 = ["avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"]
SAPPHIRE_RAPIDS = [
    *AVX512,
    *("amx_bf16", "amx_int8", "amx_tile", "avx512_bf16", "avx512_fp16", "avx_vnni"),
]


def name_of(monkeypatch: pytest.MonkeyPatch, by_llvm: str, features: list[str]) -> str:
    monkeypatch.setattr(cpu_features, "available", lambda *_: sorted(features))
    monkeypatch.setattr(tvm, "get_global_func", lambda *_, **__: lambda: by_llvm)
    processor.name.cache_clear()
    try:
        return processor.name()
    finally:
        processor.name.cache_clear()


def test_the_model_is_believed_if_its_features_are_all(monkeypatch):
    assert name_of(monkeypatch, "rocketlake", AVX512) == "rocketlake"
    assert name_of(monkeypatch, "sapphirerapids", SAPPHIRE_RAPIDS) == "sapphirerapids"


def test_a_processor_with_amx_is_not_an_older_one(monkeypatch):
    assert name_of(monkeypatch, "rocketlake", SAPPHIRE_RAPIDS) == "sapphirerapids"


def test_some_of_the_features_are_not_enough(monkeypatch):
    assert name_of(monkeypatch, "rocketlake", SAPPHIRE_RAPIDS[:-1]) == "rocketlake"


def test_without_permission_for_amx_code_does_without(monkeypatch):
    features = [name for name in SAPPHIRE_RAPIDS if not name.startswith("amx")]
    assert name_of(monkeypatch, "graniterapids", features) == "cooperlake"
    assert name_of(monkeypatch, "graniterapids", AVX512) == "icelake-server"


def test_features_that_the_kernel_does_not_allow_are_not_available(monkeypatch, tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags\t\t: avx2 amx_tile amx_int8 fma\n")
    monkeypatch.setattr(cpu_features, "_CPUINFO", cpuinfo)
    monkeypatch.setattr(cpu_features.hwcap, "names", list)
    for allowed in (True, False):
        monkeypatch.setattr(amx, "is_usable", lambda allowed=allowed: allowed)
        found = cpu_features.available(cpuinfo)
        assert ("amx_int8" in found) == ("amx_tile" in found) == allowed
        assert {"avx2", "fma"} <= set(found)


def test_this_machine_runs_code_for_the_processor():
    assert not cpu_features.missing(
        cpu_features.required({"kind": "llvm", "mcpu": processor.name()})
    )
