"""Rules of models that resize an image and cut it into a grid of patches."""

from __future__ import annotations

import math
from collections.abc import Mapping

from app.extensions.media.rules import MAX_RATIO, ImageRule, ItemTokens, Positive, RuleError


class AreaGrid(ImageRule, frozen=True, kw_only=True, tag="area_grid"):
    """The image keeps its shape, and its area stays within two limits: Qwen-VL and GLM-V."""

    patch_size: Positive
    """Pixels."""
    merge_size: Positive
    """Patches along each side that become one token."""
    min_pixels: Positive
    max_pixels: Positive
    frames: Positive = 1
    """Copies of the image in a step of time, which count for the limits of GLM-V."""
    enlarges_sides: bool = False
    """A side shorter than a token is enlarged first."""

    def tokens(self, width: int, height: int) -> ItemTokens:
        """Returns one token for each square of merged patches."""
        columns, rows = self.grid(width, height)
        return ItemTokens(columns * rows, columns * rows)

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Returns the columns and rows of tokens.

        Raises:
            RuleError: One side is more than 200 times as long as the other.
        """
        side = self.patch_size * self.merge_size
        if self.enlarges_sides and min(width, height) < side:
            scale = max(side / height, side / width)
            width = int(width * scale)
            height = int(height * scale)
        ratio = max(width, height) / min(width, height)
        if ratio > MAX_RATIO:
            raise RuleError(f"absolute aspect ratio must be smaller than {MAX_RATIO}, got {ratio}")
        # Python rounds halves to even numbers, as the processors do.
        columns = round(width / side)
        rows = round(height / side)
        frames = self.frames
        area = columns * side * rows * side * frames
        if area > self.max_pixels:
            shrinking = math.sqrt(frames * height * width / self.max_pixels)
            columns = max(1, math.floor(width / shrinking / side))
            rows = max(1, math.floor(height / shrinking / side))
        elif area < self.min_pixels:
            growth = math.sqrt(self.min_pixels / (frames * height * width))
            columns = math.ceil(width * growth / side)
            rows = math.ceil(height * growth / side)
        return columns, rows

    def facts_of(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """Also reads `size`, whose edges are areas; `min_pixels` and `max_pixels` win."""
        facts: dict[str, object] = {}
        size = arguments.get("size")
        if isinstance(size, Mapping):
            if size.get("shortest_edge") is not None:
                facts["min_pixels"] = size["shortest_edge"]
            if size.get("longest_edge") is not None:
                facts["max_pixels"] = size["longest_edge"]
        for name in ("min_pixels", "max_pixels"):
            if arguments.get(name) is not None:
                facts[name] = arguments[name]
        return facts


class SideGrid(ImageRule, frozen=True, kw_only=True, tag="side_grid"):
    """The longest side has a limit, and each row ends with a mark: Pixtral and Mistral."""

    patch_size: Positive
    """Pixels."""
    merge_size: Positive = 1
    """Patches along each side that become one token."""
    longest_side: Positive
    """Pixels."""

    def tokens(self, width: int, height: int) -> ItemTokens:
        """Returns the patches, and a mark behind each row."""
        ratio = max(width / self.longest_side, height / self.longest_side)
        if ratio > 1:
            width = math.floor(width / ratio)
            height = math.floor(height / ratio)
        if not (width and height):
            raise RuleError("height and width must be > 0")
        side = self.patch_size * self.merge_size
        columns = (width - 1) // side + 1
        rows = (height - 1) // side + 1
        return ItemTokens((columns + 1) * rows, columns * rows)

    def facts_of(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """Reads `size` with the limit of the longest side."""
        size = arguments.get("size")
        if isinstance(size, Mapping) and size.get("longest_edge") is not None:
            return {"longest_side": size["longest_edge"]}
        return {}


class LimitedGrid(ImageRule, frozen=True, kw_only=True, tag="limited_grid"):
    """The number of patches has a limit, and the image is padded to whole tokens: Kimi-VL."""

    patch_size: Positive
    """Pixels."""
    merge_size: Positive
    """Patches along each side that become one token."""
    in_token_limit: Positive
    """Patches."""

    def tokens(self, width: int, height: int) -> ItemTokens:
        """Returns one token for each square of merged patches."""
        patches = (width // self.patch_size) * (height // self.patch_size)
        if patches > self.in_token_limit:
            scale = math.sqrt(self.in_token_limit / patches)
            width = int(width * scale)
            height = int(height * scale)
        if not (width and height):
            raise RuleError("height and width must be > 0")
        side = self.patch_size * self.merge_size
        count = math.ceil(height / side) * math.ceil(width / side)
        return ItemTokens(count, count)


class PooledGrid(ImageRule, frozen=True, kw_only=True, tag="pooled_grid"):
    """The image is scaled to a number of tokens, each a square of pooled patches: Gemma 4."""

    patch_size: Positive
    """Pixels."""
    pooling_kernel_size: Positive
    """Patches along each side that become one token."""
    max_soft_tokens: Positive = 280

    def tokens(self, width: int, height: int) -> ItemTokens:
        """Returns the tokens of the image between two marks."""
        pooled = self.pooling_kernel_size
        side = self.patch_size * pooled
        patches = (height / self.patch_size) * (width / self.patch_size)
        scale = math.sqrt(self.max_soft_tokens * pooled**2 / patches)
        rows = max(1, math.floor(height * scale / side))
        columns = max(1, math.floor(width * scale / side))
        count = min(rows * columns, self.max_soft_tokens)
        return ItemTokens(count + 2, count)
