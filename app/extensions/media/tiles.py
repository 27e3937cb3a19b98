"""Rules of models that cut an image into tiles of one size."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from app.extensions.media.rules import MAX_TILES, Count, ImageRule, ItemTokens, Positive

TileCount = Annotated[int, Meta(ge=1, le=MAX_TILES)]
Shape = tuple[int, int]
Resolutions = Annotated[tuple[tuple[Positive, Positive], ...], Meta(min_length=1, max_length=1_000)]
"""Sides in pixels; each image is compared with all of them."""
MERGED_RATIO = 1.1
"""Excess of patches over the limit from which LLaVA-OneVision merges them."""
NUMBERED_VERSION = 2.6
"""First version of MiniCPM-V that numbers images."""


class NearestShape(ImageRule, frozen=True, kw_only=True, tag="nearest_shape"):
    """The tiles have the shape nearest to that of the image: InternVL and its relatives."""

    image_size: Positive
    """Side of a tile in pixels."""
    tile_tokens: Positive
    """Tokens of a tile."""
    min_dynamic_patch: TileCount = 1
    """Minimum number of tiles."""
    max_dynamic_patch: TileCount = 12
    """Maximum number of tiles, without the thumbnail."""
    dynamic_image_size: bool = True
    """False for one tile whatever the size."""
    use_thumbnail: bool = True
    """Several tiles are followed by the whole image in one tile."""
    marks: Count = 2
    """Tokens before and behind the tiles."""

    def tokens(self, width: int, height: int) -> ItemTokens:
        """Returns the tokens of all tiles."""
        tiles = 1
        if self.dynamic_image_size:
            shapes = tile_shapes(self.min_dynamic_patch, self.max_dynamic_patch)
            columns, rows = nearest_shape(width, height, shapes, side=self.image_size)
            tiles = columns * rows
        if self.use_thumbnail and tiles > 1:
            tiles += 1
        embeddings = tiles * self.tile_tokens
        return ItemTokens(embeddings + self.marks, embeddings)


class BestCanvas(ImageRule, frozen=True, kw_only=True, tag="best_canvas"):
    """The canvas of tiles enlarges the image least, or shrinks it least: Llama 4."""

    image_size: Positive
    """Side of a tile in pixels."""
    tile_tokens: Positive
    max_patches: TileCount = 16
    """Maximum number of tiles, without the whole image."""
    resize_to_max_canvas: bool = False

    def tokens(self, width: int, height: int) -> ItemTokens:
        """Returns the tokens of tiles, of the separators, and of the whole image in a tile."""
        rows, columns = self._canvas(width, height)
        embeddings = self.tile_tokens
        marks = 3
        if rows * columns > 1:
            embeddings += rows * columns * self.tile_tokens
            marks += rows * columns
        return ItemTokens(embeddings + marks, embeddings)

    def _canvas(self, width: int, height: int) -> Shape:
        scales: list[tuple[float, Shape]] = []
        for rows, columns in canvas_shapes(self.max_patches):
            scale_width = single(columns * self.image_size / width)
            scale_height = single(rows * self.image_size / height)
            scales.append((min(scale_width, scale_height), (rows, columns)))
        growths = [scale for scale, _ in scales if scale >= 1]
        if not growths:
            chosen = max(scale for scale, _ in scales)
        elif self.resize_to_max_canvas:
            chosen = max(growths)
        else:
            chosen = min(growths)
        shapes = [shape for scale, shape in scales if scale == chosen]
        return min(shapes, key=lambda shape: shape[0] * shape[1])


class AnyResolution(ImageRule, frozen=True, kw_only=True, tag="any_resolution"):
    """The image is fitted into one of several resolutions, without padding: LLaVA-NeXT."""

    image_size: Positive
    """Side of a tile in pixels."""
    patch_size: Positive
    """Pixels."""
    image_grid_pinpoints: Resolutions
    """Heights and widths in pixels."""
    max_tiles: Count = 0
    """Tiles beyond which patches are merged, as in LLaVA-OneVision; 0 for no limit."""

    def __post_init__(self) -> None:
        """Raises ValueError for a tile without patches, or a resolution without tiles."""
        if self.image_size < self.patch_size:
            raise ValueError(f"Expected `patch_size` of at most {self.image_size}")
        if min(map(min, self.image_grid_pinpoints)) < self.image_size:
            raise ValueError(f"Expected `image_grid_pinpoints` of at least {self.image_size}")

    def tokens(self, width: int, height: int) -> ItemTokens:
        """Returns the tokens of the whole image, of its tiles, and of the ends of rows."""
        side = self.image_size // self.patch_size
        base_height, base_width = best_resolution(width, height, self.image_grid_pinpoints)
        rows = side * (base_height // self.image_size)
        columns = side * (base_width // self.image_size)
        if width / height > columns / rows:
            used_rows = int(round(height * (columns / width), 7))
            rows -= (rows - used_rows) // 2 * 2
        else:
            used_columns = int(round(width * (rows / height), 7))
            columns -= (columns - used_columns) // 2 * 2
        if self.max_tiles:
            ratio = math.sqrt(rows * columns / (self.max_tiles * side**2))
            if ratio > MERGED_RATIO:
                rows = int(rows // ratio)
                columns = int(columns // ratio)
        count = side * side + rows * columns + rows
        return ItemTokens(count, count)


class SplitImage(ImageRule, frozen=True, kw_only=True, tag="split_image"):
    """The longest side is enlarged to a limit, and tiles have marks: Idefics3 and SmolVLM."""

    longest_side: Positive
    """Pixels of the longest side before the image is cut."""
    tile_size: Positive
    """Side of a tile in pixels."""
    tile_tokens: Positive
    do_image_splitting: bool = True
    mark_tokens: Positive = 1
    """Tokens of the mark with a tile's row and column."""

    def tokens(self, width: int, height: int) -> ItemTokens:
        """Returns the tokens of tiles with their marks, the ends of rows, and the whole image."""
        rows, columns = self._grid(width, height)
        marks = 3
        tiles = 0
        if rows * columns > 1:
            tiles = rows * columns
            marks += tiles * (1 + self.mark_tokens) + rows + 1
            # The last two line breaks follow each other, and are one token of the vocabulary.
            marks -= 1
        embeddings = (tiles + 1) * self.tile_tokens
        return ItemTokens(embeddings + marks, embeddings)

    def _grid(self, width: int, height: int) -> Shape:
        if not self.do_image_splitting:
            return 0, 0
        ratio = width / height
        if width >= height:
            width = self.longest_side
            height = _even(int(width / ratio))
        else:
            height = self.longest_side
            width = _even(int(height * ratio))
        height = max(height, 1)
        width = max(width, 1)
        return math.ceil(height / self.tile_size), math.ceil(width / self.tile_size)

    def facts_of(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """Reads `size` and `max_image_size`, whose longest edges are sides."""
        facts: dict[str, object] = {}
        for name, fact in (("size", "longest_side"), ("max_image_size", "tile_size")):
            value = arguments.get(name)
            if isinstance(value, Mapping) and value.get("longest_edge") is not None:
                facts[fact] = value["longest_edge"]
        if arguments.get("do_image_splitting") is not None:
            facts["do_image_splitting"] = arguments["do_image_splitting"]
        return facts


class PaddedCrops(ImageRule, frozen=True, kw_only=True, tag="padded_crops"):
    """Crops of an enlarged and padded image, and the whole image: Phi-3 and Phi-3.5 vision."""

    image_size: Positive = 336
    """Side of a crop in pixels."""
    crop_side: Positive = 12
    """Tokens along each side of a crop."""
    num_crops: TileCount

    def tokens(self, width: int, height: int) -> ItemTokens:
        """Returns the tokens of crops, of the whole image, and of the ends of rows."""
        long_side = max(width, height)
        ratio = long_side / min(width, height)
        crops = 1
        while crops * math.ceil(crops / ratio) <= self.num_crops:
            crops += 1
        crops -= 1
        new_long = crops * self.image_size
        new_short = int(new_long / ratio)
        short_crops = math.ceil(new_short / self.image_size)
        rows = short_crops
        if height > width:
            rows = crops
        tiles = crops * short_crops + 1
        count = tiles * self.crop_side**2 + 1 + (rows + 1) * self.crop_side
        return ItemTokens(count, count)


class PaddedTiles(ImageRule, frozen=True, kw_only=True, tag="padded_tiles"):
    """Tiles of a padded image, less the tokens of padding, and the whole image: Phi-4."""

    image_size: Positive = 448
    """Side of a tile in pixels."""
    patch_size: Positive = 14
    """Pixels."""
    dynamic_hd: TileCount = 36
    """Maximum number of tiles."""

    def tokens(self, width: int, height: int) -> ItemTokens:
        """Returns the tokens of both views, of the separator, and of the ends of rows."""
        side = self.image_size
        columns = math.ceil(width / side)
        rows = math.ceil(height / side)
        if columns * rows > self.dynamic_hd:
            shapes = tile_shapes(1, self.dynamic_hd)
            columns, rows = nearest_shape(width, height, shapes, side=side)
        scale_width = columns * side / width
        scale_height = rows * side / height
        patch_columns = columns * side // self.patch_size
        patch_rows = rows * side // self.patch_size
        if scale_width < scale_height:
            patch_rows -= (rows * side - int(height * scale_width)) // self.patch_size
        else:
            patch_columns -= (columns * side - int(width * scale_height)) // self.patch_size
        # Squares of two patches are merged; an odd one at the end is a token, too.
        token_rows = math.ceil(patch_rows / 2)
        whole_side = side // self.patch_size // 2
        cropped = token_rows * (math.ceil(patch_columns / 2) + 1)
        count = whole_side * (whole_side + 1) + 1 + cropped
        return ItemTokens(count, count)


class CroppedViews(ImageRule, frozen=True, kw_only=True, tag="cropped_views"):
    """A view of the whole image and one of its tiles, with ends of rows: DeepSeek-VL2."""

    image_size: Positive
    """Side of a tile in pixels."""
    tile_side: Positive
    """Tokens along each side of a tile."""
    candidate_resolutions: Resolutions
    """Widths and heights in pixels."""
    uncropped_from: Positive = 3
    """Number of images in a prompt from which none is cropped."""

    def in_prompt(self, images: int) -> CroppedViews:
        """Returns a rule of one tile if the prompt has many images."""
        if images < self.uncropped_from:
            return self
        return replace(self, candidate_resolutions=((self.image_size, self.image_size),))

    def tokens(self, width: int, height: int) -> ItemTokens:
        """Returns the tokens of both views and of the separator."""
        swapped = tuple((high, wide) for wide, high in self.candidate_resolutions)
        best_height, best_width = best_resolution(width, height, swapped)
        side = self.tile_side
        rows = best_height // self.image_size
        columns = best_width // self.image_size
        whole = side * (side + 1)
        cropped = rows * side * (columns * side + 1)
        count = whole + cropped + 1
        return ItemTokens(count, count)


class PaddedViews(ImageRule, frozen=True, kw_only=True, tag="padded_views"):
    """A padded view of the whole image, and tiles of a larger one: DeepSeek-OCR."""

    image_size: Positive = 640
    """Side of a tile in pixels; a smaller image has none."""
    tile_side: Positive = 10
    """Tokens along each side of a tile."""
    base_side: Positive = 16
    """Tokens along each side of the padded view."""
    min_crops: TileCount = 2
    max_crops: TileCount = 6

    def tokens(self, width: int, height: int) -> ItemTokens:
        """Returns the tokens of the view and the tiles with ends of rows, and of the separator."""
        count = self.base_side * (self.base_side + 1) + 1
        if max(width, height) > self.image_size:
            shapes = tile_shapes(self.min_crops, self.max_crops)
            columns, rows = nearest_shape(width, height, shapes, side=self.image_size)
            if columns * rows > 1:
                count += rows * self.tile_side * (columns * self.tile_side + 1)
        return ItemTokens(count, count)


class PanAndScan(ImageRule, frozen=True, kw_only=True, tag="pan_and_scan"):
    """One tile, and crops of long images if they are switched on: Gemma 3."""

    tile_tokens: Positive = 256
    marks: Count = 4
    """Line breaks and marks around a tile."""
    do_pan_and_scan: bool = False
    pan_and_scan_min_crop_size: Positive = 256
    """Pixels."""
    pan_and_scan_max_num_crops: TileCount = 4
    pan_and_scan_min_ratio_to_activate: float = 1.2
    words: Count = 15
    """Tokens of the sentence that introduces the crops."""

    def tokens(self, width: int, height: int) -> ItemTokens:
        """Returns the tokens of the image and its crops."""
        crops = self._crops(width, height)
        embeddings = (crops + 1) * self.tile_tokens
        marks = (crops + 1) * self.marks
        if crops:
            marks += self.words
        return ItemTokens(embeddings + marks, embeddings)

    def _crops(self, width: int, height: int) -> int:
        if not self.do_pan_and_scan:
            return 0
        long_side = max(width, height)
        short_side = min(width, height)
        ratio = long_side / short_side
        if ratio < self.pan_and_scan_min_ratio_to_activate:
            return 0
        min_size = self.pan_and_scan_min_crop_size
        crops = min(long_side // min_size, math.floor(ratio + 0.5))
        crops = min(self.pan_and_scan_max_num_crops, max(2, crops))
        if min(math.ceil(long_side / crops), short_side) < min_size:
            return 0
        return crops


class SlicedImage(ImageRule, frozen=True, kw_only=True, tag="sliced_image"):
    """The whole image, and a grid of slices in its shape: MiniCPM-V and MiniCPM-o."""

    image_feature_size: Positive = 64
    """Tokens of the whole image, and of a slice."""
    scale_resolution: Positive = 448
    """Side in pixels of a square; an image without more pixels has no slices."""
    max_slice_nums: TileCount = 9
    """Maximum number of slices, without the whole image."""
    slice_mode: bool = True
    id_tokens: Count = 3
    """Number of the image with its marks."""
    grid_marks: Count = 0
    """Marks around all slices, as in MiniCPM-V 2.5."""

    def with_files(self, values: Mapping[str, object]) -> ImageRule:
        """Returns the rule with the facts in the files, whose `version` determines the marks."""
        rule = super().with_files(values)
        version = values.get("version")
        if isinstance(version, int | float) and version < NUMBERED_VERSION:
            rule = replace(rule, id_tokens=0, grid_marks=2)
        return rule

    def tokens(self, width: int, height: int) -> ItemTokens:
        """Returns the tokens of the image and its slices, with marks and ends of rows."""
        columns, rows = self._grid(width, height)
        slices = columns * rows
        marks = self.id_tokens + 2
        if slices:
            marks += self.grid_marks + 2 * slices + rows - 1
        embeddings = (slices + 1) * self.image_feature_size
        return ItemTokens(embeddings + marks, embeddings)

    def _grid(self, width: int, height: int) -> Shape:
        squares = math.ceil(width * height / self.scale_resolution**2)
        count = min(squares, self.max_slice_nums)
        if count <= 1 or not self.slice_mode:
            return 0, 0
        counts = range(max(count - 1, 2), min(count + 1, self.max_slice_nums) + 1)
        ratio = math.log(width / height)
        return min(grids(counts), key=lambda shape: abs(ratio - math.log(shape[0] / shape[1])))


class OverlappingCrops(ImageRule, frozen=True, kw_only=True, tag="overlapping_crops"):
    """The whole image, and crops that overlap, with ends of rows: Molmo."""

    max_crops: TileCount = 12
    """Maximum number of crops, without the whole image."""
    overlap_margins: tuple[Count, Count] = (4, 4)
    """Patches at the first and the last side of a crop that its neighbors have, too."""
    base_image_input_size: tuple[Positive, Positive] = (336, 336)
    """Sides of a crop in pixels."""
    image_patch_size: Positive = 14
    """Pixels."""
    image_token_length_w: Positive = 12
    """Tokens of a row of the whole image."""
    image_token_length_h: Positive = 12

    def __post_init__(self) -> None:
        """Raises ValueError for margins that leave nothing of a crop."""
        if self._window < 1:
            raise ValueError("Expected `overlap_margins` within `base_image_input_size`")

    def tokens(self, width: int, height: int) -> ItemTokens:
        """Returns the tokens of the image and its crops, with ends of rows and marks."""
        rows, columns = map(self._side, self._shape(width, height))
        whole_rows = self.image_token_length_h
        embeddings = whole_rows * self.image_token_length_w + rows * columns
        return ItemTokens(embeddings + whole_rows + rows + 4, embeddings)

    @property
    def _window(self) -> int:
        """Patches of a crop without its margins."""
        return self.base_image_input_size[0] // self.image_patch_size - sum(self.overlap_margins)

    def _side(self, crops: int) -> int:
        """Returns the tokens along so many crops, each of two patches."""
        first, last = self.overlap_margins
        if crops == 1:
            return math.ceil((self._window + first + last) / 2)
        inner = (crops - 2) * math.ceil(self._window / 2)
        return math.ceil((self._window + first) / 2) + inner + math.ceil((self._window + last) / 2)

    def _shape(self, width: int, height: int) -> Shape:
        """Returns the rows and columns that enlarge the image least, or shrink it least."""
        margins = sum(self.overlap_margins) * self.image_patch_size
        side = self._window * self.image_patch_size
        shapes = grids(range(1, self.max_crops + 1))
        scales = [
            min(scale(rows * side, height - margins), scale(columns * side, width - margins))
            for rows, columns in shapes
        ]
        growths = [number for number in scales if number >= 1]
        chosen = min(growths) if growths else max(scales)
        return shapes[scales.index(chosen)]


def scale(length: int, original: int) -> float:
    """Returns a quotient of single precision; infinity for an image as small as its margins."""
    if not original:
        return math.inf
    return single(length / original)


def single(number: float) -> float:
    """Returns the nearest number of single precision: Llama 4 compares such scales."""
    rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    return rounded


def grids(counts: Iterable[int]) -> list[Shape]:
    """Returns the shapes of each number of tiles, the smallest first side first."""
    return [(first, count // first) for count in counts for first in divisors(count)]


@lru_cache(maxsize=8)
def tile_shapes(min_tiles: int, max_tiles: int) -> Sequence[Shape]:
    """Returns columns and rows of tiles, the fewest tiles first.

    The order of shapes with equal numbers decides between equally near ones. It is that of a set of
    Python, because the processors of these models fill a set in this order.
    """
    shapes: set[Shape] = set()
    for count in range(min_tiles, max_tiles + 1):
        for columns in range(1, count + 1):
            for rows in range(1, count + 1):
                if min_tiles <= columns * rows <= max_tiles:
                    shapes.add((columns, rows))
    return sorted(shapes, key=lambda shape: shape[0] * shape[1])


def nearest_shape(width: int, height: int, shapes: Sequence[Shape], *, side: int) -> Shape:
    """Returns columns and rows whose ratio is nearest to that of the image.

    Of equally near ones, the last one wins for an image with more than half of its pixels.
    """
    ratio = width / height
    least = math.inf
    nearest = (1, 1)
    for columns, rows in shapes:
        difference = abs(ratio - columns / rows)
        if difference < least:
            least = difference
            nearest = (columns, rows)
        elif difference == least and width * height > 0.5 * side * side * columns * rows:
            nearest = (columns, rows)
    return nearest


@lru_cache(maxsize=8)
def canvas_shapes(max_tiles: int) -> Sequence[Shape]:
    """Returns rows and columns of canvases; Llama 4 tries them in this order."""
    by_ratio: dict[float, list[Shape]] = {}
    for count in range(max_tiles, 0, -1):
        for rows in divisors(count):
            columns = count // rows
            by_ratio.setdefault(rows / columns, []).append((rows, columns))
    return [shape for shapes in by_ratio.values() for shape in shapes]


def divisors(count: int) -> Iterator[int]:
    """Yields the divisors of a number, in order."""
    return (divisor for divisor in range(1, count + 1) if count % divisor == 0)


def best_resolution(width: int, height: int, resolutions: Sequence[Shape]) -> Shape:
    """Returns the height and width that keep most pixels of an image, and waste least."""
    best = resolutions[0]
    max_used = 0
    min_wasted = math.inf
    for base_height, base_width in resolutions:
        scale = min(base_width / width, base_height / height)
        used = min(int(width * scale) * int(height * scale), width * height)
        wasted = base_height * base_width - used
        if used > max_used or (used == max_used and wasted < min_wasted):
            max_used = used
            min_wasted = wasted
            best = (base_height, base_width)
    return best


def _even(number: int) -> int:
    return number + number % 2
