"""Reading a body within a size and a time."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from gunicorn.http.body import Body, ChunkedReader
from gunicorn.http.unreader import IterUnreader

from app.core.server.http import body_limits, body_reader
from app.core.server.http.body_limits import BodyLimits
from app.core.server.http.body_reader import READ_BYTES
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import ApiError
from tests.application import request

if TYPE_CHECKING:
    from _typeshed import SupportsRead

LIMITS = BodyLimits(max_bytes=100, timeout_s=0.05)


class Endless:
    """A client that never stops."""

    def __init__(self) -> None:
        self.requested_bytes = 0

    def read(self, size: int) -> bytes:
        self.requested_bytes += size
        return b"x" * size


def posted(stream: SupportsRead[bytes], length: int | str | None = None) -> RequestContext:
    declared = {} if length is None else {"content-length": str(length)}
    return request("/", "POST", declared, stream)


def refused(stream: SupportsRead[bytes], length: int | str | None = None) -> int:
    with pytest.raises(ApiError) as caught:
        LIMITS.read(posted(stream, length))
    return caught.value.status


def test_body_within_the_limit_is_read_once_and_stored() -> None:
    for size in (0, 1, 99, 100):
        assert LIMITS.read(posted(io.BytesIO(b"x" * size), size)) == b"x" * size
    assert LIMITS.read(posted(io.BytesIO(b"abc"))) == b"abc", (
        "without a length it is read to its end"
    )
    assert LIMITS.read(posted(io.BytesIO(b""), "")) == b""
    context = posted(io.BytesIO(b"abc"), 3)
    assert LIMITS.read(context) is LIMITS.read(context) is context.body
    assert LIMITS.read(request(body=b"known")) == b"known"
    assert LIMITS.read(request()) == b""


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"[1,2,3,4]", 0),
        (b"[1,2,3,4,5]", 413),
        (b"[[[[[", 413),
        (b"{{{{{", 413),
        (b'"' + b"x" * 90, 0),
        (b'"' + b",:[{" * 20 + b'"', 0),
        (b'{"a":1}', 413),
        (b"1e300", 413),
    ],
)
def test_body_with_too_many_json_values_is_rejected(body: bytes, status: int) -> None:
    limits = BodyLimits(100, 0.05, max_values=4)
    if status:
        with pytest.raises(ApiError, match="more than 4 values") as caught:
            limits.read(posted(io.BytesIO(body), len(body)))
        assert caught.value.status == status
    else:
        assert limits.read(posted(io.BytesIO(body), len(body))) == body


def test_reading_stops_one_byte_past_the_body_size_limit() -> None:
    endless = Endless()
    assert refused(endless, 101) == refused(endless, 10**40) == 413
    assert endless.requested_bytes == 0
    assert refused(endless) == 413
    assert endless.requested_bytes == 101


def test_other_requests_run_behind_the_last_part_of_a_long_body(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The decoding that follows cannot be interrupted."""
    pauses: list[None] = []
    for module in (body_limits, body_reader):
        monkeypatch.setattr(module, "pause", lambda: pauses.append(None))
    limits = BodyLimits(1 << 20, 20.0, max_values=1 << 62)
    for size, expected_pauses in ((READ_BYTES - 1, 0), (2 * READ_BYTES + 1, 3)):
        pauses.clear()
        assert len(limits.read(posted(io.BytesIO(b"x" * size), size))) == size
        assert len(pauses) == expected_pauses


def chunked(*chunks: bytes) -> Body:
    """A chunked body as gunicorn takes it apart, read from a socket 8 KiB at a time."""
    wire = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))
    pieces = (wire[start : start + 8192] for start in range(0, len(wire), 8192))
    return Body(ChunkedReader(SimpleNamespace(), IterUnreader(pieces)))


def test_chunked_body_is_complete_for_any_chunk_sizes() -> None:
    for chunks in (
        [b"x"] * 10_000,
        [b"y" * 300_000],
        [b"z" * 70_000] * 3,
        [b"ab", b"c" * 5000, b"d"],
        [],
    ):
        assert BodyLimits(1 << 20, 20.0).read(posted(chunked(*chunks))) == b"".join(chunks)
    with pytest.raises(ApiError) as caught:
        LIMITS.read(posted(chunked(*[b"x"] * 101)))
    assert caught.value.status == 413
