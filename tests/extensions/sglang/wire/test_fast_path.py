"""Plain requests on the fast path count in SGLang's metrics like all others."""

import requests

from tests.client import served
from tests.hostile.raw_client import wait_until


def test_plain_requests_are_counted_by_whether_they_stream() -> None:
    chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}
    with served("--dialect=sglang") as client, requests.Session() as session:
        for streams in (False, True, True):
            url = f"{client.url}/v1/chat/completions"
            assert (
                session.post(url, json={**chat, "stream": streams}, timeout=20).status_code == 200
            )
        assert client.metric("understudy_requests_total", way="fast") >= 3
        name = "sglang:num_requests_total"
        wait_until(lambda: client.metric(name, is_streaming="true") == 2)
        assert client.metric(name, is_streaming="false") == 1
