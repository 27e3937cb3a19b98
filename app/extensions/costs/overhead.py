"""Type of the rows in `sheet_overheads`."""

from msgspec import Struct


class SheetOverhead(Struct, frozen=True, kw_only=True):
    """Seconds that measured servers took beyond the shares of the data sheet."""

    layer_s: float = 0.0
    """Of each layer in each step."""
    expert_layer_s: float = 0.0
    """Of each layer with experts in each step, besides."""
    sequence_s: float = 0.0
    """Of each sequence in each step."""
    checked: str = ""
