"""Responses are kept within limits, and those in the background can be followed and cancelled."""

from __future__ import annotations

from typing import Any

import gevent

from app.serving.api.identity import ResponseMeta
from app.serving.api.responses.routes import KeptResponse, ResponseStore
from app.serving.api.responses.writer import new_response
from app.serving.http.errors import ApiError
from app.serving.protocol.responses import ResponsesRequest


def kept(name: str, status: str = "completed", size: int = 0, **fields: Any) -> KeptResponse:
    response = new_response(ResponsesRequest(input="hi"), ResponseMeta(name, 1_700_000_000, "m", "fp"), 9)
    response.status = status
    return KeptResponse(response, [{"role": "user", "content": "x" * size}], **fields)


def missing(store: ResponseStore, name: str) -> bool:
    try:
        store.get(name)
    except ApiError as error:
        assert (error.status, error.type, error.param) == (404, "invalid_request_error", "response_id")
        return True
    return False


def test_the_one_that_was_touched_longest_ago_is_forgotten_first() -> None:
    store = ResponseStore(True, most=3)
    for name in "abc":
        store.keep(kept(name))
    store.get("a")
    store.keep(kept("d"))
    assert [missing(store, name) for name in "abcd"] == [False, True, False, False]


def test_large_responses_leave_room_for_fewer() -> None:
    store = ResponseStore(True, most=100, most_bytes=10_000)
    for name in "abc":
        store.keep(kept(name, size=3000))
    assert [missing(store, name) for name in "abc"] == [True, False, False]
    store.keep(kept("d", size=50_000))
    assert [missing(store, name) for name in "abcd"] == [True, True, True, False]


def test_a_response_that_has_grown_is_weighed_again() -> None:
    store = ResponseStore(True, most=100, most_bytes=10_000)
    growing = kept("b", events=[])
    store.keep(kept("a"))
    store.keep(growing)
    growing.add(b"x" * 9800 + b"\n\n")
    store.weigh(growing)
    assert [missing(store, name) for name in "ab"] == [True, False]


def following(response: KeptResponse, start: int = 0) -> gevent.Greenlet[..., list[bytes]]:
    """A greenlet that follows a response; it is on its way when this returns."""
    greenlet = gevent.spawn(lambda: list(response.follow(start, None)))
    gevent.idle()
    return greenlet


def test_followers_get_the_events_that_are_there_and_those_that_come() -> None:
    response = kept("a", events=[])
    response.add(b"0\n\n1\n\n")
    all_of_them, later = following(response), following(response, 2)
    response.add(b"2\n\n")
    gevent.idle()
    response.add(b"3\n\n4\n\n", over=True)
    assert all_of_them.get(timeout=5) == [b"", b"0\n\n1\n\n", b"2\n\n", b"3\n\n4\n\n"]
    assert later.get(timeout=5) == [b"", b"2\n\n", b"3\n\n4\n\n"]
