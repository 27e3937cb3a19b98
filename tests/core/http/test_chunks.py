"""Chunked bodies within the limits are read as by gunicorn, for any pieces on the wire."""

import re
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from gunicorn.config import Config
from gunicorn.http.body import Body, ChunkedReader
from gunicorn.http.errors import InvalidChunkSize, ParseException
from gunicorn.http.message import Message
from gunicorn.http.unreader import IterUnreader
from hypothesis import example, given
from hypothesis import strategies as st

from app.core.server.http.chunks import BodyTooLargeError, BoundedChunks

BARE_LINE_FEED = re.compile(rb"(?<!\r)\n")
SIZES = (
    b"%x",
    b"%X",
    b"0%x",
    b"000000%x",
    b" %x",
    b"%x ",
    b"0x%x",
    b"+%x",
    b"%x;",
    b"%x;a=1",
    b"%x ; a",
    b"",
)
EXTENSIONS = (b"", b"", b"", b";a", b'; a="b;c"', b";a=\r", b";=", b" ;a=b", b"; a = b")
TRAILERS = (b"", b"", b"X: y\r\n", b"Host: a\r\n", b"X y\r\n", b"X: y\n")
JUNK = (b"\r", b"\n", b"\r\n", b"0", b";", b" ", b"\x00")


class Request(Message):  # type: ignore[misc]
    """What gunicorn's reader asks of a request, whose head is not looked at here."""

    def parse(self, unreader: object) -> bytes:
        return b""


@st.composite
def chunked_bodies(draw: st.DrawFn) -> bytes:
    """Chunked bodies, a few of which are malformed."""
    data = b""
    for content in draw(st.lists(st.binary(min_size=1, max_size=40), max_size=4)):
        form = draw(st.sampled_from(SIZES)) if draw(st.integers(0, 4)) == 0 else b"%x"
        size = form % len(content) if form else b""
        data += size + draw(st.sampled_from(EXTENSIONS)) + b"\r\n" + content + b"\r\n"
    data += (
        b"0"
        + draw(st.sampled_from(EXTENSIONS))
        + b"\r\n"
        + draw(st.sampled_from(TRAILERS))
        + b"\r\n"
    )
    data += draw(st.sampled_from([b"", b"GET / HTTP/1.1\r\n"]))
    for junk in draw(st.lists(st.sampled_from(JUNK), max_size=1)):
        place = draw(st.integers(0, len(data)))
        data = data[:place] + junk + data[place:]
    return data


def pieces(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    """Yields `data` in pieces that end at `cuts`."""
    places = sorted({cut for cut in cuts if 0 < cut < len(data)})
    for start, end in zip([0, *places], [*places, len(data)], strict=True):
        if start < end:
            yield data[start:end]


def read(kind: type[ChunkedReader], data: bytes, cuts: list[int]) -> object:
    """Returns the body, its trailers and the bytes behind it; or the kind of the error."""
    unreader = IterUnreader(pieces(data, cuts))
    request = Request(Config(), unreader, ("127.0.0.1", 1))
    body = Body(kind(request, unreader))
    try:
        content = body.read()
    except (ParseException, OSError) as error:
        return type(error)
    following = unreader.take_buffered() + b"".join(iter(unreader.read, b""))
    return content, request.trailers, following


@given(chunked_bodies(), st.lists(st.integers(0, 200), max_size=6))
@example(b"0\r\n\nX: y\r\n\r\n", [4])
@example(b"1;\n\r\nx\r\n0\r\n\r\n", [])
@example(b"5\n", [])
def test_chunked_bodies_within_the_limits_are_parsed_as_in_gunicorn(
    data: bytes, cuts: list[int]
) -> None:
    expected = read(ChunkedReader, data, [])
    if isinstance(expected, type):
        # The kind of gunicorn's error also depends on where the pieces end.
        expected = read(ChunkedReader, data, cuts)
        assert isinstance(expected, type)
        if BARE_LINE_FEED.search(data):
            # It is an error at once, as in vLLM's server; gunicorn reads the whole line before.
            assert isinstance(read(BoundedChunks, data, cuts), type)
            return
    assert read(BoundedChunks, data, cuts) == expected


def test_chunk_size_with_more_than_sixteen_digits_is_rejected() -> None:
    request = SimpleNamespace(limit_request_field_size=0, max_buffer_headers=0)
    unreader = IterUnreader(())
    for digits in range(1, 17):
        reader = BoundedChunks(request, unreader)
        assert reader.parse_chunk_size(unreader, b"f" * digits + b"\r\nx") == (16**digits - 1, b"x")
    assert read(BoundedChunks, b"1" + b"0" * 16 + b"\r\n", []) is InvalidChunkSize


def test_only_a_body_above_the_maximum_size_is_rejected() -> None:
    def read_body(max_bytes: int) -> bytes:
        unreader = IterUnreader(iter([b"2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n"]))
        chunks = BoundedChunks(Request(Config(), unreader, ("127.0.0.1", 1)), unreader)
        chunks.max_bytes = max_bytes
        content: bytes = Body(chunks).read()
        return content

    assert read_body(max_bytes=5) == b"abcde"
    with pytest.raises(BodyTooLargeError):
        read_body(max_bytes=4)
