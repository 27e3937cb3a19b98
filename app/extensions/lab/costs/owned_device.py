"""A device with a known memory."""

from __future__ import annotations

from msgspec import Struct

from app.extensions.lab.costs.devices import GIB

LARGE_GIB = 70
"""Memory from which on vLLM computes longer steps by default."""
AMD = 0.0
"""Capability of devices that do not have Nvidia's."""


class OwnedDevice(Struct, frozen=True, kw_only=True):
    """The memory of a device."""

    name: str
    memory: float
    """Bytes for a process."""
    capability: float = AMD
    """Nvidia's compute capability."""
    is_unified: bool = False
    """The memory is also that of the host."""
    has_switch: bool = False
    """Links that are faster than the bus connect the devices of a server."""

    @property
    def max_num_batched_tokens(self) -> int:
        """Default of vLLM for a server on this device."""
        is_large = self.memory >= LARGE_GIB * GIB and "A100" not in self.name
        is_large = is_large and not self.is_unified
        return 8192 if is_large else 2048

    @property
    def max_num_seqs(self) -> int:
        """Default of vLLM, in the same way."""
        return 1024 if self.max_num_batched_tokens == 8192 else 256
