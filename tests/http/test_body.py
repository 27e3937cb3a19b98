"""Reading a body within a size and a time."""

from __future__ import annotations

import io
from typing import Any

import gevent
import pytest

from app.http.body import BodyLimits
from app.http.errors import ApiError

LIMITS = BodyLimits(most_bytes=100, timeout_s=0.05)


class Endless:
    """A client that never stops."""

    def __init__(self) -> None:
        self.asked = 0

    def read(self, size: int) -> bytes:
        self.asked += size
        return b"x" * size


class Silent:
    def read(self, size: int) -> bytes:
        gevent.sleep(30)
        return b""


def environ(stream: Any, length: int | str | None = None) -> dict[str, Any]:
    declared = {} if length is None else {"CONTENT_LENGTH": str(length)}
    return {"wsgi.input": stream, **declared}


def refused(stream: Any, length: int | str | None = None) -> int:
    with pytest.raises(ApiError) as caught:
        LIMITS.read(environ(stream, length))
    return caught.value.status


def test_a_body_up_to_the_limit_is_read() -> None:
    for size in (0, 1, 99, 100):
        assert LIMITS.read(environ(io.BytesIO(b"x" * size), size)) == b"x" * size


def test_a_body_without_a_length_is_read_to_its_end() -> None:
    assert LIMITS.read(environ(io.BytesIO(b"abc"))) == b"abc"
    assert LIMITS.read(environ(io.BytesIO(b""), "")) == b""


def test_a_body_that_declares_too_much_is_not_read_at_all() -> None:
    endless = Endless()
    assert refused(endless, 101) == refused(endless, 10**40) == 413
    assert endless.asked == 0


def test_a_body_that_does_not_end_is_read_just_far_enough_to_know() -> None:
    endless = Endless()
    assert refused(endless) == 413
    assert endless.asked == 101


def test_a_body_that_does_not_come_is_waited_for_no_longer_than_allowed() -> None:
    assert refused(Silent(), 10) == 408
