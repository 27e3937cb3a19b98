"""What the pooling routes answer: forms of input, encodings, tasks, scores, and vLLM's keys."""

from __future__ import annotations

import base64
import json
import math
import struct

import pytest

from tests.conformance.calls import USAGE_KEYS
from tests.pooling.calls import (
    BASE,
    CLASSIFY,
    DIMENSIONS,
    EMBED,
    MESSAGES,
    POOL,
    RERANK,
    SCORE,
    client_of,
    refused,
    scores,
    token_ids,
    told,
    vectors,
)


def test_every_form_of_input_gives_the_same_vectors_in_order() -> None:
    texts = ["hello", "Zwölf Boxkämpfer 🥊", "世界", "hello"]
    ids = [token_ids(text) for text in texts]
    wanted = vectors(texts)
    assert wanted == vectors(ids)
    assert wanted == [vectors(text)[0] for text in texts] == [vectors(each)[0] for each in ids]
    assert wanted[0] == wanted[3] != wanted[1]
    assert {len(vector) for vector in wanted} == {DIMENSIONS}


def test_a_conversation_is_embedded_as_its_prompt() -> None:
    prompt = told("/tokenize", messages=MESSAGES, add_generation_prompt=False)["tokens"]
    answer = told(EMBED, messages=MESSAGES)
    assert [item["embedding"] for item in answer["data"]] == vectors(prompt)
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    several = told(EMBED, messages=[MESSAGES, MESSAGES])["data"]
    assert [item["embedding"] for item in several] == vectors([prompt, prompt])


def test_an_input_of_the_whole_context_is_taken_and_a_longer_one_truncated() -> None:
    assert told(EMBED, input=[1] * 64)["usage"]["prompt_tokens"] == 64
    for keep, used in ((-1, 64), (5, 5), (64, 64)):
        asked = {"input": [list(range(100)), [7]], "truncate_prompt_tokens": keep}
        assert told(EMBED, **asked)["usage"]["prompt_tokens"] == used + 1
    (begin,) = vectors(list(range(100)), truncate_prompt_tokens=3)
    (end,) = vectors(list(range(100)), truncate_prompt_tokens=3, truncation_side="left")
    assert [begin, end] == vectors([[0, 1, 2], [97, 98, 99]])


@pytest.mark.parametrize(
    ("dtype", "size"), [("float32", 4), ("float16", 2), ("bfloat16", 2), ("fp8_e4m3", 1), ("fp8_e5m2", 1)]
)
def test_bytes_come_with_their_description_or_alone(dtype: str, size: int) -> None:
    asked = {"input": ["hello", "world"], "embed_dtype": dtype, "endianness": "big"}
    client = client_of("--task=pooling")
    got, alone = (
        client.post(EMBED, json={**asked, "encoding_format": f"bytes{end}"}) for end in ("", "_only")
    )
    assert got.headers["Content-Type"] == alone.headers["Content-Type"] == "application/octet-stream"
    assert got.data == alone.data and "metadata" not in alone.headers
    meta = json.loads(got.headers["metadata"])
    tokens = sum(len(token_ids(text)) for text in ("hello", "world"))
    assert list(meta) == ["id", "created", "model", "data", "usage"]
    assert meta["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    width, same = DIMENSIONS * size, {"embed_dtype": dtype, "endianness": "big", "shape": [DIMENSIONS]}
    places = [{"index": at, "start": at * width, "end": (at + 1) * width, **same} for at in (0, 1)]
    assert meta["data"] == places
    in_json = told(EMBED, **asked, encoding_format="base64")["data"]
    assert got.data == b"".join(base64.b64decode(item["embedding"]) for item in in_json)


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
def test_pooling_gives_what_its_task_says(task: str | None, shape: tuple[int, ...]) -> None:
    asked, client = {"input": [1, 2, 3], "task": task}, client_of("--task=pooling")
    (item,) = client.post(POOL, json=asked).get_json()["data"]
    rows = item["data"] if len(shape) > 1 else [item["data"]]
    assert (len(rows), {len(row) for row in rows}) == (shape[0] if len(shape) > 1 else 1, {shape[-1]})
    got = client.post(POOL, json={**asked, "encoding_format": "bytes"})
    assert tuple(json.loads(got.headers["metadata"])["data"][0]["shape"]) == shape
    numbers = struct.unpack(f"<{math.prod(shape)}f", got.data)
    assert list(numbers) == [number for row in rows for number in row]


def test_a_model_pools_for_its_own_task_only() -> None:
    assert len(told(POOL, "score", **BASE[POOL])["data"][0]["data"]) == 1
    answer = client_of("--task=classify").post(POOL, json={**BASE[POOL], "task": "classify"})
    assert len(answer.get_json()["data"][0]["data"]) == 2
    for task in ("embed", "token_classify", "plugin"):
        assert refused(POOL, {**BASE[POOL], "task": task}, "--task=classify")[::2] == (400, "task")


def test_probabilities_of_classes_add_up_to_one() -> None:
    items = told(CLASSIFY, input=["hello", "world", "hello"])["data"]
    assert [item["index"] for item in items] == [0, 1, 2]
    for item in items:
        assert (len(item["probs"]), item["num_classes"]) == (2, 2)
        assert sum(item["probs"]) == pytest.approx(1)
        assert item["label"] == f"LABEL_{item['probs'].index(max(item['probs']))}"
    assert items[0]["probs"] == items[2]["probs"] != items[1]["probs"]
    (logits,) = told(CLASSIFY, input="hello", use_activation=False)["data"]
    assert logits["label"] == items[0]["label"] and sum(logits["probs"]) != pytest.approx(1)
    (single,) = told(CLASSIFY, "score", input="hello")["data"]
    assert (single["label"], single["num_classes"]) == ("LABEL_0", 1)


@pytest.mark.parametrize("path", [SCORE, "/v1/score"])
def test_common_tokens_raise_the_score(path: str) -> None:
    documents = ["red fox jumps", "red fox sleeps", "red cats sleep", "blue whales sing"]
    values = [item["score"] for item in told(path, queries="red fox jumps", documents=documents)["data"]]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == 4 and all(0 < value < 1 for value in values)


def test_texts_are_compared_one_with_many_or_each_with_its_own() -> None:
    one, other = scores(text_1="a b", text_2=["a b", "c d"])
    assert scores(text_1=["a b", "a b"], text_2=["a b", "c d"]) == [one, other]
    assert scores(text_1="a b", text_2="c d") == scores(data_1="c d", data_2="a b") == [other]
    (logit,) = scores(queries="a b", items="c d", use_activation=False)
    assert 1 / (1 + math.exp(-logit)) == pytest.approx(other)


def test_a_cross_encoder_reads_the_query_with_every_document() -> None:
    asked = {"query": "hello", "documents": ["world", "hello world"]}
    query, *documents = (len(token_ids(text)) for text in ("hello", "world", "hello world"))
    assert told(RERANK, **asked)["usage"]["prompt_tokens"] == query + sum(documents)
    assert told(RERANK, "score", **asked)["usage"]["prompt_tokens"] == 2 * query + sum(documents)


def test_a_cross_encoder_takes_a_place_for_each_pair() -> None:
    def counted() -> float:
        lines = client_of("--task=score").get("/metrics").text.splitlines()
        return sum(float(it.split()[-1]) for it in lines if it.startswith("vllm:request_prompt_tokens_count"))

    before = counted()
    told(RERANK, "score", query="a", documents=["b", "c", "d"])
    assert counted() == before + 3


@pytest.mark.parametrize("path", [RERANK, "/v1/rerank", "/v2/rerank"])
def test_a_rerank_is_sorted_and_keeps_the_places_of_documents(path: str) -> None:
    documents = ["blue whales", "red fox", "red cats", "blue whales"]
    results = told(path, query="red fox", documents=documents)["results"]
    assert [result["index"] for result in results] == [1, 2, 0, 3]
    assert [result["document"]["text"] for result in results] == [documents[i] for i in (1, 2, 0, 3)]
    values = [result["relevance_score"] for result in results]
    assert values == scores(text_1="red fox", text_2=[documents[i] for i in (1, 2, 0, 3)])
    for top_n, count in ((0, 4), (2, 2), (99, 4)):
        assert told(path, query="red fox", documents=documents, top_n=top_n)["results"] == results[:count]


@pytest.mark.parametrize(
    ("path", "prefix", "keys"),
    [
        (EMBED, "embd", ["index", "object", "embedding"]),
        (POOL, "pooling", ["index", "object", "data"]),
        (CLASSIFY, "classify", ["index", "label", "probs", "num_classes"]),
        (SCORE, "score", ["index", "object", "score"]),
    ],
)
def test_a_list_has_vllms_keys_and_nulls_in_vllms_order(path: str, prefix: str, keys: list[str]) -> None:
    answer = json.loads(client_of("--task=pooling").post(path, json=BASE[path]).data)
    assert list(answer) == ["id", "object", "created", "model", "data", "usage"]
    assert (answer["object"], answer["model"]) == ("list", "tiny")
    assert answer["id"].startswith(prefix + "-")
    assert [list(item) for item in answer["data"]] == [keys]
    assert list(answer["usage"]) == USAGE_KEYS
    tokens = answer["usage"]["prompt_tokens"]
    assert list(answer["usage"].values()) == [tokens, tokens, 0, None, None]


def test_a_rerank_has_vllms_keys_and_nulls_in_vllms_order() -> None:
    answer = told(RERANK, **BASE[RERANK])
    assert list(answer) == ["id", "model", "usage", "results"]
    assert list(answer["usage"]) == ["prompt_tokens", "total_tokens"]
    (result,) = answer["results"]
    assert list(result) == ["index", "document", "relevance_score"]
    assert result["document"] == {"text": "world", "multi_modal": None}
    assert answer["id"].startswith("score-")
