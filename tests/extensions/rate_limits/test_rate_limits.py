"""Limits of requests and tokens per minute, and the headers that report them."""

import json
import math
from typing import Any

from flask.testing import FlaskClient
from hypothesis import given, settings
from hypothesis import strategies as st
from werkzeug.test import TestResponse

from app.core.server.http.body_limits import BodyLimits
from app.core.server.http.context import RequestContext
from app.core.server.http.response import Response, json_response
from app.core.server.http.route import Route
from app.core.settings import settings_type
from app.extensions.rate_limits.limits import MAX_CALLERS
from app.extensions.rate_limits.middleware import RateLimits
from app.extensions.rate_limits.settings import RateLimitSettings
from config.validation import LiveSettings
from tests.application import app_of, application, check_caches
from tests.core.engine.harness import Harness

COMPLETIONS = "/v1/completions"


class Limited:
    """A house with a door that counts; its clock stands still unless it is advanced.

    Each request generates `max_tokens` tokens (5 unless told) from a prompt of 3.
    """

    def __init__(self, **access: Any) -> None:
        self.harness = Harness(slots=100, inter_token_latency=1.0, time_to_first_token=1.0)
        self.live = LiveSettings(settings_type()(rate_limits=RateLimitSettings(**access)))
        self.limits = RateLimits(self.harness.clock)
        paths = (COMPLETIONS, "/v1/messages", "/tokenize")
        routes = [
            Route(methods=("POST", "GET"), path=path, handle=self._generate) for path in paths
        ]
        self.client: FlaskClient = application(routes, self.limits, live=self.live).test_client()
        self.group: Any = None

    def _generate(self, context: RequestContext) -> Response:
        body = json.loads(BodyLimits(1000, 1.0).read(context) or b"{}")
        if body.get("max_tokens") != 0:
            self.group = self.harness.ask(**body, observers=context.observers)
        return json_response({})

    def post(
        self, key: str = "key", path: str = COMPLETIONS, address: str = "", **fields: Any
    ) -> TestResponse:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        base = {"REMOTE_ADDR": address} if address else {}
        return self.client.post(path, headers=headers, json=fields, environ_overrides=base)

    def advance(self, seconds: float) -> None:
        self.harness.clock.advance(seconds)


def told(answer: TestResponse, unit: str) -> tuple[str, str, str]:
    """Limit, remaining and reset of `requests` or `tokens`."""
    limit, remaining, reset = (
        answer.headers[f"x-ratelimit-{name}-{unit}"] for name in ("limit", "remaining", "reset")
    )
    return limit, remaining, reset


def limits_told(answer: TestResponse) -> list[str]:
    return [name for name, _ in answer.headers if name.startswith("x-ratelimit")]


def is_refused(answer: TestResponse, retry_after: str) -> bool:
    if answer.status_code != 429:
        return False
    error = answer.json["error"]
    assert (error["type"], error["param"], error["code"]) == ("RateLimitError", None, 429)
    assert list(error) == ["message", "type", "param", "code"]
    assert answer.headers["Retry-After"] == retry_after
    return True


def test_requests_beyond_the_limit_are_rejected_until_the_bucket_refills() -> None:
    limited = Limited(requests_per_minute=3)
    assert [limited.post().status_code for _ in range(3)] == [200] * 3
    assert is_refused(limited.post(), retry_after="20")
    limited.advance(19.9)
    assert is_refused(limited.post(), retry_after="1")
    limited.advance(0.1)
    assert limited.post().status_code == 200
    assert is_refused(limited.post(), retry_after="20")


def test_every_rate_limited_response_has_headers_with_the_remaining_limits() -> None:
    limited = Limited(requests_per_minute=2, tokens_per_minute=600)
    assert told(limited.post(), "requests") == ("2", "1", "30s")
    for _ in range(2):  # the second of which is refused
        answer = limited.post()
        assert told(answer, "requests") == ("2", "0", "1m0s")
        assert told(answer, "tokens") == ("600", "594", "600ms")
    limited.advance(60)
    assert told(limited.post(), "requests") == ("2", "1", "30s")


def test_prompt_tokens_are_charged_at_once_and_reply_tokens_at_the_end() -> None:
    limited = Limited(tokens_per_minute=60)
    limited.post(max_tokens=10)
    assert told(limited.post(max_tokens=0), "tokens") == ("60", "57", "3s")
    limited.advance(30)
    assert told(limited.post(max_tokens=0), "tokens") == ("60", "60", "0s")
    limited.post(max_tokens=40)
    limited.advance(40.5)
    assert told(limited.post(max_tokens=0), "tokens")[1] == "20"
    limited.post("other", choices=4)
    assert told(limited.post("other", max_tokens=0), "tokens")[1] == "57", (
        "choices share their prompt"
    )


def test_disconnected_client_is_charged_for_generated_tokens() -> None:
    limited = Limited(tokens_per_minute=6000)
    limited.post(max_tokens=1000)
    limited.advance(100.5)
    limited.group.abort()
    assert told(limited.post(max_tokens=0), "tokens")[1] == "5900"


def test_limits_apply_per_key_or_else_per_client_address() -> None:
    limited = Limited(requests_per_minute=1)
    assert [limited.post(key).status_code for key in ("one", "two", "one")] == [200, 200, 429]
    statuses = [limited.post("", address=f"10.0.0.{host}").status_code for host in (1, 2, 1)]
    assert statuses == [200, 200, 429]


def test_requests_without_generation_are_not_rate_limited() -> None:
    limited = Limited(requests_per_minute=1)
    for _ in range(3):
        for answer in (limited.post(path="/tokenize"), limited.client.get(COMPLETIONS)):
            assert answer.status_code == 200
            assert not limits_told(answer)
    assert limited.post(path="/v1/messages").status_code == 200
    assert limited.post().status_code == 429


def test_changed_rate_limit_applies_at_once() -> None:
    limited = Limited()
    assert not limits_told(limited.post())
    for limit, expected in ((1, [200, 429]), (2, [200, 200, 429]), (None, [200])):
        limited.live.change({"requests-per-minute": limit})
        assert [limited.post().status_code for _ in expected] == expected
        limited.live.change({"log-http": True})  # another setting fills no bucket
        assert limited.post().status_code == expected[-1]


def test_changing_one_rate_limit_does_not_refill_the_other() -> None:
    limited = Limited(requests_per_minute=2, tokens_per_minute=600)
    limited.post()
    limited.live.change({"requests-per-minute": 4})
    answer = limited.post(max_tokens=0)
    assert told(answer, "requests") == ("4", "3", "15s")
    assert told(answer, "tokens")[:2] == ("600", "597")
    limited.live.change({"tokens-per-minute": 60})
    answer = limited.post()
    assert told(answer, "requests")[:2] == ("4", "2")
    assert told(answer, "tokens")[:2] == ("60", "57")
    limited.live.change({"requests-per-minute": None})
    answer = limited.post(max_tokens=0)
    assert "x-ratelimit-limit-requests" not in answer.headers
    assert told(answer, "tokens")[:2] == ("60", "57")


def test_memory_of_rate_limited_clients_is_bounded() -> None:
    limited = Limited(tokens_per_minute=1)
    for number in range(MAX_CALLERS + 1):
        limited.limits.callers.charge(b"%d" % number, 1)
    assert limited.limits.callers.size_bytes == limited.limits.callers.limit_bytes


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 50), st.lists(st.floats(0, 30), min_size=1, max_size=80))
def test_no_client_exceeds_its_rate_limit(per_minute: int, gaps: list[float]) -> None:
    limited = Limited(requests_per_minute=per_minute)
    served = 0
    begin_s = limited.harness.clock.now()
    for gap_s in gaps:
        limited.advance(gap_s)
        served += limited.post(max_tokens=0).status_code == 200
        elapsed_s = limited.harness.clock.now() - begin_s
        assert served <= per_minute * (1 + elapsed_s / 60) + 1e-3
    answer = limited.post(max_tokens=0)
    if answer.status_code == 429:
        wait_s = int(answer.headers["Retry-After"])
        assert 1 <= wait_s <= math.ceil(60 / per_minute)
        limited.advance(wait_s)
        assert limited.post(max_tokens=0).status_code == 200


def test_memory_report_lists_the_rate_limited_clients() -> None:
    check_caches(app_of("--requests-per-minute", "5"), {"rate limits"})
