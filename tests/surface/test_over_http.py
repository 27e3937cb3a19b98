"""Routes that are tested in process, once over HTTP, on one server."""

from __future__ import annotations

from tests.surface import test_invocations, test_label_reads
from tests.surface.conftest import Client


def test_invocations_stream_and_are_counted(client: Client) -> None:
    path = test_invocations.PATH
    with client.post(path, {**test_invocations.CHAT, "stream": True}, stream=True) as told:
        assert told.headers["Content-Type"].startswith("text/event-stream")
        assert told.text.endswith("data: [DONE]\n\n")
    assert client.metric("http_requests_total", handler=path, status="2xx") == 1


def test_labels_are_read_for_a_token_each(client: Client) -> None:
    before = client.metric("vllm:generation_tokens_total")
    assert len(client.post(test_label_reads.SCORING, test_label_reads.SCORE).json()["data"]) == 2
    asked = test_label_reads.question(**test_label_reads.NOUL)
    assert client.post(test_label_reads.DECISIONS, asked).json()["object"] == "structured_decision"
    assert client.metric("vllm:generation_tokens_total") == before + 3


def test_the_version_of_weights_is_that_of_the_server(client: Client) -> None:
    assert client.post("/update_weight_version", {"new_version": "http"}).json()["success"]
    assert client.get("/weight_info").json() == {"weight_version": "http"}
    client.post("/update_weight_version", {"new_version": "default"})
