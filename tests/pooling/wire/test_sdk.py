"""Embeddings, pooling, classify, score and rerank have vLLM's shapes, and the openai SDK reads them."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.conformance.calls import USAGE_KEYS, ok, post, token_ids
from tests.conformance.sdk import openai_client
from tests.pooling.calls import BASE, CLASSIFY, EMBED, POOL, RERANK, SCORE, vectors
from tests.running_server import RunningServer

LIST_KEYS = ["id", "object", "created", "model", "data", "usage"]


@pytest.fixture(scope="module")
def sdk(every: RunningServer) -> Iterator[openai.OpenAI]:
    with openai_client(every, strict=False) as lenient:
        yield lenient


@pytest.mark.parametrize(
    ("path", "prefix", "keys"),
    [
        (EMBED, "embd", ["index", "object", "embedding"]),
        (POOL, "pooling", ["index", "object", "data"]),
        (CLASSIFY, "classify", ["index", "label", "probs", "num_classes"]),
        (SCORE, "score", ["index", "object", "score"]),
    ],
)
def test_a_list_has_vllms_keys_and_nulls_in_vllms_order(
    every: RunningServer, path: str, prefix: str, keys: list[str]
) -> None:
    got = post(every, path, BASE[path])
    answer = ok(got)
    assert got.headers["Content-Type"] == "application/json"
    assert list(answer) == LIST_KEYS
    assert (answer["object"], answer["model"]) == ("list", "tiny")
    assert answer["id"].startswith(prefix + "-")
    assert [list(item) for item in answer["data"]] == [keys]
    assert list(answer["usage"]) == USAGE_KEYS
    tokens = answer["usage"]["prompt_tokens"]
    assert list(answer["usage"].values()) == [tokens, tokens, 0, None, None]


def test_a_rerank_has_vllms_keys_and_nulls_in_vllms_order(every: RunningServer) -> None:
    answer = ok(post(every, RERANK, BASE[RERANK]))
    assert list(answer) == ["id", "model", "usage", "results"]
    assert list(answer["usage"]) == ["prompt_tokens", "total_tokens"]
    (result,) = answer["results"]
    assert list(result) == ["index", "document", "relevance_score"]
    assert result["document"] == {"text": "world", "multi_modal": None}
    assert answer["id"].startswith("score-")


def test_the_sdk_asks_for_base64_and_returns_the_numbers(every: RunningServer, sdk: openai.OpenAI) -> None:
    answer = sdk.embeddings.create(model="tiny", input=["hello", "world"])
    assert [item.embedding for item in answer.data] == vectors(every, ["hello", "world"])
    assert [item.index for item in answer.data] == [0, 1]
    assert answer.usage.prompt_tokens == sum(len(token_ids(every, text)) for text in ("hello", "world"))
    for encoding in ({}, {"encoding_format": "float"}):
        few = sdk.embeddings.create(model="tiny", input=[[1, 2, 3]], dimensions=5, **encoding)
        assert [few.data[0].embedding] == vectors(every, [[1, 2, 3]], dimensions=5)
