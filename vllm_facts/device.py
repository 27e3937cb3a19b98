"""A device, and the overhead of engines that were measured on it."""

from msgspec import Struct

GIB = 1 << 30
TERA = 1e12
BUS_BYTES = 0.1e12
"""Bytes per second of the fastest bus, in one direction."""


class Device(Struct, frozen=True, kw_only=True):
    """An accelerator.

    Operations are per second and dense; sheets often have twice as many, with sparsity.
    """

    name: str
    bandwidth: float
    """Memory bandwidth, in bytes per second."""
    flops: float
    """Operations per second in bf16."""
    flops_8bit: float | None
    """Operations per second in fp8; None without fp8 arithmetic."""
    flops_32bit: float
    """Operations per second in float32, without tensor cores."""
    memory: float
    """Bytes for a process: the sheet's memory, less the share of driver and error correction."""
    link: float
    """Bytes per second to the server's other devices, in one direction: half of the sheet's figure.
    """
    sheet: str
    is_unified: bool = False
    """The memory is also that of the host."""

    @property
    def has_switch(self) -> bool:
        """True if links that are faster than the bus connect the devices of a server."""
        return self.link > BUS_BYTES


class SheetOverhead(Struct, frozen=True, kw_only=True):
    """Seconds that measured servers took beyond the shares of the data sheet."""

    layer_s: float = 0.0
    """Of each layer in each step."""
    expert_layer_s: float = 0.0
    """Of each layer with experts in each step, besides."""
    sequence_s: float = 0.0
    """Of each sequence in each step."""
    checked: str = ""
