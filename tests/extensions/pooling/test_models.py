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


PATHS = ("/v1/embeddings", "/pooling", "/classify", "/score", "/rerank", "/v1/chat/completions")
BODIES: dict[str, dict[str, object]] = {
    "/score": {"queries": "a", "documents": ["a", "b"]},
    "/rerank": {"query": "a", "documents": ["a", "b"]},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
}


def served_paths_of(*argv: str) -> set[str]:
    """Returns the paths that answer, by a request to each one."""
    server = client(*argv)
    paths = set()
    for path in PATHS:
        body = {"model": argv[0], **BODIES.get(path, {"input": "a"})}
        status = server.post(path, json=body).status_code
        assert status in (200, 404), (path, status)
        if status == 200:
            paths.add(path)
    return paths


@pytest.mark.parametrize(
    ("name", "paths"),
    [
        ("Qwen/Qwen2.5-Omni-7B", {"/v1/chat/completions"}),
        ("fixie-ai/ultravox-v0_5-llama-3_2-1b", {"/v1/chat/completions"}),
        ("mispeech/midashenglm-7b", {"/v1/chat/completions"}),
        ("answerdotai/answerai-colbert-small-v1", {"/pooling", "/score", "/rerank"}),
        ("TomoroAI/tomoro-colqwen3-embed-4b", {"/pooling", "/score", "/rerank"}),
        ("athrael-soju/colqwen3.5-4.5B-v3", {"/pooling", "/score", "/rerank"}),
        ("Cloudflare/clef-omni", {"/pooling"}),
        ("boltuix/NeuroBERT-NER", {"/pooling"}),
        (
            "Skywork/Skywork-Reward-V2-Qwen3-0.6B",
            {"/pooling", "/classify", "/score", "/rerank"},
        ),
        ("BAAI/bge-m3", {"/v1/embeddings", "/pooling", "/score", "/rerank"}),
    ],
)
def test_model_has_the_routes_of_its_kind(name: str, paths: set[str]) -> None:
    assert served_paths_of(name, "--vllm-version", "0.32") == paths


def test_late_interaction_model_embeds_tokens_since_0_33() -> None:
    name = "answerdotai/answerai-colbert-small-v1"
    expected = {"/v1/embeddings", "/pooling", "/score", "/rerank"}
    assert served_paths_of(name, "--vllm-version", "0.33") == expected
    answer = client(name, "--vllm-version", "0.33").post(
        "/v1/embeddings", json={"model": name, "input": "one two three"}
    )
    assert len(answer.get_json()["data"][0]["embedding"]) > 1


def test_model_that_needs_a_plugin_says_so() -> None:
    name = "ibm-nasa-geospatial/Prithvi-EO-2.0-300M-TL-Sen1Floods11"
    server = client(name)
    answer = server.post("/pooling", json={"model": name, "input": "a"})
    assert answer.status_code == 400
    assert answer.get_json()["error"]["message"].startswith("No IOProcessor plugin installed")
    assert server.post("/score", json={"model": name}).status_code == 404


def test_classifier_of_tokens_refuses_texts() -> None:
    name = "Qwen/Qwen3-0.6B"
    server = client(name, "--convert", "classify", "--pooler-config.task", "token_classify")
    answer = server.post("/classify", json={"model": name, "input": "a"})
    assert answer.status_code == 501
    assert answer.get_json()["error"]["message"] == "The model does not support Classification API"
    assert server.post("/pooling", json={"model": name, "input": "a"}).status_code == 200


TEXT_PART = {"content": [{"type": "text", "text": "a fox"}]}
IMAGE_PART = {"content": [{"type": "image_url", "image_url": {"url": "http://host/a.png"}}]}


@pytest.mark.parametrize(
    "name",
    [
        "jinaai/jina-reranker-m0",
        "Qwen/Qwen3-VL-Reranker-2B",
        "ModernVBERT/colmodernvbert-merged",
    ],
)
def test_multimodal_model_compares_text_parts_as_texts(name: str) -> None:
    server = client(name)
    body = {"model": name, "queries": "a fox", "documents": ["a fox", TEXT_PART, "a whale"]}
    first, second, third = server.post("/score", json=body).get_json()["data"]
    assert first["score"] == second["score"] > third["score"]
    body = {"model": name, "query": TEXT_PART, "documents": ["a whale", TEXT_PART]}
    results = server.post("/rerank", json=body).get_json()["results"]
    assert [each["document"] for each in results] == [
        {"text": None, "multi_modal": TEXT_PART["content"]},
        {"text": "a whale", "multi_modal": None},
    ]
    answer = server.post("/score", json={**body, "queries": "a", "documents": [IMAGE_PART]})
    assert answer.status_code == 400
    assert answer.get_json()["error"]["message"] == (
        "Scores of images and videos are not simulated: only texts are compared"
    )


def test_text_model_refuses_parts_as_vllm_does() -> None:
    name = "BAAI/bge-reranker-base"
    body = {"model": name, "queries": "a", "documents": [TEXT_PART]}
    answer = client(name).post("/score", json=body)
    assert answer.status_code == 400
    assert answer.get_json()["error"]["message"] == (
        "MultiModalParam is not supported for XLMRobertaForSequenceClassification"
    )
