"""POST /v2/embed: Cohere's form of embeddings."""

from __future__ import annotations

from tests.conformance.calls import ok, post
from tests.pooling.test_cohere import PATH
from tests.running_server import RunningServer


def test_over_http(every: RunningServer) -> None:
    assert len(ok(post(every, PATH, {"texts": ["hello"]}))["embeddings"]["float"][0]) == 16
