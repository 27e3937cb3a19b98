"""Chooses the device, the type of numbers and the threads of a model."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Final

import torch

from app.extensions.llm.core_wait import core_wait_s
from app.extensions.llm.errors import ModelLoadError
from app.extensions.llm.kernels import use_threads
from app.extensions.llm.linear import packing_works
from app.extensions.llm.threads import ThreadGovernor
from config.cores import usable_cores

DTYPES: Final[Mapping[str, torch.dtype]] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.float32,
}
"""Types of computed numbers, and of weights except with int8."""
DEVICES: Final = ("cuda", "mps", "cpu")
DEVICE_KINDS: Final = {"cuda": "nvidia_gpu", "mps": "apple_gpu", "cpu": "cpu"}

logger = logging.getLogger(__name__)


class DeviceManager:
    """The device of a model.

    `device` is auto, cuda, mps or cpu; an unavailable device becomes the CPU, with a warning.
    `dtype` None is float32 on a CPU and bfloat16 elsewhere. `info` returns the chosen device and
    dtype. `num_threads` 0 lets `governor` try counts on a CPU, unless OMP_NUM_THREADS is set or
    `is_fixed`.

    Raises:
        ModelLoadError: The device does not support the dtype.
    """

    def __init__(
        self,
        device: str = "auto",
        dtype: str | None = None,
        num_threads: int = 0,
        is_fixed: bool = False,
    ) -> None:
        self.device = torch.device(self.detect_device(device))
        is_cpu = self.device.type == "cpu"
        if num_threads:
            torch.set_num_threads(num_threads)
        if num_threads or is_fixed or not is_cpu or "OMP_NUM_THREADS" in os.environ:
            self.governor = ThreadGovernor(torch.get_num_threads())
        else:
            cores = usable_cores()
            self.governor = ThreadGovernor(cores, first=round(cores - os.getloadavg()[0]))
        if dtype is None or dtype == "auto":
            dtype = "bfloat16"
            if is_cpu:
                dtype = "float32"
        dtype = dtype.removeprefix("torch.")
        if dtype not in DTYPES:
            raise ModelLoadError(
                f"The dtype {dtype} is not supported; use one of {', '.join(DTYPES)}."
            )
        if dtype == "float16" and is_cpu:
            raise ModelLoadError("float16 is not supported on CPUs; choose float32 or bfloat16.")
        self.int8 = dtype == "int8"
        if self.int8 and not is_cpu:
            raise ModelLoadError(
                f"int8 is supported only on CPUs, not on {self.device.type}; "
                "choose bfloat16 or float32."
            )
        self.dtype = DTYPES[dtype]
        self.packs = is_cpu and not self.int8 and packing_works(self.dtype)
        """True when linear layers are packed for oneDNN."""

    @staticmethod
    def detect_device(device: str = "auto") -> str:
        """Returns `device` if available, else the CPU; the best device for auto."""
        counts = {
            "cuda": torch.cuda.device_count(),
            "mps": int(torch.backends.mps.is_available()),
            "cpu": 1,
        }
        if device == "auto":
            return next(name for name in DEVICES if counts[name])
        name, _, index = device.partition(":")
        index = index or "0"
        if index.isdecimal() and int(index) < counts.get(name, 0):
            return device
        logger.warning("the device %s is not available; using the CPU", device)
        return "cpu"

    def use_threads(self, kind: int) -> None:
        """Sets the number of threads of the caller's next step, which is of this kind."""
        count = self.governor.threads(kind)
        use_threads(count)
        if count != torch.get_num_threads():
            torch.set_num_threads(count)

    def waited_s(self) -> float:
        """Returns the time that threads waited for a core.

        It is 0 with one thread, which waits for no other.
        """
        if torch.get_num_threads() > 1:
            return core_wait_s()
        return 0.0

    def free_bytes(self) -> int | None:
        """Returns the available memory; None if unknown."""
        if self.device.type == "cuda":
            return int(torch.cuda.mem_get_info(self.device)[0])
        try:
            with open("/proc/meminfo", encoding="ascii") as file:
                sizes = dict(line.split(":", 1) for line in file)
            return int(sizes["MemAvailable"].split()[0]) * 1024
        except (OSError, KeyError, ValueError):
            return None

    def info(self) -> dict[str, object]:
        """Returns the device and its settings, for statistics and messages."""
        dtype = "int8"
        if not self.int8:
            dtype = str(self.dtype).removeprefix("torch.")
        return {
            "device": str(self.device),
            "device_type": DEVICE_KINDS[self.device.type],
            "dtype": dtype,
            "packed_linears": self.packs,
            "num_threads": torch.get_num_threads(),
        }
