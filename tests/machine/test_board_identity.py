"""Which boards may measure for the same run."""

from __future__ import annotations

from typing import Any

from tvmtune.machine import board_identity, describe
from tvmtune.machine.board_identity import Expected


def board(**changed: Any) -> dict[str, Any]:
    described = {
        "machine": "aarch64",
        "cpu": "Cortex-A76",
        "features": ["asimd", "asimddp"],
        "cpus": 4,
        "free_bytes": 1,
        "gpus": [{"kind": "opencl", "device_name": "Mali-G610", "index": 0}],
    }
    return described | changed


def test_memory_and_the_order_of_features_do_not_matter() -> None:
    other = board(free_bytes=2, features=["asimddp", "asimd"])
    assert board_identity.of(board()) == board_identity.of(other)
    assert board_identity.of(describe.describe())["features"]
    assert not board_identity.difference(board_identity.of(board()), board_identity.of(other))


def test_differences_are_named() -> None:
    expected = board_identity.of(board())

    def how(**changed: Any) -> str:
        return board_identity.difference(expected, board_identity.of(board(**changed)))

    assert how(cpu="Cortex-A72") == "it is Cortex-A72 instead of Cortex-A76"
    assert how(features=["asimd"]) == "it lacks CPU feature asimddp"
    assert how(features=["asimd", "asimddp", "i8mm", "sve"]) == (
        "it also has CPU features i8mm, sve"
    )
    many = [f"f{n}" for n in range(10)]
    assert how(features=["asimd", "asimddp", *many]).endswith("f0, f1, f2, f3, f4, f5 and 4 more")
    assert how(gpus=[]) == "it lacks GPU Mali-G610 (opencl)"
    assert how(machine="x86_64") == "it is x86_64 instead of aarch64"


def test_the_first_board_defines_an_unknown_identity() -> None:
    expected = Expected({}, board_identity.PLANNED)
    assert expected.trouble(None, "h:1", "pi") == "", "TVM's own server tells nothing"
    assert expected.trouble(board(), "h:2", "pi") == ""
    assert expected.trouble(board(), "h:3", "pi") == ""
    trouble = expected.trouble(board(features=[]), "h:4", "pi")
    assert "compared with the board at h:2, it lacks CPU features asimd, asimddp" in trouble
    assert "tvmtune serve --key pi-2" in trouble
    assert expected.trouble(None, "h:1", "pi") == ""
