"""POST /pooling, /classify, /score and /rerank."""

from __future__ import annotations

import json
import math
import struct

import pytest

from app.wiring.factory import create_app
from config.settings import ModelSettings, Settings
from tests.conformance.calls import ok, post, token_ids
from tests.pooling.calls import BASE, CLASSIFY, POOL, RERANK, SCORE, scores
from tests.running_server import RunningServer


@pytest.mark.parametrize(
    ("task", "shape"),
    [
        (None, (16,)),
        ("embed", (16,)),
        ("classify", (2,)),
        ("token_embed", (3, 16)),
        ("token_classify", (3, 2)),
    ],
)
def test_pooling_gives_what_its_task_says(
    every: RunningServer, task: str | None, shape: tuple[int, ...]
) -> None:
    asked = {"input": [1, 2, 3], "task": task}
    (item,) = ok(post(every, POOL, asked))["data"]
    rows = item["data"] if len(shape) > 1 else [item["data"]]
    assert (len(rows), {len(row) for row in rows}) == (shape[0] if len(shape) > 1 else 1, {shape[-1]})
    got = post(every, POOL, {**asked, "encoding_format": "bytes"})
    assert tuple(json.loads(got.headers["metadata"])["data"][0]["shape"]) == shape
    numbers = struct.unpack(f"<{math.prod(shape)}f", got.content)
    assert list(numbers) == [number for row in rows for number in row]


def test_a_model_pools_for_its_own_task_only(cross: RunningServer) -> None:
    assert len(ok(post(cross, POOL, BASE[POOL]))["data"][0]["data"]) == 1
    client = create_app(Settings(model=ModelSettings(task="classify"))).test_client()
    told = client.post(POOL, json={**BASE[POOL], "task": "classify"})
    assert told.json is not None and len(told.json["data"][0]["data"]) == 2
    for task in ("embed", "token_classify", "plugin"):
        refusal = client.post(POOL, json={**BASE[POOL], "task": task})
        assert refusal.json is not None
        assert (refusal.status_code, refusal.json["error"]["param"]) == (400, "task")


def test_probabilities_of_classes_add_up_to_one(every: RunningServer, cross: RunningServer) -> None:
    items = ok(post(every, CLASSIFY, {"input": ["hello", "world", "hello"]}))["data"]
    assert [item["index"] for item in items] == [0, 1, 2]
    for item in items:
        assert (len(item["probs"]), item["num_classes"]) == (2, 2)
        assert sum(item["probs"]) == pytest.approx(1)
        assert item["label"] == f"LABEL_{item['probs'].index(max(item['probs']))}"
    assert items[0]["probs"] == items[2]["probs"] != items[1]["probs"]
    (logits,) = ok(post(every, CLASSIFY, {"input": "hello", "use_activation": False}))["data"]
    assert logits["label"] == items[0]["label"] and sum(logits["probs"]) != pytest.approx(1)
    (single,) = ok(post(cross, CLASSIFY, {"input": "hello"}))["data"]
    assert (single["label"], single["num_classes"]) == ("LABEL_0", 1)


@pytest.mark.parametrize("path", [SCORE, "/v1/score"])
def test_common_tokens_raise_the_score(every: RunningServer, path: str) -> None:
    documents = ["red fox jumps", "red fox sleeps", "red cats sleep", "blue whales sing"]
    answer = ok(post(every, path, {"queries": "red fox jumps", "documents": documents}))
    values = [item["score"] for item in answer["data"]]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == 4 and all(0 < value < 1 for value in values)


def test_texts_are_compared_one_with_many_or_each_with_its_own(every: RunningServer) -> None:
    one, other = scores(every, text_1="a b", text_2=["a b", "c d"])
    assert scores(every, text_1=["a b", "a b"], text_2=["a b", "c d"]) == [one, other]
    assert scores(every, text_1="a b", text_2="c d") == scores(every, data_1="c d", data_2="a b") == [other]
    (logit,) = scores(every, queries="a b", items="c d", use_activation=False)
    assert 1 / (1 + math.exp(-logit)) == pytest.approx(other)


def test_a_cross_encoder_reads_the_query_with_every_document(
    every: RunningServer, cross: RunningServer
) -> None:
    asked = {"query": "hello", "documents": ["world", "hello world"]}
    query, *documents = (len(token_ids(every, text)) for text in ("hello", "world", "hello world"))
    assert ok(post(every, RERANK, asked))["usage"]["prompt_tokens"] == query + sum(documents)
    assert ok(post(cross, RERANK, asked))["usage"]["prompt_tokens"] == 2 * query + sum(documents)


@pytest.mark.parametrize("path", [RERANK, "/v1/rerank", "/v2/rerank"])
def test_a_rerank_is_sorted_and_keeps_the_places_of_documents(every: RunningServer, path: str) -> None:
    documents = ["blue whales", "red fox", "red cats", "blue whales"]
    results = ok(post(every, path, {"query": "red fox", "documents": documents}))["results"]
    assert [result["index"] for result in results] == [1, 2, 0, 3]
    assert [result["document"]["text"] for result in results] == [documents[i] for i in (1, 2, 0, 3)]
    values = [result["relevance_score"] for result in results]
    assert values == scores(every, text_1="red fox", text_2=[documents[i] for i in (1, 2, 0, 3)])
    for top_n, count in ((0, 4), (2, 2), (99, 4)):
        best = ok(post(every, path, {"query": "red fox", "documents": documents, "top_n": top_n}))["results"]
        assert best == results[:count]
