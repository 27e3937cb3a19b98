"""Responses are kept within limits, and those in the background can be followed and cancelled."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import gevent
import pytest

from app.core.api.identity import ResponseMeta
from app.core.api.responder import ServerLoad
from app.core.base.request_memory import RequestMemory
from app.core.protocol.common import encode_to_keep
from app.core.server.http.errors import ApiError
from app.extensions.responses.background import BackgroundResponder
from app.extensions.responses.chat import chat_request
from app.extensions.responses.protocol import ResponsesRequest
from app.extensions.responses.response import new_response
from app.extensions.responses.routes import prepend_conversation
from app.extensions.responses.store import ResponseStore
from app.extensions.responses.stored_response import MAX_HISTORY_BYTES, StoredResponse
from tests.application import app_of, request
from tests.callbacks import ignore
from tests.client import in_process
from tests.core.engine.harness import Harness, engine_request
from tests.extensions.responses.test_large_answers import response as responses_writer
from tests.stubs import eventually


def stored(name: str, status: str = "completed", size: int = 0, **fields: Any) -> StoredResponse:
    response = new_response(
        ResponsesRequest(input="hi"), ResponseMeta(name, 1_700_000_000, "m", "fp"), 9
    )
    response.status = status
    return StoredResponse(
        id=name,
        status=status,
        body=encode_to_keep(response),
        conversation=encode_to_keep([{"role": "user", "content": "x" * size}]),
        **fields,
    )


def missing(store: ResponseStore, name: str) -> bool:
    try:
        store.get(name)
    except ApiError as error:
        assert (error.status, error.type, error.param) == (
            404,
            "invalid_request_error",
            "response_id",
        )
        return True
    return False


def test_least_recently_used_response_is_evicted_first() -> None:
    store = ResponseStore(True, max_responses=3)
    for name in "abc":
        store.store(stored(name))
    store.get("a")
    store.store(stored("d"))
    assert [missing(store, name) for name in "abcd"] == [False, True, False, False]


def test_storing_an_oversized_response_evicts_the_stored_responses() -> None:
    store = ResponseStore(True, max_responses=100, max_bytes=10_000)
    for name in "abc":
        store.store(stored(name, size=3000))
    assert [missing(store, name) for name in "abc"] == [True, False, False]
    store.store(stored("d", size=50_000))
    assert [missing(store, name) for name in "abcd"] == [True, True, True, False]


def test_stored_response_that_grows_evicts_older_responses() -> None:
    store = ResponseStore(True, max_responses=100, max_bytes=10_000)
    growing = stored("b", events=[])
    store.store(stored("a"))
    store.store(growing)
    growing.append_events(b"x" * 9800 + b"\n\n")
    store.update_size(growing)
    assert [missing(store, name) for name in "ab"] == [True, False]


def traced_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.parametrize("size", [0, 1_000, 30_000])
@pytest.mark.parametrize("events", [0, 40])
def test_estimated_store_size_is_within_15_percent_of_its_memory_use(
    size: int, events: int
) -> None:
    """A response with events is one that was generated in the background."""
    store = ResponseStore(True)
    tracemalloc.start()
    try:
        bytes_before = traced_bytes()
        for number in range(200):
            response = stored(f"resp_{number:032d}", size=size, events=[])
            response.append_events(
                b"".join(b"data: %0200d\n\n" % event for event in range(events)), is_over=True
            )
            store.store(response)
            del response
        held_bytes = traced_bytes() - bytes_before
    finally:
        tracemalloc.stop()
    assert 0.85 * held_bytes < store.size_bytes < 1.15 * held_bytes


def test_storing_a_large_response_within_the_size_limit_evicts_no_response() -> None:
    """The number of responses has a limit, too, which does not make any of them larger."""
    store = ResponseStore(True, max_responses=10, max_bytes=100_000)
    for number in range(8):
        store.store(stored(str(number)))
    store.store(stored("large", size=60_000))
    assert not any(missing(store, name) for name in (*map(str, range(8)), "large"))
    assert 60_000 < store.size_bytes < 80_000


def test_memory_report_contains_the_size_of_the_stored_responses() -> None:
    client = app_of("--enable-responses-store").test_client()
    for number in range(100):
        client.post("/v1/responses", json={"input": f"number {number}", "max_output_tokens": 1})
    memory: Any = client.get("/admin/memory").json
    assert 100_000 < memory["caches"]["responses"]["size_bytes"] < 500_000


def test_background_response_has_the_status_queued_while_it_is_generated() -> None:
    with in_process("--enable-responses-store", "--inter-token-latency", "10m") as client:

        def has_first_token() -> bool:
            return client.metric("vllm:generation_tokens_total") > 0

        body = {"input": "hi", "max_output_tokens": 20, "ignore_eos": True, "background": True}
        created = client.post("/v1/responses", body).json()
        address = f"/v1/responses/{created['id']}"
        eventually(has_first_token)
        statuses = [created["status"], client.get(address).json()["status"]]
        cancelled = client.post(f"{address}/cancel").json()
        assert [*statuses, cancelled["status"]] == ["queued", "queued", "cancelled"]


def test_events_in_the_background_are_memory_of_the_request_until_they_are_complete() -> None:
    harness = Harness(inter_token_latency=0.1)
    memory = RequestMemory(100_000, 1 << 40, resident=lambda: 0)
    store = ResponseStore(True)

    def run(name: str, tokens: int) -> StoredResponse:
        context = request()
        context.memory = lambda: memory
        kept = stored(name, status="queued", events=[])
        responder = BackgroundResponder(
            engine=harness.engine,
            load=ServerLoad(False),
            headers={},
            keep_alive_s=0.0,
            stored=kept,
            store=store,
        )
        writer = responses_writer(1, kept.update)
        responder.respond([engine_request(max_tokens=tokens)], writer, False, context)
        return kept

    short = run("short", 5)
    long = run("long", 1000)
    harness.clock.advance(0.35)
    assert len(short.events or ()) > 0 and memory.size_bytes > 1000
    harness.clock.advance(200)
    assert (short.status, long.status) == ("incomplete", "failed")
    assert 50 < len(long.events or ()) < 500 and "MiB" in (long.events or [b""])[-1].decode()
    assert memory.size_bytes == 0 and harness.is_idle()


def test_follower_takes_few_events_at_once() -> None:
    response = stored("a", events=[])
    response.append_events(b"0\n\n" * 1000, is_over=True)
    pieces = list(response.follow(0, None))
    assert b"".join(pieces) == b"0\n\n" * 1000
    assert max(map(len, pieces)) < 500


def test_completed_background_response_releases_its_abort_function() -> None:
    response = stored("a", status="in_progress", events=[])
    response.abort = ignore
    response.append_events(b"1\n\n", is_over=True)
    assert response.abort is None


def test_long_conversation_is_not_continued() -> None:
    store = ResponseStore(True)
    store.store(stored("a", size=MAX_HISTORY_BYTES))
    asked = ResponsesRequest(input="hi", previous_response_id="a")
    with pytest.raises(ApiError, match="16 MiB") as refused:
        prepend_conversation(asked, chat_request(asked), store)
    assert refused.value.status == 413


def test_status_update_of_a_stored_response_changes_only_the_status() -> None:
    response = stored("a", status="in_progress")
    first_body = response.body
    response.update_status("failed")
    assert response.status == "failed"
    assert response.body == first_body.replace(b'"in_progress"', b'"failed"')


def following(response: StoredResponse, start: int = 0) -> gevent.Greenlet[..., list[bytes]]:
    """A greenlet that follows a response, and has started."""
    greenlet = gevent.spawn(list[bytes], response.follow(start, None))
    gevent.idle()
    return greenlet


def test_subscribers_receive_stored_and_later_events() -> None:
    response = stored("a", events=[])
    response.append_events(b"0\n\n1\n\n")
    all_of_them = following(response)
    later = following(response, 2)
    response.append_events(b"2\n\n")
    gevent.idle()
    response.append_events(b"3\n\n4\n\n", is_over=True)
    assert all_of_them.get(timeout=5) == [b"", b"0\n\n1\n\n", b"2\n\n", b"3\n\n4\n\n"]
    assert later.get(timeout=5) == [b"", b"2\n\n", b"3\n\n4\n\n"]
