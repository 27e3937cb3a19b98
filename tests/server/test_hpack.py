"""Header blocks: the examples of RFC 7541, and whatever else a client may send."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.server.http2.hpack import (
    MOST_HEADER_BYTES,
    TABLE_BYTES,
    HeaderDecoder,
    HeaderError,
    encode,
    unhuffman,
)

FIRST = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")]
SECOND = [*FIRST, ("cache-control", "no-cache")]
THIRD = [
    (":method", "GET"),
    (":scheme", "https"),
    (":path", "/index.html"),
    (":authority", "www.example.com"),
    ("custom-key", "custom-value"),
]
PLAIN = (
    "828684410f7777772e6578616d706c652e636f6d",
    "828684be58086e6f2d6361636865",
    "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
)
"""Appendix C.3."""
HUFFMAN = (
    "828684418cf1e3c2e5f23a6ba0ab90f4ff",
    "828684be5886a8eb10649cbf",
    "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
)
"""Appendix C.4."""


@pytest.mark.parametrize("blocks", [PLAIN, HUFFMAN], ids=["plain", "huffman"])
def test_the_examples_are_read(blocks: tuple[str, ...]) -> None:
    decoder = HeaderDecoder()
    assert [decoder.decode(bytes.fromhex(block)) for block in blocks] == [FIRST, SECOND, THIRD]


def test_the_table_forgets_what_came_first() -> None:
    decoder = HeaderDecoder()
    value = "x" * 1000
    for number in range(10):
        block = b"\x40\x01" + bytes((97 + number,)) + b"\x7f" + b"\xe9\x06" + value.encode()
        assert decoder.decode(block) == [(chr(97 + number), value)]
    assert [decoder.decode(bytes((0x80 | 62 + place,)))[0][0] for place in range(3)] == ["j", "i", "h"]
    with pytest.raises(HeaderError):
        decoder.decode(b"\xc1")
    assert decoder.decode(b"\x20") == []  # a table of size 0
    with pytest.raises(HeaderError):
        decoder.decode(b"\xbe")


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",
        b"\xff\xff\xff\xff\xff\x7f",
        b"\x00\x05ab",
        b"\x00\x81\xff\x00",
        b"\x00\x82\xff\xff\x00",
        b"\x3f\xe2\x1f",
        b"\x82\x20",
        b"\x82" + b"\x40",
        b"\x00\x01a" + b"\x7f\x80\x80\x02" + b"x" * 32_895,
    ],
)
def test_what_is_no_block_is_refused(block: bytes) -> None:
    with pytest.raises(HeaderError):
        HeaderDecoder().decode(block)


def test_a_bomb_is_refused() -> None:
    decoder = HeaderDecoder()
    decoder.decode(b"\x40\x01a\x7f\xa1\x1e" + b"x" * 4000)
    with pytest.raises(HeaderError):
        decoder.decode(b"\xbe" * (MOST_HEADER_BYTES // TABLE_BYTES + 2))


Texts = st.text(st.characters(max_codepoint=255), max_size=300)


@given(st.lists(st.tuples(Texts, Texts), max_size=20))
def test_what_we_write_is_read(headers: list[tuple[str, str]]) -> None:
    assert HeaderDecoder().decode(encode(headers)) == headers


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_any_bytes_are_borne(blocks: list[bytes]) -> None:
    decoder = HeaderDecoder()
    try:
        for block in blocks:
            decoder.decode(block)
    except HeaderError:
        return


@given(st.binary(max_size=60))
def test_any_huffman_code_is_borne(data: bytes) -> None:
    try:
        unhuffman(data)
    except HeaderError:
        return
