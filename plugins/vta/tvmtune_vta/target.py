"""What ``--target vta`` means: a configuration of the hardware, and the CPU beside it."""

from __future__ import annotations

from typing import Any

from tvmtune.errors import UsageError, nearest
from tvmtune.types import Device
from tvmtune_vta.clock import Constants
from tvmtune_vta.config import Config

ATTRIBUTES = ("config", "start-op", "stop-op", "threads", "mcpu")
SIMULATOR = "sim"


def describe(name: str, attrs: dict[str, Any], remote: str | None) -> Device:
    """The device for ``--target vta``.

    Attributes: ``config``, the name of a published sample or the path of a ``vta_config.json``;
    ``start-op`` and ``stop-op``, between which layers go to the accelerator; ``mcpu`` and
    ``threads`` of the CPU that does the rest. Raises :class:`UsageError` for others and for values
    that cannot be.
    """
    import tvm

    from tvmtune.system import check_processor, usable_cpus
    from tvmtune.threads import choose

    if remote is not None:
        raise UsageError(
            "times of VTA are modelled on this machine: leave --remote away; libraries are timed and "
            "checked on boards by tvmtune bench --remote."
        )
    for given in attrs:
        if given not in ATTRIBUTES:
            raise UsageError(
                f"target attribute '{given}' is not known.{nearest(given, [*ATTRIBUTES])}"
            )
    config = Config.find(str(attrs.get("config", SIMULATOR)))
    threads = usable_cpus()
    if "threads" in attrs:
        try:
            count = int(attrs["threads"])
        except ValueError:
            raise UsageError(f"threads={attrs['threads']} is not a number.") from None
        threads = choose(count, count)
    mcpu = str(attrs.get("mcpu") or tvm.get_global_func("target.llvm_get_system_cpu")())
    check_processor(mcpu)
    constants = Constants.published()
    return Device(
        backend="vta",
        target={"kind": "llvm", "mcpu": mcpu, "num-cores": threads},
        threads=threads,
        attrs={
            "config": config.as_dict(),
            "start_op": attrs.get("start-op"),
            "stop_op": attrs.get("stop-op"),
            # a time is worth nothing without what the model took for granted
            "constants": constants.to_json(),
        },
        params=parameters(config),
        remote=remote,
        needs_init=True,
        model=f"VTA {config.bitstream} ({config.target}, times modelled)",
    )


def of(device: Device) -> Config:
    """The configuration that a device has."""
    return Config.parse(device.attrs["config"], "the device's configuration")


def parameters(config: Config) -> dict[str, Any]:
    """What there is on the chip: shape of the core, elements and bytes of each memory, and the
    model's constants."""
    from tvmtune_vta.config import Memory

    memories = (Memory.UOP, Memory.INP, Memory.WGT, Memory.ACC, Memory.OUT)
    return {
        "bitstream": config.bitstream,
        "batch": config.batch,
        "block": config.block,
        **{f"{m.name.lower()}_depth": config.depth(m) for m in memories},
        **{f"model_{k}": v for k, v in Constants.published().to_json().items()},
    }
