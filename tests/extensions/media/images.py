"""Small image files, made from their formats' definitions."""

import base64
import struct
import zlib
from typing import Any


def png(width: int, height: int, color_type: int = 2) -> bytes:
    """Returns a PNG file with a header, a few pixels, and an end; it decodes to nothing."""
    header = struct.pack(">IIBBBBB", width, height, 8, color_type, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0")), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, body) for kind, body in chunks)


def _chunk(kind: bytes, body: bytes) -> bytes:
    checksum = struct.pack(">I", zlib.crc32(kind + body))
    return struct.pack(">I", len(body)) + kind + body + checksum


def jpeg(width: int, height: int, *segments: bytes, components: int = 3) -> bytes:
    """Returns the segments of a JPEG file up to the size."""
    size = struct.pack(">BHHB", 8, height, width, components) + bytes(3 * components)
    frame = b"\xff\xc0" + struct.pack(">H", len(size) + 2) + size
    return b"\xff\xd8" + b"".join(segments) + frame + b"\xff\xda\x00\x02\xff\xd9"


def exif(orientation: int, order: str = "<") -> bytes:
    """Returns the segment of a JPEG file with an orientation."""
    mark = b"II" if order == "<" else b"MM"
    entry = struct.pack(f"{order}HHIHH", 0x0112, 3, 1, orientation, 0)
    body = b"Exif\0\0" + mark + struct.pack(f"{order}HIH", 42, 8, 1) + entry
    return b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body


def tiff(width: int, height: int) -> bytes:
    """Returns a TIFF file with a directory of its size."""
    entries = [(0x0100, width), (0x0101, height)]
    fields = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in entries)
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + fields


def gif(width: int, height: int) -> bytes:
    """Returns the header of a GIF file."""
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0\0\0;"


def bmp(width: int, height: int) -> bytes:
    """Returns the header of a BMP file."""
    return b"BM" + bytes(12) + struct.pack("<IiiHH", 40, width, height, 1, 24) + bytes(24)


def webp(kind: bytes, width: int, height: int) -> bytes:
    """Returns the beginning of a WebP file of one of its three kinds."""
    if kind == b"VP8 ":
        body = bytes(3) + b"\x9d\x01\x2a" + struct.pack("<HH", width, height)
    elif kind == b"VP8L":
        body = b"\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14)
    else:
        sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
        body = bytes(4) + sides
    return (
        b"RIFF" + struct.pack("<I", 100) + b"WEBP" + kind + struct.pack("<I", 50) + body + bytes(9)
    )


def data_url(data: bytes) -> str:
    """Returns a data URL."""
    return "data:image/png;base64," + base64.b64encode(data).decode()


def image_part(url: str, **fields: object) -> dict[str, Any]:
    """Returns a part of a message with an image."""
    return {"type": "image_url", "image_url": {"url": url}, **fields}
