"""Pooling models by name: their routes, numbers of dimensions and lengths."""

import json
from pathlib import Path

import pytest

from tests.vllm_facts.test_model_choice import client

EMBEDDERS = {
    "BAAI/bge-m3": (1024, 8192),
    "intfloat/e5-mistral-7b-instruct": (4096, 4096),
    "Alibaba-NLP/gte-Qwen2-1.5B-instruct": (1536, 32768),
    "Qwen/Qwen3-Embedding-0.6B": (1024, 32768),
    "Qwen/Qwen3-Embedding-4B": (2560, 40960),
    "jinaai/jina-embeddings-v3": (1024, 8192),
    "Alibaba-NLP/gte-modernbert-base": (768, 8192),
    "nomic-ai/nomic-embed-text-v1.5": (768, 2048),
    "Snowflake/snowflake-arctic-embed-l-v2.0": (1024, 8192),
}
RERANKERS = {
    "BAAI/bge-reranker-v2-m3": (),
    "Qwen/Qwen3-Reranker-0.6B": (
        "--hf-overrides",
        '{"architectures": ["Qwen3ForSequenceClassification"],'
        '"classifier_from_token": ["no", "yes"], "is_original_qwen3_reranker": true}',
    ),
    "jinaai/jina-reranker-m0": (),
}
"""Name -> options that vLLM needs."""


@pytest.mark.parametrize("name", EMBEDDERS)
def test_embedding_model_has_its_own_vectors_and_length(name: str) -> None:
    size, length = EMBEDDERS[name]
    server = client(name)
    answer = server.post("/v1/embeddings", json={"model": name, "input": "hello"})
    assert len(answer.get_json()["data"][0]["embedding"]) == size
    assert server.get("/v1/models").get_json()["data"][0]["max_model_len"] == length
    chat = {"model": name, "messages": [{"role": "user", "content": "hi"}]}
    assert server.post("/v1/chat/completions", json=chat).status_code == 404


@pytest.mark.parametrize("name", RERANKERS)
def test_reranker_scores_documents(name: str) -> None:
    server = client(name, *RERANKERS[name])
    body = {"model": name, "query": "a", "documents": ["a", "b"]}
    assert len(server.post("/rerank", json=body).get_json()["results"]) == 2
    answer = server.post("/classify", json={"model": name, "input": "a"}).get_json()
    assert answer["data"][0]["num_classes"] == 1
    assert server.post("/v1/embeddings", json={"model": name, "input": "a"}).status_code == 404


def test_process_reward_model_has_two_classes_for_each_token() -> None:
    name = "Qwen/Qwen2.5-Math-PRM-7B"
    answer = client(name).post("/pooling", json={"model": name, "input": "one two three"})
    rows = answer.get_json()["data"][0]["data"]
    assert len(rows) > 1 and {len(row) for row in rows} == {2}


def test_classes_have_the_names_of_the_configuration(tmp_path: Path) -> None:
    names = ["no", "maybe, or not", "yes"]
    config = {
        "architectures": ["BertForSequenceClassification"],
        "id2label": dict(enumerate(names)),
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    server = client(str(tmp_path))
    inputs = [f"text {number}" for number in range(20)]
    answer = server.post("/classify", json={"model": str(tmp_path), "input": inputs}).get_json()
    for item in answer["data"]:
        assert item["num_classes"] == len(item["probs"]) == len(names)
        assert sum(item["probs"]) == pytest.approx(1)
        assert item["label"] == names[item["probs"].index(max(item["probs"]))]
    assert {item["label"] for item in answer["data"]} == set(names)


@pytest.mark.parametrize("count", [1, 5])
def test_override_of_the_number_of_classes_is_served(count: int) -> None:
    name = "Qwen/Qwen3-0.6B"
    server = client(name, "--convert", "classify", "--hf-overrides.num_labels", str(count))
    answer = server.post("/classify", json={"model": name, "input": "a"}).get_json()
    assert len(answer["data"][0]["probs"]) == count
    has_scores = server.post("/score", json={"model": name, "queries": "a", "documents": "b"})
    assert (has_scores.status_code == 200) == (count == 1)
