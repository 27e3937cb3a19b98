"""Devices with a known memory: all of `DEVICES`, and others, such as cards of workstations.

The memory is the part that a process sees, as public logs of vLLM and PyTorch state it. It is less
than the number on the box, by the share of the driver and of error correction. Times of most of
these devices were not measured, so that only `check` takes them.
"""

from __future__ import annotations

from collections.abc import Mapping

from config.declaration import ConfigError, suggestion
from vllm_facts.device import GIB
from vllm_facts.devices import DEVICES
from vllm_facts.owned_device import AMD, OwnedDevice

CAPABILITIES: Mapping[str, float] = {
    "h100": 9.0,
    "h200": 9.0,
    "a100": 8.0,
    "l40s": 8.9,
    "l4": 8.9,
    "b200": 10.0,
    "b300": 10.3,
    "gb200": 10.0,
    "gb300": 10.3,
    "rtx-pro-6000": 12.0,
}
"""Compute capabilities of `DEVICES`."""
ALIASES: Mapping[str, str] = {
    "dgx-spark": "gb10",
    "rtx-3060": "rtx3060",
    "rtx-3090": "rtx3090",
    "rtx-4080": "rtx4080",
    "rtx-4090": "rtx4090",
    "rtx-5060-ti": "rtx5060ti",
    "rtx-5070-ti": "rtx5070ti",
    "rtx-5090": "rtx5090",
    "rtx-a6000": "a6000",
    "rtx-5000-ada": "rtx5000-ada",
    "5000-ada": "rtx5000-ada",
    "rtx-6000-ada": "rtx6000-ada",
    "h100-sxm": "h100",
    "h100-80gb": "h100",
    "a10": "a10g",
}


def _device(
    name: str,
    memory_gib: float,
    capability: float = AMD,
    *,
    is_unified: bool = False,
    has_switch: bool = False,
) -> OwnedDevice:
    return OwnedDevice(
        name=name,
        memory=memory_gib * GIB,
        capability=capability,
        is_unified=is_unified,
        has_switch=has_switch,
    )


MORE_DEVICES: Mapping[str, OwnedDevice] = {
    "t4": _device("T4 16 GB", 14.56, 7.5),
    "v100": _device("V100 16 GB", 15.77, 7.0),
    "v100-32gb": _device("V100 32 GB", 31.73, 7.0),
    "a10g": _device("A10G 24 GB", 22.06, 8.6),
    "a30": _device("A30 24 GB", 23.5, 8.0),
    "a40": _device("A40 48 GB", 44.34, 8.6),
    "a6000": _device("RTX A6000 48 GB", 47.41, 8.6),
    "a100-40gb": _device("A100 40 GB", 39.38, 8.0, has_switch=True),
    "a100-80gb": _device("A100 80 GB", 79.2, 8.0, has_switch=True),
    "l20": _device("L20 48 GB", 44.4, 8.9),
    "rtx3060": _device("RTX 3060 12 GB", 11.63, 8.6),
    "rtx3090": _device("RTX 3090 24 GB", 23.57, 8.6),
    "rtx4080": _device("RTX 4080 16 GB", 15.99, 8.9),
    "rtx4090": _device("RTX 4090 24 GB", 23.52, 8.9),
    "rtx5060ti": _device("RTX 5060 Ti 16 GB", 15.48, 12.0),
    "rtx5070ti": _device("RTX 5070 Ti 16 GB", 15.92, 12.0),
    "rtx5090": _device("RTX 5090 32 GB", 31.36, 12.0),
    "rtx5000-ada": _device("RTX 5000 Ada 32 GB", 31.2, 8.9),
    "rtx6000-ada": _device("RTX 6000 Ada 48 GB", 47.4, 8.9),
    "rtx-pro-6000": _device("RTX PRO 6000 Blackwell 96 GB", 94.97, 12.0),
    "h20": _device("H20 96 GB", 95.1, 9.0, has_switch=True),
    "h20-141gb": _device("H20 141 GB", 139.8, 9.0, has_switch=True),
    "h100-pcie": _device("H100 PCIe 80 GB", 79.1, 9.0),
    "h100-nvl": _device("H100 NVL 94 GB", 93.1, 9.0, has_switch=True),
    "gh200": _device("GH200 96 GB", 94.5, 9.0),
    "gb10": _device("GB10 (DGX Spark) 128 GB", 119.6, 12.1, is_unified=True),
    "thor": _device("Jetson AGX Thor 128 GB", 122.8, 11.0, is_unified=True),
    "strix-halo": _device("Strix Halo 128 GB", 96.0, is_unified=True),
    "mi325x": _device("MI325X 256 GB", 255.9, has_switch=True),
    "mi350x": _device("MI350X 288 GB", 287.9, has_switch=True),
}
"""Devices that are not in `DEVICES`, or with a memory that logs state otherwise."""


def owned_device(name: str) -> OwnedDevice:
    """Returns a device by its name, in any case, with or without the maker's.

    Raises:
        ConfigError: The device is unknown.
    """
    word = name.strip().lower().replace(" ", "-").replace("_", "-").removeprefix("nvidia-")
    word = word.removeprefix("amd-").removeprefix("geforce-")
    word = ALIASES.get(word, word)
    if word in MORE_DEVICES:
        return MORE_DEVICES[word]
    if word in DEVICES:
        device = DEVICES[word]
        return OwnedDevice(
            name=device.name,
            memory=device.memory,
            capability=CAPABILITIES.get(word, AMD),
            has_switch=device.has_switch,
        )
    names = sorted({*DEVICES, *MORE_DEVICES})
    raise ConfigError(
        f"device {name}: must be one of {', '.join(names)}{suggestion(word, names)}; for others,"
        " give --device-memory"
    )
