"""Responses are kept within limits, and those in the background can be followed and cancelled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gevent

from app.serving.api.identity import ResponseMeta
from app.serving.api.responses.store import EventLog, Follower, KeptResponse, ResponseStore
from app.serving.api.responses.writer import new_response
from app.serving.http.errors import ApiError
from app.serving.protocol.responses import ResponsesRequest
from tests.protocol.refused import refused


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


def test_a_kept_response_can_be_read_unless_the_store_is_off() -> None:
    for is_on in (True, False):
        store = ResponseStore(is_on)
        store.keep(kept("a"))
        assert missing(store, "a") != is_on and missing(store, "b")


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
    growing = kept("b", log=EventLog())
    store.keep(kept("a"))
    store.keep(growing)
    assert growing.log is not None
    growing.log.add([b"x" * 9800])
    store.weigh(growing)
    assert [missing(store, name) for name in "ab"] == [True, False]


def test_one_that_is_forgotten_does_not_come_back_when_it_ends() -> None:
    store = ResponseStore(True, most=1)
    first = kept("a")
    store.keep(first)
    store.keep(kept("b"))
    store.weigh(first)
    assert [missing(store, name) for name in "ab"] == [True, False]


def test_what_runs_in_the_background_alone_can_be_cancelled() -> None:
    invalid = (400, "invalid_request_error", "response_id")
    for status in ("queued", "in_progress"):
        aborted: list[str] = []
        running = kept("a", status, log=EventLog(), abort=partial(aborted.append, "a"))
        running.cancel()
        assert (running.response.status, aborted) == ("cancelled", ["a"])
        assert running.log is not None and running.log.over
        assert refused(running.cancel) == invalid
    for status in ("completed", "incomplete", "failed", "cancelled"):
        over = kept("a", status, abort=lambda: None)
        assert refused(over.cancel) == invalid
        assert over.response.status == status
    assert refused(kept("a", "in_progress").cancel) == invalid, "not in the background"


def following(log: EventLog, start: int = 0) -> gevent.Greenlet[..., list[bytes]]:
    """A greenlet that follows `log`; it is on its way when this returns."""
    greenlet = gevent.spawn(lambda: list(Follower(log, start, None)))
    gevent.idle()
    return greenlet


def test_followers_get_the_events_that_are_there_and_those_that_come() -> None:
    log = EventLog()
    log.add([b"0", b"1"])
    all_of_them, later = following(log), following(log, 2)
    log.add([b"2"])
    gevent.idle()
    log.add([b"3", b"4"])
    log.end()
    assert all_of_them.get(timeout=5) == [b"", b"01", b"2", b"34"]
    assert later.get(timeout=5) == [b"", b"2", b"34"]


def test_a_log_that_is_over_ends_its_followers() -> None:
    log = EventLog()
    log.add([b"0"])
    log.end()
    assert [list(Follower(log, start, None)) for start in (0, 1, 99)] == [[b"", b"0"], [b""], [b""]]


class Client:
    """The connection of a client that can leave."""

    def watch(self, gone: Callable[[], None]) -> None:
        self.leave = gone

    def unwatch(self) -> None:
        self.is_watched = False


def test_a_follower_ends_when_its_client_has_gone() -> None:
    log, client = EventLog(), Client()
    follower = Follower(log, 0, client)  # type: ignore[arg-type]
    greenlet = gevent.spawn(lambda: list(follower))
    gevent.idle()
    client.leave()
    assert greenlet.get(timeout=5) == [b""]
    follower.close()
    assert not client.is_watched
