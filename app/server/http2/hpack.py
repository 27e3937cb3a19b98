"""Header blocks of HTTP/2 (RFC 7541): those of clients are read, whatever they use; ours are plain.

What a client may make us keep or look at is bounded: its table by `TABLE_BYTES`, a block's headers by
`MOST_HEADER_BYTES` when they are spelled out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

TABLE_BYTES = 4096
"""Of the table of names and values that a client fills, as the format counts them."""
ENTRY_BYTES = 32
"""What an entry counts for besides its name and value."""
MOST_HEADER_BYTES = 1 << 15
"""Of all headers of a request, counted like entries of the table."""
MOST_BITS = 30
"""Of a Huffman code."""
END_OF_STRING = 256

Header = tuple[str, str]

WORDS = """
:authority :method=GET :method=POST :path=/ :path=/index.html :scheme=http :scheme=https :status=200
:status=204 :status=206 :status=304 :status=400 :status=404 :status=500 accept-charset
accept-encoding=gzip,deflate accept-language accept-ranges accept access-control-allow-origin age allow
authorization cache-control content-disposition content-encoding content-language content-length
content-location content-range content-type cookie date etag expect expires from host if-match
if-modified-since if-none-match if-range if-unmodified-since last-modified link location max-forwards
proxy-authenticate proxy-authorization range referer refresh retry-after server set-cookie
strict-transport-security transfer-encoding user-agent vary via www-authenticate
"""
STATIC: tuple[Header, ...] = tuple(
    (name, value.replace(",", ", ")) for name, _, value in (word.partition("=") for word in WORDS.split())
)
"""Appendix A: entry 1 comes first."""

LENGTHS = (
    "dnsssssssoussussssssssusssssssss6aacd68baa8b8666555666666678f6cad67777777777777777777777878djde6"
    "f56565666577666567655677777fbedskmkkmmmnmnnnnnonoomnonnnnlmnmnnomlkmmnnlnmmolmnnllmlnmnnkmmmnmmn"
    "qqkjmnmpqqqrrqopjlqrrqrollqqsrrrkoklmllnmmppooqnqrqqrrrrrsrrrrrqu"
)
"""Appendix B: bits of the code of each byte, and at last of the end, as digits of base 31.

The code is canonical, so they tell all of it: codes of one length follow each other in the order of bytes.
"""


class HeaderError(ValueError):
    """A header block that is none; the connection cannot go on."""


def _codes() -> dict[tuple[int, int], int]:
    """(bits, code) of each byte."""
    lengths = [int(digit, 31) for digit in LENGTHS]
    found: dict[tuple[int, int], int] = {}
    code = before = 0
    for symbol in sorted(range(len(lengths)), key=lambda symbol: (lengths[symbol], symbol)):
        code <<= lengths[symbol] - before
        before = lengths[symbol]
        found[before, code] = symbol
        code += 1
    return found


CODES = _codes()
LONG_CODES = tuple(sorted({bits for bits, _ in CODES if bits > 8}))
"""Their lengths."""


def _short_codes() -> list[tuple[int, int] | None]:
    """(byte, bits) of the code with which each eight bits begin, None where that is longer."""
    found: list[tuple[int, int] | None] = [None] * 256
    for (bits, code), symbol in CODES.items():
        if bits <= 8:
            first = code << 8 - bits
            found[first : first + (1 << 8 - bits)] = [(symbol, bits)] * (1 << 8 - bits)
    return found


SHORT_CODES = _short_codes()
"""Of most characters: a block of 16 KiB, bit by bit, would hold up everybody for 50 ms."""


def unhuffman(data: bytes) -> bytes:
    """What is Huffman coded in `data`. HeaderError for what is no code, or badly padded."""
    found = bytearray()
    value = bits = tried = 0
    for byte in data:
        value, bits = value << 8 | byte, bits + 8
        while bits >= 8:
            code = SHORT_CODES[value >> bits - 8] or _long_code(value, bits, tried)
            if code is None:
                tried = bits
                break
            found.append(code[0])
            bits, tried = bits - code[1], 0
            value &= (1 << bits) - 1
    while bits and (code := SHORT_CODES[(value << 8 - bits) & 0xFF if bits < 8 else 0xFF]):
        if code[1] > bits:
            break
        found.append(code[0])
        bits -= code[1]
        value &= (1 << bits) - 1
    if bits > 7 or value != (1 << bits) - 1:
        raise HeaderError("a string is badly padded")
    return bytes(found)


def _long_code(value: int, bits: int, tried: int) -> tuple[int, int] | None:
    """As in `SHORT_CODES`, of more bits than `tried`; None while there are too few."""
    for length in LONG_CODES:
        if tried < length <= bits:
            symbol = CODES.get((length, value >> bits - length))
            if symbol == END_OF_STRING:
                raise HeaderError("a string has an end within")
            if symbol is not None:
                return symbol, length
    if bits > MOST_BITS:
        raise HeaderError("no Huffman code")
    return None


class HeaderDecoder:
    """Reads the header blocks of one client, in their order: each may add to the table of the next."""

    __slots__ = ("_limit", "_size", "_table")

    def __init__(self) -> None:
        self._table: deque[Header] = deque()
        self._size = 0
        self._limit = TABLE_BYTES

    def decode(self, block: bytes) -> list[Header]:
        """Names and values. HeaderError for a block that is none, or too large."""
        headers: list[Header] = []
        total = at = 0
        try:
            while at < len(block):
                first = block[at]
                if first & 0xE0 == 0x20:
                    size, at = _integer(block, at, 5)
                    self._resize(size, headers)
                    continue
                header, at = self._header(block, at, first)
                headers.append(header)
                total += _size(header)
                if total > MOST_HEADER_BYTES:
                    raise HeaderError("too many headers")
        except IndexError:
            raise HeaderError("a header block ends too early, or names what is not in a table") from None
        return headers

    def _header(self, block: bytes, at: int, first: int) -> tuple[Header, int]:
        if first & 0x80:
            index, at = _integer(block, at, 7)
            return self._entry(index), at
        is_kept = first & 0xC0 == 0x40
        index, at = _integer(block, at, 6 if is_kept else 4)
        if index:
            name = self._entry(index)[0]
        else:
            name, at = _string(block, at)
        value, at = _string(block, at)
        if is_kept:
            self._add((name, value))
        return (name, value), at

    def _entry(self, index: int) -> Header:
        if index == 0:
            raise HeaderError("there is no entry 0")
        return STATIC[index - 1] if index <= len(STATIC) else self._table[index - len(STATIC) - 1]

    def _add(self, header: Header) -> None:
        self._table.appendleft(header)
        self._size += _size(header)
        self._shrink()

    def _resize(self, size: int, headers: list[Header]) -> None:
        if headers or size > TABLE_BYTES:
            raise HeaderError("a table of another size than we said, or said too late")
        self._limit = size
        self._shrink()

    def _shrink(self) -> None:
        while self._size > self._limit:
            self._size -= _size(self._table.pop())


def _size(header: Header) -> int:
    return len(header[0]) + len(header[1]) + ENTRY_BYTES


def _integer(block: bytes, at: int, prefix: int) -> tuple[int, int]:
    """A number that begins in the last `prefix` bits at `at`, and where it ends."""
    most = (1 << prefix) - 1
    value = block[at] & most
    at += 1
    if value < most:
        return value, at
    shift = 0
    while True:
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 28:
            raise HeaderError("a number is too long")


def _string(block: bytes, at: int) -> tuple[str, int]:
    is_huffman = block[at] >= 0x80
    length, at = _integer(block, at, 7)
    end = at + length
    if end > len(block):
        raise IndexError
    data = block[at:end]
    return (unhuffman(data) if is_huffman else data).decode("latin-1"), end


def encode(headers: Iterable[tuple[str, str]]) -> bytes:
    """A block that adds nothing to the client's table and is not Huffman coded. Names are in lower case."""
    return b"".join(b"\0" + _plain(name) + _plain(value) for name, value in headers)


def _plain(text: str) -> bytes:
    data = text.encode("latin-1", "replace")
    length = len(data)
    if length < 0x7F:
        return bytes((length,)) + data
    length -= 0x7F
    head = bytearray(b"\x7f")
    while length >= 0x80:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + data
