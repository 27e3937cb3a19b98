"""POST /invocations: a body goes to the first family that it fits, in vLLM's order."""

from __future__ import annotations

from tests.surface.conftest import Client
from tests.surface.test_invocations import CHAT, PATH


def test_over_http(client: Client) -> None:
    with client.post(PATH, {**CHAT, "stream": True}, stream=True) as told:
        assert told.headers["Content-Type"].startswith("text/event-stream")
        assert told.text.endswith("data: [DONE]\n\n")
    assert client.metric("http_requests_total", handler=PATH, status="2xx") == 1
