"""Kept responses: read, continued, generated in the background, followed, cancelled."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import requests

from tests.conformance.calls import error_of, named_events, ok
from tests.conformance.recording import ENVIRONMENT, FLAGS
from tests.conformance.wire.test_responses import ASKED, PATH, respond, send, stream, text_of
from tests.hostile.raw_client import Wire, aborts, http_post, running, waiting
from tests.running_server import RunningServer, running_server

HOUR = {"inter-token-latency": "1h"}
NO_TIME = {"inter-token-latency": "0s"}


@pytest.fixture(scope="module")
def keeping() -> Iterator[RunningServer]:
    """As the recorded server, but it keeps responses, and has one place to run and one to wait.

    Seeded: a first token that is only part of a character has no text, and says nothing to who
    follows.
    """
    with running_server(
        *FLAGS,
        *("--seed", "7"),
        *("--enable-responses-store", "--max-num-seqs", "1", "--max-waiting-queue-length", "1"),
        env=ENVIRONMENT,
    ) as server:
        yield server


@contextmanager
def slowly(server: RunningServer) -> Iterator[None]:
    """Replies that begin inside the block never end."""
    ok(requests.post(f"{server.url}/admin/config", json=HOUR, timeout=20))
    try:
        yield
    finally:
        ok(requests.post(f"{server.url}/admin/config", json=NO_TIME, timeout=20))


def get(server: RunningServer, response_id: str, **query: Any) -> requests.Response:
    return requests.get(f"{server.url}{PATH}/{response_id}", params=query, timeout=20)


def cancel(server: RunningServer, response_id: str) -> requests.Response:
    return requests.post(f"{server.url}{PATH}/{response_id}/cancel", timeout=20)


def status(server: RunningServer, response_id: str) -> str:
    response_status: str = ok(get(server, response_id))["status"]
    return response_status


def begun(server: RunningServer, **fields: Any) -> str:
    """The id of a response that is generated in the background."""
    response = respond(server, background=True, **fields)
    assert (response["status"], response["output"], response["usage"]) == ("queued", [], None)
    assert response["background"] is True
    response_id: str = response["id"]
    return response_id


def test_stored_response_can_be_retrieved(keeping: RunningServer) -> None:
    for response in (respond(keeping), stream(keeping)[-1]["response"]):
        assert ok(get(keeping, response["id"])) == response


def test_previous_response_id_continues_the_conversation(keeping: RunningServer) -> None:
    first = respond(keeping, instructions="Be brief.")
    second = respond(keeping, previous_response_id=first["id"], input="and?")
    assert second["previous_response_id"] == first["id"]
    third = respond(
        keeping, previous_response_id=second["id"], input="and then?", instructions="Be kind."
    )
    spelled_out = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": text_of(first)},
        {"role": "user", "content": "and?"},
        {"role": "assistant", "content": text_of(second)},
        {"role": "user", "content": "and then?"},
    ]
    same = respond(keeping, input=spelled_out, instructions="Be kind.")
    assert third["usage"]["input_tokens"] == same["usage"]["input_tokens"]
    assert ok(get(keeping, first["id"])) == first


def test_stored_events_of_a_background_response_can_be_replayed(keeping: RunningServer) -> None:
    events = stream(keeping, background=True, max_output_tokens=5)
    response = events[-1]["response"]
    assert ok(get(keeping, response["id"])) == response
    later_events = named_events(get(keeping, response["id"], stream="true"))
    assert later_events == events
    assert named_events(get(keeping, response["id"], stream=1, starting_after=3)) == events[4:]
    assert named_events(get(keeping, response["id"], stream=1, starting_after=10**30)) == []
    assert named_events(get(keeping, response["id"], stream=1, starting_after=-7)) == events


def test_running_and_waiting_background_responses_can_be_cancelled(
    keeping: RunningServer,
) -> None:
    aborts_before = aborts(keeping.port)
    with slowly(keeping):
        first = begun(keeping, max_output_tokens=9)
        second = begun(keeping, max_output_tokens=9)
        assert (status(keeping, first), status(keeping, second)) == ("queued", "queued")
        assert (running(keeping.port), waiting(keeping.port)) == (1, 1)
        full = send(keeping, background=True, request_id="resp_full")
        assert error_of(full) == (429, "RateLimitError", None)
        assert error_of(get(keeping, "resp_full"))[0] == 404
        for response_id in (second, first):
            response = ok(cancel(keeping, response_id))
            assert (response["status"], response["output"]) == ("cancelled", [])
            assert status(keeping, response_id) == "cancelled"
        assert (running(keeping.port), waiting(keeping.port)) == (0, 0)
        assert aborts(keeping.port) == aborts_before + 2
        assert error_of(cancel(keeping, first)) == (400, "invalid_request_error", "response_id")
    assert text_of(respond(keeping))


def followed(wire: Wire, server: RunningServer, **fields: Any) -> str:
    """Begin a stream in the background, read its first event, and give the id that it tells."""
    body = json.dumps(
        {**ASKED, "background": True, "stream": True, "max_output_tokens": 9, **fields}
    )
    wire.send(http_post(PATH, body.encode()))
    reply = wire.begin()
    for line in reply:
        if line.startswith(b"data: "):
            response_id: str = json.loads(line[6:])["response"]["id"]
            return response_id
    raise AssertionError("no event came")


def test_client_disconnect_does_not_end_a_background_response(
    keeping: RunningServer,
) -> None:
    with slowly(keeping):
        with Wire(keeping.port) as wire:
            response_id = followed(wire, keeping)
            wire.reset()
        assert running(keeping.port) == 1
        assert status(keeping, response_id) == "queued"
        assert ok(cancel(keeping, response_id))["status"] == "cancelled"
        assert running(keeping.port) == 0


def test_cancelled_response_ends_the_streams_of_its_subscribers(keeping: RunningServer) -> None:
    with slowly(keeping), Wire(keeping.port) as wire, Wire(keeping.port) as other:
        response_id = followed(wire, keeping)
        path = (
            f"GET {PATH}/{response_id}?stream=true&starting_after=1 HTTP/1.1\r\nHost: test\r\n\r\n"
        )
        with other.send(path.encode()).begin() as reply:
            assert reply.readline() == b"event: response.output_item.added\n"
            ok(cancel(keeping, response_id))
            remaining = reply.read()
        assert b"response.completed" not in remaining
        assert remaining.endswith(b"\n\n")
