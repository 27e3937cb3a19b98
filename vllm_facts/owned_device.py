"""A device with a known memory."""

from __future__ import annotations

from msgspec import Struct

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
