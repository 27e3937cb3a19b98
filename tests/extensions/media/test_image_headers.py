"""Sizes in the headers of images, also of hostile ones."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.extensions.media.image_headers import ImageError, ImageHeader, OversizeError, read_image
from tests.extensions.media.images import bmp, exif, gif, jpeg, png, tiff, webp

FILES = {
    "PNG": png(640, 480),
    "JPEG": jpeg(640, 480),
    "JPEG with padding": jpeg(640, 480, b"\xff\xff\xfe\x00\x04ab"),
    "JPEG with a bare marker": jpeg(640, 480, b"\xff\x01"),
    "GIF": gif(640, 480),
    "BMP": bmp(640, 480),
    "BMP upside down": bmp(640, -480),
    "TIFF": tiff(640, 480),
    "WebP": webp(b"VP8 ", 640, 480),
    "lossless WebP": webp(b"VP8L", 640, 480),
    "extended WebP": webp(b"VP8X", 640, 480),
}


@pytest.mark.parametrize("name", FILES)
def test_size_is_read_from_the_header(name: str) -> None:
    header = read_image(FILES[name])
    assert (header.width, header.height) == (640, 480)


@pytest.mark.parametrize(
    ("data", "mode"),
    [
        (png(1, 1), "RGB"),
        (png(1, 1, 6), "RGBA"),
        (png(1, 1, 0), "L"),
        (png(1, 1, 3), "P"),
        (jpeg(1, 1, components=1), "L"),
        (jpeg(1, 1, components=4), "CMYK"),
        (gif(1, 1), "P"),
    ],
)
def test_mode_is_read_from_the_header(data: bytes, mode: str) -> None:
    assert read_image(data).mode == mode


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("orientation", "turned"), [(1, False), (3, False), (6, True), (8, True)])
def test_orientation_swaps_the_sides(order: str, orientation: int, turned: bool) -> None:
    header = read_image(jpeg(300, 100, exif(orientation, order)))
    expected = (100, 300) if turned else (300, 100)
    assert (header.width, header.height) == expected


def test_first_orientation_counts_as_in_pillow() -> None:
    header = read_image(jpeg(300, 100, exif(6), exif(1)))
    assert (header.width, header.height) == (100, 300)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "cannot identify image file <_io.BytesIO object>"),
        (b"hello", "cannot identify image file <_io.BytesIO object>"),
        (png(640, 480)[:20], "Truncated File Read"),
        (png(640, 480)[:-20], "image file is truncated"),
        (png(0, 480), "cannot identify image file <_io.BytesIO object>"),
        (jpeg(640, 0), "cannot identify image file <_io.BytesIO object>"),
    ],
)
def test_damaged_file_is_rejected_with_the_words_of_pillow(data: bytes, message: str) -> None:
    with pytest.raises(ImageError) as caught:
        read_image(data)
    assert str(caught.value) == message


def test_too_large_image_is_rejected() -> None:
    with pytest.raises(OversizeError, match="3600000000 pixels"):
        read_image(png(60_000, 60_000))


HOSTILE = {
    "JPEG of empty segments": b"\xff\xd8" + b"\xff\xe0\x00\x02" * 200_000,
    "JPEG of padding": b"\xff\xd8" + b"\xff" * 1_000_000,
    "JPEG of bare markers": b"\xff\xd8" + b"\xff\xd0" * 500_000,
    "JPEG with a segment without a length": b"\xff\xd8\xff\xe0\x00\x00" + bytes(100),
    "JPEG with a segment beyond the end": b"\xff\xd8\xff\xe0\xff\xff" + bytes(100),
    "JPEG with a circular EXIF": b"\xff\xd8\xff\xe1\x00\x20Exif\0\0II*\0\x00\x00\x00\x00"
    + bytes(20),
    "PNG of empty chunks": b"\x89PNG\r\n\x1a\n" + bytes(4) + b"IHDR" + bytes(12_000_000),
    "PNG with a chunk of 4 GB": png(9, 9)[:33] + b"\xff\xff\xff\xffIDAT" + bytes(100),
    "PNG that begins with its end": b"\x89PNG\r\n\x1a\n" + bytes(4) + b"IEND" + bytes(100),
    "TIFF without a directory": b"II*\0\xff\xff\xff\xff" + bytes(100),
    "TIFF with a directory of itself": b"II*\0\x00\x00\x00\x00" + bytes(100),
    "TIFF with 65535 entries": b"II*\0\x08\x00\x00\x00\xff\xff" + bytes(800_000),
    "TIFF with wrong kinds": b"II*\0\x08\x00\x00\x00\x02\x00" + b"\x00\x01\xff\xff" * 20,
    "RIFF without WebP": b"RIFF" + bytes(100),
    "WebP of an unknown kind": webp(b"ABCD", 640, 480),
    "GIF of nothing": b"GIF89a",
    "BMP of nothing": b"BM",
    "BMP of OS/2": b"BM" + bytes(12) + struct.pack("<IHH", 12, 0, 0) + bytes(24),
    "BMP with the widest row": bmp(-1, 1),
    "PNG with the widest row": png(2**32 - 1, 1),
    "JPEG of comments": b"\xff\xd8" + (b"\xff\xfe\xff\xff" + bytes(65_533)) * 40,
    "JPEG of EXIF": b"\xff\xd8" + exif(6) * 10_000,
    "JPEG of nested files": b"\xff\xd8\xff\xd8\xff\xd8" + bytes(100),
    "JPEG of a short size": b"\xff\xd8\xff\xc0\x00\x04\x08\x00" + bytes(100),
    "JPEG of a table alone": b"\xff\xd8\xff\xc4\x00\x04ab\xff\xda\x00\x02",
    "PNG without a header": b"\x89PNG\r\n\x1a\n" + bytes(4) + b"IDAT" + bytes(100),
    "TIFF of the other order": b"MM\x00*\x08\x00\x00\x00" + bytes(100),
    "TIFF of sides of 0": tiff(0, 0),
    "TIFF of the largest sides": tiff(2**32 - 1, 2**32 - 1),
    "WebP of nothing": b"RIFF\x00\x00\x00\x00WEBP",
    "PNG with the longest column": png(1, 2**32 - 1),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file_is_rejected(name: str) -> None:
    with pytest.raises(ImageError):
        read_image(HOSTILE[name])


@given(st.sampled_from([*FILES.values()]), st.data())
def test_any_change_of_a_file_leaves_a_size_or_an_error(file: bytes, data: st.DataObject) -> None:
    changed = bytearray(file)
    for _ in range(data.draw(st.integers(min_value=1, max_value=4))):
        place = data.draw(st.integers(min_value=0, max_value=len(file) - 1))
        changed[place] = data.draw(st.integers(min_value=0, max_value=255))
    end = data.draw(st.integers(min_value=0, max_value=len(file)))
    try:
        header = read_image(bytes(changed[:end]))
    except ImageError:
        return
    assert isinstance(header, ImageHeader)
    assert header.width > 0
    assert header.height > 0


@given(st.binary(max_size=200))
def test_random_data_are_rejected(data: bytes) -> None:
    with pytest.raises(ImageError):
        read_image(data)
