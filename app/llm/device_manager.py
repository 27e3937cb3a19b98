"""Where the model runs, and in which numbers."""

from __future__ import annotations

import gc
import logging
from collections.abc import Mapping
from typing import Final

import torch

from app.llm.errors import ModelLoadError
from app.llm.layers import packing_works

DTYPES: Final[Mapping[str, torch.dtype]] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
DEVICES: Final = ("cuda", "mps", "cpu")

logger = logging.getLogger(__name__)


class DeviceManager:
    """`device` is auto, cuda, mps or cpu; what is not there becomes the CPU, with a warning.

    `dtype` None is float32 on a CPU and bfloat16 elsewhere. What is told is what is used.
    """

    def __init__(self, device: str = "auto", dtype: str | None = None) -> None:
        self.device = torch.device(self.detect_device(device))
        if dtype is None or dtype == "auto":
            dtype = "float32" if self.device.type == "cpu" else "bfloat16"
        dtype = dtype.removeprefix("torch.")
        if dtype not in DTYPES:
            raise ModelLoadError(f"The dtype {dtype} is not supported, only {', '.join(DTYPES)}.")
        if dtype == "float16" and self.device.type == "cpu":
            raise ModelLoadError("float16 is not supported on a CPU: choose float32 or bfloat16.")
        self.dtype = DTYPES[dtype]
        self.packs = self.device.type == "cpu" and packing_works(self.dtype)
        """Whether linear layers are packed."""

    @staticmethod
    def detect_device(device: str = "auto") -> str:
        """`device`, or the CPU where it is not there."""
        counts = {
            "cuda": torch.cuda.device_count(),
            "mps": int(torch.backends.mps.is_available()),
            "cpu": 1,
        }
        if device == "auto":
            return next(name for name in DEVICES if counts[name])
        name, _, number = device.partition(":")
        if (number or "0").isdecimal() and int(number or 0) < counts.get(name, 0):
            return device
        logger.warning("the device %s is not available, using the CPU", device)
        return "cpu"

    def optimize_for_device(self, model: torch.nn.Module) -> torch.nn.Module:
        """Moves a module of torch to the device, in its numbers."""
        return model.to(self.device, self.dtype)

    def free_bytes(self) -> int | None:
        """Memory that could be taken now; None when that is not known."""
        if self.device.type == "cuda":
            return int(torch.cuda.mem_get_info(self.device)[0])
        try:
            with open("/proc/meminfo", encoding="ascii") as file:
                sizes = dict(line.split(":", 1) for line in file)
            return int(sizes["MemAvailable"].split()[0]) * 1024
        except (OSError, KeyError, ValueError):
            return None

    def collect(self) -> None:
        """Hand back what is no longer used."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        elif self.device.type == "mps":
            torch.mps.empty_cache()

    def info(self) -> dict[str, object]:
        kinds = {"cuda": "nvidia_gpu", "mps": "apple_gpu", "cpu": "cpu"}
        return {
            "device": str(self.device),
            "device_type": kinds[self.device.type],
            "dtype": str(self.dtype).removeprefix("torch."),
            "packed_linears": self.packs,
            "num_threads": torch.get_num_threads(),
        }
