"""Sizes of images, read from the headers of PNG, JPEG, GIF, WebP, BMP and TIFF files.

No pixel is decoded, so that a file costs neither time nor memory for the size that it claims. Start
reading at `read_image`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

MAX_SIDE = 1 << 24
"""Pixels; a longer side is that of a damaged file."""
MAX_PIXELS = 178_956_970
"""Pixels of the largest image that vLLM opens."""
MAX_SEGMENTS = 1_000
"""Segments of a JPEG file that are skipped; a camera writes fewer than a hundred."""
PNG = b"\x89PNG\r\n\x1a\n"
PNG_HEADER_BYTES = 33
MAX_CHUNKS = 1_000
"""Chunks of a PNG file that are checked."""
PNG_MODES = {0: "L", 2: "RGB", 3: "P", 4: "LA", 6: "RGBA"}
JPEG = b"\xff\xd8\xff"
JPEG_MODES = {1: "L", 3: "RGB", 4: "CMYK"}
JPEG_SIZES = frozenset((*range(0xC0, 0xD0),)) - {0xC4, 0xC8, 0xCC}
"""Markers of the segments with the size."""
JPEG_BARE = frozenset((0x01, *range(0xD0, 0xD8)))
"""Markers of segments without a length."""
START_OF_SCAN = 0xDA
APP1 = 0xE1
EXIF = b"Exif\x00\x00"
ORIENTATION = 0x0112
SIDEWAYS = range(5, 9)
"""Orientations that swap the sides."""
TIFF_WIDTH = 0x0100
TIFF_HEIGHT = 0x0101
TIFF_ENTRY_BYTES = 12
MAX_TIFF_ENTRIES = 500
ALPHA = 0x10
"""Bit of the flags of an extended WebP file."""


class ImageError(ValueError):
    """The data are no image that can be read; the message is the one of vLLM."""


class OversizeError(ImageError):
    """The size is that of a file that harms its reader."""


class ImageHeader(Struct, frozen=True):
    """Fields of the header of an image file."""

    width: int
    """Pixels."""
    height: int
    mode: str = "RGB"
    """Mode in Pillow's words."""
    orientation: int = 1
    """Orientation of EXIF."""

    def upright(self) -> ImageHeader:
        """Returns the size after the rotation that the orientation asks for."""
        if self.orientation not in SIDEWAYS:
            return self
        return replace(self, width=self.height, height=self.width, orientation=1)


def read_image(data: bytes) -> ImageHeader:
    """Returns the upright size of an image.

    Raises:
        ImageError: The data are no image, or too large an image.
    """
    readers: Mapping[bytes, Callable[[memoryview], ImageHeader | None]] = {
        PNG: _png,
        JPEG: _jpeg,
        b"GIF8": _gif,
        b"RIFF": _webp,
        b"BM": _bmp,
        b"II*\x00": _tiff,
        b"MM\x00*": _tiff,
    }
    header = None
    for signature, read in readers.items():
        if data.startswith(signature):
            header = read(memoryview(data))
            break
    if header is None:
        raise ImageError("cannot identify image file <_io.BytesIO object>")
    if not (0 < header.width <= MAX_SIDE and 0 < header.height <= MAX_SIDE):
        raise ImageError("cannot identify image file <_io.BytesIO object>")
    pixels = header.width * header.height
    if pixels > MAX_PIXELS:
        raise OversizeError(
            f"Image size ({pixels} pixels) exceeds limit of {MAX_PIXELS} pixels, could be "
            "decompression bomb DOS attack."
        )
    return header.upright()


def _png(data: memoryview) -> ImageHeader | None:
    if len(data) < PNG_HEADER_BYTES:
        raise ImageError("Truncated File Read")
    if bytes(data[12:16]) != b"IHDR":
        return None
    _check_chunks(data)
    mode = PNG_MODES.get(data[25], "RGB")
    return ImageHeader(_big(data[16:20]), _big(data[20:24]), mode)


def _check_chunks(data: memoryview) -> None:
    """Raises ImageError for a PNG file that ends within its pixels."""
    place = len(PNG)
    for _ in range(MAX_CHUNKS):
        kind = bytes(data[place + 4 : place + 8])
        if kind == b"IEND":
            return
        place += 12 + _big(data[place : place + 4])
        if place > len(data):
            raise ImageError("image file is truncated")
        if place == len(data):
            return


def _gif(data: memoryview) -> ImageHeader | None:
    if len(data) < 10 or bytes(data[:6]) not in (b"GIF87a", b"GIF89a"):
        return None
    return ImageHeader(_little(data[6:8]), _little(data[8:10]), "P")


def _bmp(data: memoryview) -> ImageHeader | None:
    if len(data) < 30:
        return None
    if _little(data[14:18]) == 12:  # the header of OS/2
        return ImageHeader(_little(data[18:20]), _little(data[20:22]))
    height = int.from_bytes(data[22:26], "little", signed=True)
    mode = "RGB" if _little(data[28:30]) >= 16 else "P"
    return ImageHeader(_little(data[18:22]), abs(height), mode)


def _webp(data: memoryview) -> ImageHeader | None:
    if len(data) < 30 or bytes(data[8:12]) != b"WEBP":
        return None
    kind = bytes(data[12:16])
    if kind == b"VP8 ":
        return ImageHeader(_little(data[26:28]) & 0x3FFF, _little(data[28:30]) & 0x3FFF)
    if kind == b"VP8L":
        bits = _little(data[21:25])
        mode = "RGBA" if bits >> 28 & 1 else "RGB"
        return ImageHeader((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, mode)
    if kind == b"VP8X":
        mode = "RGBA" if data[20] & ALPHA else "RGB"
        return ImageHeader(_little(data[24:27]) + 1, _little(data[27:30]) + 1, mode)
    return None


def _jpeg(data: memoryview) -> ImageHeader | None:
    orientation: int | None = None
    for marker, body in _segments(data):
        # Pillow reads the first one; each may be long.
        if marker == APP1 and body[:6] == EXIF and orientation is None:
            orientation = _orientation(body[6:])
        elif marker in JPEG_SIZES and len(body) >= 6:
            mode = JPEG_MODES.get(body[5], "RGB")
            height = _big(body[1:3])
            return ImageHeader(_big(body[3:5]), height, mode, orientation or 1)
    return None


def _segments(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yields the markers and contents of the segments before the pixels."""
    place = 2
    for _ in range(MAX_SEGMENTS):
        if place + 4 > len(data) or data[place] != 0xFF:
            return
        marker = data[place + 1]
        if marker == 0xFF:  # a byte of padding
            place += 1
            continue
        if marker in JPEG_BARE:
            place += 2
            continue
        length = _big(data[place + 2 : place + 4])
        if marker == START_OF_SCAN or length < 2:
            return
        yield marker, data[place + 4 : place + 2 + length]
        place += 2 + length


def _tiff(data: memoryview) -> ImageHeader | None:
    fields = dict(_tiff_fields(data))
    width = fields.get(TIFF_WIDTH)
    height = fields.get(TIFF_HEIGHT)
    if width is None or height is None:
        return None
    return ImageHeader(width, height, orientation=fields.get(ORIENTATION, 1))


def _orientation(data: memoryview) -> int:
    return dict(_tiff_fields(data)).get(ORIENTATION, 1)


def _tiff_fields(data: memoryview) -> Iterator[tuple[int, int]]:
    """Yields the tags and the values of the whole numbers in the first directory."""
    order = bytes(data[:2])
    if order not in (b"II", b"MM"):
        return
    number = _little if order == b"II" else _big
    start = number(data[4:8])
    count = min(number(data[start : start + 2]), MAX_TIFF_ENTRIES)
    for entry in range(count):
        place = start + 2 + entry * TIFF_ENTRY_BYTES
        fields = data[place : place + TIFF_ENTRY_BYTES]
        if len(fields) < TIFF_ENTRY_BYTES:
            return
        kind = number(fields[2:4])
        if kind == 3:
            yield number(fields[:2]), number(fields[8:10])
        elif kind == 4:
            yield number(fields[:2]), number(fields[8:12])


def _big(data: memoryview) -> int:
    return int.from_bytes(data, "big")


def _little(data: memoryview) -> int:
    return int.from_bytes(data, "little")
