"""Requests and tokens per minute: who has used them up waits, and is told for how long."""

from __future__ import annotations

from typing import Any

import requests

from tests.hostile.raw_client import ask
from tests.middleware.test_rate_limits import COMPLETIONS
from tests.running_server import running_server


def test_a_real_server_limits_streams_and_whole_answers() -> None:
    flags = ("--tokens-per-minute=40", "--requests-per-minute=3")
    with running_server(*flags) as server:

        def post(**asked: Any) -> requests.Response:
            return requests.post(server.url + COMPLETIONS, json=ask(**asked), timeout=20)

        first = post(max_tokens=10, stream=True)
        assert first.headers["x-ratelimit-remaining-requests"] == "2"
        second = post(max_tokens=100)
        assert int(second.headers["x-ratelimit-remaining-tokens"]) < 40 - 10
        third = post()
        assert (third.status_code, third.json()["error"]["type"]) == (429, "RateLimitError")
        assert int(third.headers["Retry-After"]) > 60
        assert requests.get(server.url + "/v1/models", timeout=20).ok
