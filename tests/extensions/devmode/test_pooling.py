"""Embeddings that are requested during a pause."""

from tests.client import in_process

FLAGS = ("--vllm-version=0.33", "--server-dev-mode", "--task=embed")
TEXTS = {"input": ["a", "b"]}


def test_embeddings_are_rejected_during_a_pause_until_resume() -> None:
    with in_process(*FLAGS) as client:
        client.post("/pause")
        answer = client.post("/v1/embeddings", TEXTS)
        assert answer.status_code == 503
        assert answer.json()["error"]["type"] == "ServiceUnavailableError"
        client.post("/resume")
        assert client.post("/v1/embeddings", TEXTS).status_code == 200
