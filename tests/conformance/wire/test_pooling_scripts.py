"""Scripts about numbers: vectors, classes and scores of every route that has them."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.calls import error_of, ok, post
from tests.running_server import QUICK_STEPS, RunningServer, running_server

SCRIPT = r"""
rules:
- when:
    api: [score, rerank]
    message: [{role: user, contains: weather}, {role: document, regex: '(?P<city>\w+)$'}]
  then: {score: '{{ 0.9 if match.city == "Rome" else 0.1 }}', usage: {prompt_tokens: 777}}
- when: {message: slow}
  then: {score: -3, delays: {first_token: 300ms}}
- when: {message: {contains: good}}
  then: {classes: {positive: 0.9, negative: 0.1}}
- when: {message: {contains: third}}
  then: {classes: [0.1, 0.2, 0.7]}
- when: {message: refuse}
  then: {fault: {action: error, status: 503}}
- when: {message: late}
  then: {fault: {action: slow-first-token, seconds: 0.3}}
- when: {message: broken}
  then: {fault: {action: truncated-json}}
- when: {message: cat}
  then: {embedding: [1, 0, -0.5]}
- when: {message: kitten}
  then: {embedding: cats and dogs}
- then: {text: words are for others}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    path = tmp_path_factory.mktemp("scripts") / "numbers.yaml"
    path.write_text(SCRIPT)
    flags = (
        "--model=tiny",
        "--task=pooling",
        "--default-embedding-dimensions=8",
        "--script",
        str(path),
    )
    with running_server(*flags, "--profile", str(QUICK_STEPS)) as server:
        yield server


def test_script_sets_the_similarity_scores_in_responses(server: RunningServer) -> None:
    body = {"text_1": "weather?", "text_2": ["in Rome", "in Oslo"]}
    for path in ("/score", "/v1/score"):
        answer = ok(post(server, path, body))
        assert [item["score"] for item in answer["data"]] == [0.9, 0.1]
        assert answer["usage"]["prompt_tokens"] == 777
    unknown = ok(post(server, "/score", {"text_1": "cooking?", "text_2": "in Rome"}))["data"][0][
        "score"
    ]
    assert unknown not in (0.9, 0.1), "the simulation scores what no rule fits"


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_script_sets_the_ranking_of_documents(server: RunningServer, path: str) -> None:
    body = {"query": "weather?", "documents": ["in Oslo", "in Rome", "in Bonn"], "top_n": 2}
    results = ok(post(server, path, body))["results"]
    assert [(document["index"], document["relevance_score"]) for document in results] == [
        (1, 0.9),
        (0, 0.1),
    ]


def test_script_sets_class_labels_and_probabilities(server: RunningServer) -> None:
    items = ok(post(server, "/classify", {"input": ["good", "the third", "cat"]}))["data"]
    assert [item["label"] for item in items[:2]] == ["positive", "LABEL_2"]
    assert [item["probs"] for item in items[:2]] == [[0.9, 0.1], [0.1, 0.2, 0.7]]
    assert [item["num_classes"] for item in items] == [2, 3, 2]


def test_script_sets_pooled_vectors_and_class_probabilities(server: RunningServer) -> None:
    def pooled(inputs: Any, **fields: Any) -> list[Any]:
        return [
            item["data"]
            for item in ok(post(server, "/pooling", {"input": inputs, **fields}))["data"]
        ]

    assert pooled(["cat"]) == [[1, 0, -0.5]]
    (kitten,), (same,) = pooled("kitten"), pooled("cats and dogs")
    assert len(kitten) == 8 and kitten == same
    assert pooled("good", task="classify")[0] == pytest.approx([0.9, 0.1])
    wrong = post(server, "/v1/embeddings", {"input": "cat", "dimensions": 5})
    assert error_of(wrong) == (400, "BadRequestError", "dimensions")
    assert len(pooled("cat", task="token_embed")[0][0]) == 8, (
        "of each token scripts have nothing to say"
    )


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "TEXT"}),
        ("/classify", {"input": "TEXT"}),
        ("/pooling", {"input": "TEXT"}),
        ("/score", {"text_1": "a", "text_2": "TEXT"}),
        ("/rerank", {"query": "a", "documents": ["TEXT"]}),
    ],
)
def test_scripted_faults_apply_to_every_pooling_route(
    server: RunningServer, path: str, body: dict[str, Any]
) -> None:
    def posted_text(text: str) -> Any:
        return post(server, path, json.loads(json.dumps(body).replace("TEXT", text)))

    begun_s = time.monotonic()
    assert ok(posted_text("late"))
    assert time.monotonic() - begun_s >= 0.3
    with pytest.raises(ValueError, match="Expecting|Unterminated"):
        posted_text("broken").json()
