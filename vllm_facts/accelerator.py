"""Types of the rows in `vllm_facts.devices`."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import force_setattr

GIB = 1 << 30
TERA = 1e12
BUS_BYTES = 0.1 * TERA
"""Bytes per second of the fastest bus, in one direction."""
OTHER_MAKER = 0.0
"""Capability of devices that are not Nvidia's, but AMD's or Intel's."""
PCIE_4 = 0.032 * TERA
"""Bytes per second of 16 lanes in one direction."""
PCIE_5 = 0.064 * TERA


class DeviceMemory(Struct, frozen=True, kw_only=True):
    """A device, as far as it decides whether a model fits."""

    name: str
    memory: float
    """Bytes for a process."""
    capability: float = OTHER_MAKER
    """Nvidia's compute capability."""
    is_unified: bool = False
    """The memory is also that of the host."""
    has_switch: bool = False
    """Links that are faster than the bus connect the devices of a server."""


class Device(DeviceMemory, frozen=True, kw_only=True):
    """An accelerator with a data sheet.

    Operations are per second and dense; sheets often have twice as many, with sparsity.
    """

    bandwidth: float
    """Memory bandwidth, in bytes per second."""
    flops: float
    """Operations per second in bf16."""
    flops_8bit: float | None
    """Operations per second in fp8; None without fp8 arithmetic."""
    flops_32bit: float
    """Operations per second in float32, without tensor cores."""
    link: float
    """Bytes per second to the server's other devices, in one direction: half of the sheet's figure.
    """
    sheet: str

    def __post_init__(self) -> None:
        """Derives `has_switch` from `link`."""
        force_setattr(self, "has_switch", self.link > BUS_BYTES)
