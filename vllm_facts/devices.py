"""Devices with their memory, and with a data sheet where `simulate` computes their times.

The memory is the part that a process sees, as public logs of vLLM and PyTorch state it. It is less
than the number on the box, by the share of the driver and of error correction. Start reading at
`find_device`.
"""

from __future__ import annotations

from collections.abc import Mapping

from config.declaration import ConfigError, suggestion
from vllm_facts.accelerator import (
    GIB,
    OTHER_MAKER,
    PCIE_4,
    PCIE_5,
    TERA,
    Device,
    DeviceMemory,
)
from vllm_facts.cards import CARDS

DEVICES: Mapping[str, Device] = {
    "h100": Device(
        name="H100 SXM 80 GB",
        bandwidth=3.35 * TERA,
        flops=989.4 * TERA,
        flops_8bit=1978.9 * TERA,
        flops_32bit=67 * TERA,
        memory=79.2 * GIB,
        capability=9.0,
        link=0.45 * TERA,
        sheet="NVIDIA H100 Tensor Core GPU, data sheet: 3.35 TB/s, BF16 1,979 and FP8 3,958 TFLOPS"
        " with sparsity, NVLink 900 GB/s",
    ),
    "h200": Device(
        name="H200 SXM 141 GB",
        bandwidth=4.8 * TERA,
        flops=989.4 * TERA,
        flops_8bit=1978.9 * TERA,
        flops_32bit=67 * TERA,
        memory=139.8 * GIB,
        capability=9.0,
        link=0.45 * TERA,
        sheet="NVIDIA H200 Tensor Core GPU, data sheet: 4.8 TB/s, 141 GB, arithmetic and NVLink as"
        " H100 SXM",
    ),
    "a100": Device(
        name="A100 SXM 80 GB",
        bandwidth=2.039 * TERA,
        flops=312 * TERA,
        flops_8bit=None,
        flops_32bit=19.5 * TERA,
        memory=79.2 * GIB,
        capability=8.0,
        link=0.3 * TERA,
        sheet="NVIDIA A100 Tensor Core GPU, data sheet: 2,039 GB/s, BF16 312 TFLOPS, NVLink"
        " 600 GB/s",
    ),
    "l40s": Device(
        name="L40S 48 GB",
        bandwidth=0.864 * TERA,
        flops=362 * TERA,
        flops_8bit=733 * TERA,
        flops_32bit=91.6 * TERA,
        memory=44.4 * GIB,
        capability=8.9,
        link=PCIE_4,
        sheet="NVIDIA L40S, data sheet: 864 GB/s, BF16 362 and FP8 733 TFLOPS, PCIe Gen4 x16"
        " 64 GB/s",
    ),
    "mi300x": Device(
        name="MI300X 192 GB",
        bandwidth=5.3 * TERA,
        flops=1307.4 * TERA,
        flops_8bit=2614.9 * TERA,
        flops_32bit=163.4 * TERA,
        memory=191.9 * GIB,
        link=0.448 * TERA,
        sheet="AMD Instinct MI300X, data sheet: 5.3 TB/s, BF16 1,307.4 and FP8 2,614.9 TFLOPS,"
        " Infinity Fabric 896 GB/s",
    ),
    "b200": Device(
        name="B200 SXM 180 GB",
        bandwidth=8 * TERA,
        flops=2250 * TERA,
        flops_8bit=4500 * TERA,
        flops_32bit=75 * TERA,
        memory=178.4 * GIB,
        capability=10.0,
        link=0.9 * TERA,
        sheet="NVIDIA DGX B200, data sheet (eight of them): 64 TB/s, FP8 72 PFLOPS with sparsity"
        " and BF16 half of it, 1,440 GB, NVLink 14.4 TB/s",
    ),
    "b300": Device(
        name="B300 SXM 288 GB",
        bandwidth=7.75 * TERA,
        flops=2250 * TERA,
        flops_8bit=4500 * TERA,
        flops_32bit=75 * TERA,
        memory=268.5 * GIB,
        capability=10.3,
        link=0.9 * TERA,
        sheet="NVIDIA DGX B300, data sheet (eight of them): 62 TB/s, FP8 72 PFLOPS with sparsity"
        " and BF16 half of it, 2.1 TB, NVLink 14.4 TB/s",
    ),
    "gb200": Device(
        name="GB200 186 GB",
        bandwidth=8 * TERA,
        flops=2500 * TERA,
        flops_8bit=5000 * TERA,
        flops_32bit=80 * TERA,
        memory=185 * GIB,
        capability=10.0,
        link=0.9 * TERA,
        sheet="NVIDIA GB200 NVL72, data sheet (72 of them): 576 TB/s, FP8 720 PFLOPS with sparsity"
        " and BF16 half of it, 13.4 TB, NVLink 130 TB/s",
    ),
    "gb300": Device(
        name="GB300 288 GB",
        bandwidth=8 * TERA,
        flops=2500 * TERA,
        flops_8bit=5000 * TERA,
        flops_32bit=80 * TERA,
        memory=277.5 * GIB,
        capability=10.3,
        link=0.9 * TERA,
        sheet="NVIDIA GB300 NVL72, data sheet (72 of them): 576 TB/s, FP8 720 PFLOPS with sparsity"
        " and BF16 half of it, 20 TB, NVLink 130 TB/s",
    ),
    "rtx-pro-6000": Device(
        name="RTX PRO 6000 Blackwell 96 GB",
        bandwidth=1.597 * TERA,
        flops=500 * TERA,
        flops_8bit=1000 * TERA,
        flops_32bit=120 * TERA,
        memory=94.97 * GIB,
        capability=12.0,
        link=PCIE_5,
        sheet="NVIDIA RTX PRO 6000 Blackwell Server Edition, data sheet: 1,597 GB/s, FP4 4"
        " PFLOPS with sparsity, FP8 half and BF16 a quarter of it, PCIe Gen5 x16 128 GB/s",
    ),
    "l4": Device(
        name="L4 24 GB",
        bandwidth=0.3 * TERA,
        flops=121 * TERA,
        flops_8bit=242.5 * TERA,
        flops_32bit=30.3 * TERA,
        memory=22.4 * GIB,
        capability=8.9,
        link=PCIE_4,
        sheet="NVIDIA L4, data sheet: 300 GB/s, BF16 242 and FP8 485 TFLOPS with sparsity, PCIe"
        " Gen4 x16 64 GB/s",
    ),
    "mi355x": Device(
        name="MI355X 288 GB",
        bandwidth=8 * TERA,
        flops=2516.6 * TERA,
        flops_8bit=5033.2 * TERA,
        flops_32bit=157.3 * TERA,
        memory=287.9 * GIB,
        link=0.538 * TERA,
        sheet="AMD Instinct MI355X, data sheet: 8 TB/s, BF16 2,516.6 and FP8 5,033.2 TFLOPS,"
        " Infinity Fabric 1,075 GB/s",
    ),
    **CARDS,
}
"""Name -> its data sheet."""
WORKSTATIONS = "blackwell of workstations"
NVIDIA_GENERATIONS: Mapping[float, str] = {
    8.0: "ampere",
    8.6: "ampere",
    8.9: "ada",
    9.0: "hopper",
    10.0: "blackwell",
    10.3: "blackwell",
    11.0: WORKSTATIONS,
    12.0: WORKSTATIONS,
    12.1: WORKSTATIONS,
}
"""Compute capability -> generation."""
GENERATIONS: Mapping[str, str] = {
    **{
        name: NVIDIA_GENERATIONS[device.capability]
        for name, device in DEVICES.items()
        if device.capability != OTHER_MAKER
    },
    **dict.fromkeys(("mi210", "mi300x", "mi355x"), "cdna"),
    **dict.fromkeys(("gaudi2", "gaudi3"), "gaudi"),
}
"""Device with a data sheet -> its generation."""


def _device(
    name: str,
    memory_gib: float,
    capability: float = OTHER_MAKER,
    *,
    is_unified: bool = False,
    has_switch: bool = False,
) -> DeviceMemory:
    return DeviceMemory(
        name=name,
        memory=memory_gib * GIB,
        capability=capability,
        is_unified=is_unified,
        has_switch=has_switch,
    )


MORE_DEVICES: Mapping[str, DeviceMemory] = {
    "t4": _device("T4 16 GB", 14.56, 7.5),
    "v100": _device("V100 16 GB", 15.77, 7.0),
    "v100-32gb": _device("V100 32 GB", 31.73, 7.0),
    "a30": _device("A30 24 GB", 23.5, 8.0),
    "l20": _device("L20 48 GB", 44.4, 8.9),
    "rtx3060": _device("RTX 3060 12 GB", 11.63, 8.6),
    "rtx4080": _device("RTX 4080 16 GB", 15.99, 8.9),
    "rtx5060ti": _device("RTX 5060 Ti 16 GB", 15.48, 12.0),
    "rtx5070ti": _device("RTX 5070 Ti 16 GB", 15.92, 12.0),
    "rtx5000-ada": _device("RTX 5000 Ada 32 GB", 31.2, 8.9),
    "h100-pcie": _device("H100 PCIe 80 GB", 79.1, 9.0),
    "h100-nvl": _device("H100 NVL 94 GB", 93.1, 9.0, has_switch=True),
    "gh200": _device("GH200 96 GB", 94.5, 9.0),
    "strix-halo": _device("Strix Halo 128 GB", 96.0, is_unified=True),
    "mi325x": _device("MI325X 256 GB", 255.9, has_switch=True),
    "mi350x": _device("MI350X 288 GB", 287.9, has_switch=True),
}
"""Devices whose times were not measured; none is in `DEVICES`."""
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
    "a100-80gb": "a100",
    "a10": "a10g",
}
"""Other name -> name of the device."""


def find_device(name: str) -> DeviceMemory:
    """Returns a device by its name, in any case, with or without the maker's.

    Raises:
        ConfigError: The device is unknown.
    """
    word = name.strip().lower().replace(" ", "-").replace("_", "-").removeprefix("nvidia-")
    word = word.removeprefix("amd-").removeprefix("geforce-")
    word = ALIASES.get(word, word)
    device = DEVICES.get(word) or MORE_DEVICES.get(word)
    if device is not None:
        return device
    names = sorted({*DEVICES, *MORE_DEVICES})
    raise ConfigError(
        f"device {name}: must be one of {', '.join(names)}{suggestion(word, names)}; for others,"
        " give --device-memory"
    )
