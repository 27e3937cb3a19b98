"""What the client measures and what it takes for a failure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import gevent
import pytest

from app.load.client import LoadClient, Sample
from app.load.workload import Workload, WorkloadRequest
from tests.fleet import stubs

USAGE = {"prompt_tokens": 32, "prompt_tokens_details": {"cached_tokens": 16}}
WHOLE = [{"choices": [{"text": ""}]}, {"choices": [{"text": "a"}]}, {"choices": [], "usage": USAGE}]


class Answers:
    """Streams `events`, and counts how many requests run at once; none ends before `together` do."""

    def __init__(
        self, events: Iterable[object], end: str = "data: [DONE]\n\n", lasts_s: float = 0.0, together: int = 1
    ) -> None:
        self._text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + end
        self._lasts_s, self._together = lasts_s, together
        self._running = self.most = 0
        self.prompts: list[str] = []

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        self.prompts.append(json.loads(environ["wsgi.input"].read())["prompt"])
        self._running += 1
        self.most = max(self.most, self._running)
        stubs.eventually(lambda: self.most >= self._together)
        gevent.sleep(self._lasts_s)
        self._running -= 1
        start_response("200 OK", [("x-routed-to", "pod")])
        return [self._text.encode()]


def sampled(server: Callable[..., Any]) -> Sample:
    ticks = iter(range(100))
    with stubs.serving(server) as address:
        return LoadClient(address, "m", 4, lambda: float(next(ticks))).sample("Once")


def workload(count: int) -> Workload:
    return Workload(tuple(WorkloadRequest(0, 0, k, f"prompt {k}") for k in range(count)), 10, 10)


def test_a_sample_is_timed_from_the_sending_to_the_first_text() -> None:
    assert sampled(Answers(WHOLE)) == Sample("pod", 1.0, 32, 16)


@pytest.mark.parametrize(
    ("events", "end", "error"),
    [
        (WHOLE, "", "broke off"),
        ([], "data: [DONE]\n\n", "without a token"),
        (WHOLE[:2], "data: [DONE]\n\n", "without its usage"),
        ([{"error": {"message": "no"}}], "data: [DONE]\n\n", "has an error"),
        ([], "data: {nonsense\n\n", "Decode"),
    ],
)
def test_what_is_not_a_whole_answer_is_a_failure(events: list[object], end: str, error: str) -> None:
    assert error in sampled(Answers(events, end)).error


def test_a_refusal_is_a_failure() -> None:
    assert sampled(stubs.Indexer(429)).error == "status 429: "


def test_nobody_there_is_a_failure() -> None:
    client = LoadClient(stubs.unused_address(), "m", 4, lambda: 0.0)
    assert "refused" in client.sample("Once").error


def test_no_more_requests_run_than_allowed_and_all_are_sent() -> None:
    server = Answers(WHOLE, lasts_s=0.005)
    seen: list[Sample] = []
    with stubs.serving(server) as address:
        client = LoadClient(address, "m", 4, lambda: 0.0)
        samples = client.run(workload(20), 3, None, seen.append)
    assert server.most == 3
    assert sorted(server.prompts) == sorted(f"prompt {k}" for k in range(20))
    assert server.prompts.index("prompt 19") > 15
    assert samples == seen and len(samples) == 20 and not any(sample.error for sample in samples)


def test_with_a_rate_requests_do_not_wait_for_each_other() -> None:
    server = Answers(WHOLE, together=8)
    with stubs.serving(server) as address:
        LoadClient(address, "m", 4, lambda: 0.0).run(workload(8), None, [0.0] * 8, lambda sample: None)
    assert server.most == 8
