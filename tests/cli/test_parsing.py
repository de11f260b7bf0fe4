"""Durations and sizes: the same forms and the same message in every option."""

from __future__ import annotations

import click
import pytest

from tvmtune.cli import COMMANDS, group
from tvmtune.cli.options import DURATION
from tvmtune.cli.parsing import bytes_of, parse_params, seconds_of
from tvmtune.errors import UsageError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30),
        ("30s", 30),
        ("4m", 240),
        ("1h30m", 5400),
        ("1h 30m", None),
        ("2h", 7200),
        ("1h1m1s", 3661),
        ("1.5h", 5400),
        (" 90S ", 90),
        ("0.5", 0.5),
        ("-3m", -180),
        (600, 600),
        (2.5, 2.5),
        ("", None),
        ("-", None),
        ("m", None),
        ("30m1h", None),
        ("1d", None),
        ("5 m", None),
        ("1..5m", None),
        ("nan", None),
        ("inf", None),
        ("1e400", None),
        ("٣m", None),
    ],
)
def test_durations(text, seconds):
    if seconds is not None:
        assert seconds_of("--wait", text) == seconds
        return
    with pytest.raises(
        UsageError, match="^--wait takes seconds, or a time such as 90s, 30m or 1h30m"
    ):
        seconds_of("--wait", text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("65536", 65536),
        (524288, 524288),
        ("512K", 512 << 10),
        ("512k", 512 << 10),
        ("512M", 512 << 20),
        ("2G", 2 << 30),
        ("1T", 1 << 40),
        ("1.5M", 3 << 19),
        ("64KiB", 64 << 10),
        ("64KB", 64 << 10),
        ("7B", 7),
        ("0.3", None),
        ("-1", None),
        ("", None),
        ("M", None),
        ("1P", None),
        ("big", None),
    ],
)
def test_sizes(text, size):
    if size is not None:
        assert bytes_of("--x", text) == size
        return
    with pytest.raises(
        UsageError, match="^--x takes bytes, or a size such as 512K, 64M or 2G, not"
    ):
        bytes_of("--x", text)


def test_hardware_parameters_in_bytes_take_sizes():
    assert parse_params(["l2_bytes=512K", "num_cores=4"]) == {"l2_bytes": 1 << 19, "num_cores": 4}
    with pytest.raises(UsageError, match="--hardware-param l2_bytes takes bytes"):
        parse_params(["l2_bytes=lots"])


def test_every_time_is_a_duration():
    """An option that takes a time has the parser's type; those in milliseconds say so."""
    found = set()
    for name in COMMANDS:
        for param in group.get_command(None, name).params:
            if isinstance(param, click.Option) and param.metavar == "TIME":
                assert param.type is DURATION, param.opts
                found.add(param.opts[0])
            else:
                assert "second" not in (param.help or "") or "milli" in param.help, param.opts
    assert found == {"--wait", "--time-budget", "--build-timeout", "--run-timeout"}
