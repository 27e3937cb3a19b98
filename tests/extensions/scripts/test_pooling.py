"""Scripts on a server of a pooling model."""

from typing import Any

from tests.application import app_of
from tests.extensions.scripts.test_run_time import rules
from tests.extensions.scripts.test_unmatched import message_of


def test_runtime_rule_returns_an_embedding() -> None:
    client = app_of("--task", "pooling").test_client()
    rules(client, "", "POST", {"then": {"embedding": [0.25, 0.5]}})
    answer: Any = client.post("/v1/embeddings", json={"input": "a"}).json
    assert answer["data"][0]["embedding"] == [0.25, 0.5]


def test_unmatched_embedding_request_fails_only_if_a_rule_sets_embeddings() -> None:
    client = app_of("--task", "embed", "--seed", "1").test_client()
    rules(client, "", "POST", {"when": {"message": "x"}, "then": {"text": "a"}})
    assert client.post("/v1/embeddings", json={"input": "a"}).status_code == 200
    rules(client, "", "POST", {"when": {"message": "x"}, "then": {"embedding": [1.0]}})
    assert "rule 2" in message_of(client.post("/v1/embeddings", json={"input": "a"}))
