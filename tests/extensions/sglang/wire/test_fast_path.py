"""Plain requests on the fast path have SGLang's forms, and count in its metrics."""

import requests

from tests.client import events, served
from tests.waits import wait_for_metric


def test_fast_path_requests_are_counted_by_streaming_mode() -> None:
    chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}
    with served("--dialect=sglang") as client, requests.Session() as session:
        for streams in (False, True, True):
            url = f"{client.url}/v1/chat/completions"
            assert (
                session.post(url, json={**chat, "stream": streams}, timeout=20).status_code == 200
            )
        assert client.metric("understudy_requests_total", way="fast") >= 3
        name = "sglang:num_requests_total"
        wait_for_metric(client.server.port, name, 2, is_streaming="true")
        assert client.metric(name, is_streaming="false") == 1


def test_last_fast_path_event_has_matched_stop_instead_of_stop_reason() -> None:
    chat = {"messages": [{"role": "user", "content": "one two three"}], "stream": True}
    with served("--dialect=sglang", "--mode=echo", "--inter-token-latency=1ms") as client:
        completion = {"prompt": "one two three", "max_tokens": 50, "stream": True}
        for path, body in (("chat/completions", chat), ("completions", completion)):
            chunks = events(client.post(f"/v1/{path}", body))
            assert chunks[-1]["choices"][0]["matched_stop"] == 0
    with served("--dialect=sglang", "--inter-token-latency=1ms") as client:
        chunks = events(client.post("/v1/chat/completions", {**chat, "max_tokens": 9}))
        assert client.metric("understudy_requests_total", way="fast") >= 1
        assert "matched_stop" in chunks[-1]["choices"][0]
        assert "stop_reason" not in chunks[-1]["choices"][0]
