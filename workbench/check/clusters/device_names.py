"""Names of devices in labels of nodes, types of machines, and profiles of resources."""

from __future__ import annotations

import re
from collections.abc import Mapping

from config.declaration import ConfigError
from vllm_facts.devices import find_device

RESOURCE = re.compile(r"(nvidia|amd)\.com/gpu|gpu\.intel\.com/\w+|habana\.ai/gaudi")
"""Resources that stand for whole devices."""
OTHER_RESOURCE = re.compile(r"(google\.com/tpu|aws\.amazon\.com/neuron\w*|nvidia\.com/mig-.+)")
"""Resources whose memory is not known here."""
LABELS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
    "gpu.nvidia.com/model",
    "gpu.nvidia.com/class",
    "karpenter.k8s.aws/instance-gpu-name",
    "accelerator",
    "machine.cluster.vke.volcengine.com/gpu-name",
)
"""Labels whose value is the name of a device."""
MACHINE_LABELS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
MACHINES: Mapping[str, str] = {
    r"g4dn\.": "t4",
    r"g5\.": "a10g",
    r"g6\.": "l4",
    r"g6e\.": "l40s",
    r"p3\.|p3dn\.": "v100",
    r"p4d\.": "a100-40gb",
    r"p4de\.": "a100-80gb",
    r"p5\.": "h100",
    r"p5en?\.": "h200",
    r"p6-b200\.": "b200",
    r"a2-highgpu|a2-megagpu": "a100-40gb",
    r"a2-ultragpu": "a100-80gb",
    r"a3-ultragpu": "h200",
    r"a3-": "h100",
    r"a4-": "b200",
    r"g2-standard": "l4",
    r"standard_n[cd]\w*_a100_v4": "a100-80gb",
    r"standard_n[cd]\w*_h100_v5": "h100",
    r"standard_nd\w*_h200_v5": "h200",
    r"standard_nc\w*_t4_v3": "t4",
}
"""Type of a machine (Amazon, Google, Microsoft) -> device."""
EXACT: Mapping[str, str] = {
    "nvidia-tesla-a100": "a100-40gb",
    "nvidia-tesla-v100": "v100",
    **dict.fromkeys(("v100", "tesla-v100", "nvidia-v100"), "v100-32gb"),
}
"""Names whose device is not the one in the name; the larger one where a name stands for two."""
MEMORY = re.compile(r"[-_]?(\d{2,3})gi?b?\b")
_NOISE = re.compile(
    r"nvidia|amd|tesla|geforce|instinct|graphics|generation|hbm\w*|sxm\d?|mega|shared|gpu|_oam"
    r"|[-_ ]vf"
)


def device_of_label(text: str) -> str:
    """Returns the device in a text such as NVIDIA-H100-80GB-HBM3; empty for an unknown one."""
    name = text.lower().strip()
    if "-mig-" in name:  # a part of a device
        return ""
    name = EXACT.get(name, name)
    sizes = MEMORY.findall(name)
    words = [word for word in re.split(r"[-_ .:/]+", _NOISE.sub("", MEMORY.sub("", name))) if word]
    candidates = []
    for end in range(len(words), 0, -1):
        word = "-".join(words[:end])
        candidates += [f"{word}-{size}gb" for size in sizes]
        candidates.append(word)
    candidates += ["".join(words)]
    for candidate in candidates:
        try:
            find_device(candidate)
        except ConfigError:
            continue
        return candidate
    return ""


def device_of_machine(text: str) -> str:
    """Returns the device of a type of machine; empty for an unknown one."""
    name = text.lower()
    for pattern, device in MACHINES.items():
        if re.match(pattern, name):
            return device
    return ""
