"""The sizes of an encoder of images or sounds, which `encoders.py` has by architecture."""

from typing import Annotated, Final

from msgspec import Meta, Struct

LayerCount = Annotated[int, Meta(ge=1, le=1024)]
Width = Annotated[int, Meta(ge=1, le=1 << 20)]
GATED: Final = 3
"""Matrices of a feed-forward network with a gate."""
PLAIN: Final = 2


class Encoder(Struct, frozen=True, kw_only=True):
    """Sizes of an encoder of transformer layers."""

    layers: LayerCount
    width: Width
    inner_width: Width
    """Numbers of a patch within a feed-forward network."""
    matrices: int = PLAIN
    """Matrices of a feed-forward network."""
    merged_patches: Annotated[int, Meta(ge=1, le=4096)] = 1
    """Patches that become one token of the prompt."""
    window: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    """Patches that attend to each other: those of a tile or a window; 0 for all of an image."""
    full_layers: Annotated[int, Meta(ge=0, le=1024)] = 0
    """Layers without the window."""
