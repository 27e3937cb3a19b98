"""Requests of a drill: each outcome that a client can see."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import gevent
import msgspec
import pytest
from gevent.event import Event

from app.shared.http_client import Target
from tests import stubs
from workbench.drills.load import DrillClient, Outcome

USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 2,
    "prompt_tokens_details": {"cached_tokens": 4},
}
WHOLE = [
    {"choices": [{"text": "a"}]},
    {"choices": [{"text": "b"}]},
    {"choices": [], "usage": USAGE},
]


class StreamingPod:
    """Answers each request with the same events."""

    def __init__(
        self, events: Iterable[object], *, status: str = "200 OK", done: bool = True
    ) -> None:
        self.requests: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.may_end = Event()
        self.may_end.set()
        self._status = status
        pieces = [b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events]
        self._pieces = [*pieces, b"data: [DONE]\n\n"] if done else pieces

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        body = msgspec.json.decode(environ["wsgi.input"].read())
        self.requests.append((environ, body))
        start_response(self._status, [])
        yield from self._pieces[:1]
        self.may_end.wait()
        yield from self._pieces[1:]


def run(pod: StreamingPod, prompts: int = 1, timeout_s: float = stubs.PATIENCE_S) -> list[Outcome]:
    clock = [0.0]

    def sleep_until(time_s: float) -> None:
        clock[0] = time_s

    with stubs.serving(pod) as address:
        client = DrillClient(
            Target.from_url(f"http://{address}/v1"),
            model="tiny",
            reply_tokens=2,
            timeout_s=timeout_s,
            now=partial(clock.__getitem__, 0),
            sleep_until=sleep_until,
        )
        return client.run([f"prompt {number}" for number in range(prompts)], 2.0, int)


def test_drill_requests_are_sent_with_numbered_ids_at_scheduled_times() -> None:
    pod = StreamingPod(WHOLE)
    first, second = run(pod, prompts=2)
    assert [first.error, second.error] == ["", ""]
    assert (first.due_s, second.due_s) == (0.0, 2.0)
    assert (first.prompt_tokens, first.cached_tokens) == (9, 4)
    assert first.first_s is not None
    names = {(environ["HTTP_X_REQUEST_ID"], body["user"]) for environ, body in pod.requests}
    assert names == {("drill-000000",) * 2, ("drill-000001",) * 2}
    assert all(body["max_tokens"] == 2 and body["ignore_eos"] for _, body in pod.requests)


@pytest.mark.parametrize(
    ("pod", "error"),
    [
        (StreamingPod([{"error": "x"}], status="503 Service Unavailable"), "status 503"),
        (StreamingPod(WHOLE[:2], done=False), "broken answer"),
        (StreamingPod(WHOLE[:2]), "broken answer"),
        (
            StreamingPod([{"choices": [], "usage": {**USAGE, "completion_tokens": 1}}]),
            "broken answer",
        ),
        (StreamingPod([{"error": {"message": "pod 127.0.0.1:4711 left"}}]), "broken answer"),
    ],
)
def test_incomplete_response_counts_as_lost_with_a_reason(pod: StreamingPod, error: str) -> None:
    [outcome] = run(pod)
    assert outcome.error == error


def test_hanging_stream_counts_as_lost_after_the_timeout() -> None:
    pod = StreamingPod(WHOLE)
    pod.may_end.clear()
    waiting = gevent.spawn(run, pod, timeout_s=0.05)
    try:
        [outcome] = waiting.get(timeout=stubs.PATIENCE_S)
    finally:
        pod.may_end.set()
    assert outcome.error == "timeout"


def test_request_to_an_unreachable_router_counts_as_lost() -> None:
    client = DrillClient(
        Target.from_url(f"http://{stubs.unused_address()}"),
        model="tiny",
        reply_tokens=2,
        timeout_s=stubs.PATIENCE_S,
        now=float,
        sleep_until=float,
    )
    [outcome] = client.run(["hello"], 1.0, int)
    assert outcome.error == "broken answer"
