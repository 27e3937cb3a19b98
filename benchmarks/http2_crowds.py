"""What crowds of HTTP/2 send in `benchmarks.stalls`:

costly header blocks, and frames that are small.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hpack import Encoder, NeverIndexedHeaderTuple
from hyperframe.frame import (
    DataFrame,
    Frame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = SettingsFrame(0).serialize()
LINES = {":method": "POST", ":scheme": "http", ":path": "/a", ":authority": "a"}
VALUE = "\x01" * 4000
"""Its Huffman code has 23 bits a character, which takes the longest to decode."""
BLOCKS = 500
SMALL = 50_000
"""How many header blocks, and small frames, are sent before a client begins anew."""


def http2_crowds() -> Mapping[str, bytes]:
    """Returns what each client sends, by the names of the rows."""
    short = _block({"content-type": "application/grpc"})
    long = _block({"content-type": "application/grpc", "x-long": VALUE})
    opened = HeadersFrame(1, short, flags=("END_HEADERS",))
    return {
        "60 send Huffman-coded headers": _sent(
            HeadersFrame(2 * number + 1, long, flags=("END_HEADERS", "END_STREAM"))
            for number in range(BLOCKS)
        ),
        "60 send PING": _sent([PingFrame(0, bytes(8))] * SMALL),
        "60 send SETTINGS": _sent([SettingsFrame(0)] * SMALL),
        "60 send WINDOW_UPDATE": _sent([WindowUpdateFrame(0, 1)] * SMALL),
        "60 send empty DATA": _sent([opened] + [DataFrame(1)] * SMALL),
        "60 make calls": _sent(
            HeadersFrame(2 * number + 1, short, flags=("END_HEADERS", "END_STREAM"))
            for number in range(SMALL)
        ),
        "60 open and reset streams": _sent(
            frame
            for number in range(SMALL)
            for frame in (
                HeadersFrame(2 * number + 1, short, flags=("END_HEADERS",)),
                RstStreamFrame(2 * number + 1, 8),
            )
        ),
    }


def _block(headers: Mapping[str, str]) -> bytes:
    fields = [NeverIndexedHeaderTuple(name, value) for name, value in {**LINES, **headers}.items()]
    return Encoder().encode(fields)


def _sent(frames: Iterable[Frame]) -> bytes:
    return PREFACE + SETTINGS + b"".join(frame.serialize() for frame in frames)
