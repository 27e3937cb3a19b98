"""Vectors over HTTP: every form of input, every encoding, and answers of any size."""

from __future__ import annotations

import base64
import json

import pytest

from tests.conformance.calls import MESSAGES, ok, post, token_ids
from tests.hostile.raw_client import Wire, get
from tests.pooling.calls import DIMENSIONS, EMBED, vectors
from tests.running_server import RunningServer


def test_every_form_of_input_gives_the_same_vectors_in_order(every: RunningServer) -> None:
    texts = ["hello", "Zwölf Boxkämpfer 🥊", "世界", "hello"]
    ids = [token_ids(every, text) for text in texts]
    wanted = vectors(every, texts)
    assert wanted == vectors(every, ids)
    assert wanted == [vectors(every, text)[0] for text in texts] == [vectors(every, each)[0] for each in ids]
    assert wanted[0] == wanted[3] != wanted[1]
    assert {len(vector) for vector in wanted} == {DIMENSIONS}


def test_a_conversation_is_embedded_as_its_prompt(every: RunningServer) -> None:
    prompt = ok(post(every, "/tokenize", {"messages": MESSAGES, "add_generation_prompt": False}))["tokens"]
    answer = ok(post(every, EMBED, {"messages": MESSAGES}))
    assert [item["embedding"] for item in answer["data"]] == vectors(every, prompt)
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    several = ok(post(every, EMBED, {"messages": [MESSAGES, MESSAGES]}))["data"]
    assert [item["embedding"] for item in several] == vectors(every, [prompt, prompt])


def test_an_input_of_the_whole_context_is_taken_and_a_longer_one_truncated(every: RunningServer) -> None:
    assert ok(post(every, EMBED, {"input": [1] * 64}))["usage"]["prompt_tokens"] == 64
    for keep, used in ((-1, 64), (5, 5), (64, 64)):
        asked = {"input": [list(range(100)), [7]], "truncate_prompt_tokens": keep}
        assert ok(post(every, EMBED, asked))["usage"]["prompt_tokens"] == used + 1
    (begin,) = vectors(every, list(range(100)), truncate_prompt_tokens=3)
    (end,) = vectors(every, list(range(100)), truncate_prompt_tokens=3, truncation_side="left")
    assert [begin, end] == vectors(every, [[0, 1, 2], [97, 98, 99]])


@pytest.mark.parametrize(
    ("dtype", "size"), [("float32", 4), ("float16", 2), ("bfloat16", 2), ("fp8_e4m3", 1), ("fp8_e5m2", 1)]
)
def test_bytes_come_with_their_description_or_alone(every: RunningServer, dtype: str, size: int) -> None:
    asked = {"input": ["hello", "world"], "embed_dtype": dtype, "endianness": "big"}
    got = post(every, EMBED, {**asked, "encoding_format": "bytes"})
    alone = post(every, EMBED, {**asked, "encoding_format": "bytes_only"})
    assert got.headers["Content-Type"] == alone.headers["Content-Type"] == "application/octet-stream"
    assert got.content == alone.content and "metadata" not in alone.headers
    told = json.loads(got.headers["metadata"])
    tokens = sum(len(token_ids(every, text)) for text in asked["input"])
    assert list(told) == ["id", "created", "model", "data", "usage"]
    assert told["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    width = DIMENSIONS * size
    assert told["data"] == [
        {
            "index": index,
            "embed_dtype": dtype,
            "endianness": "big",
            "start": index * width,
            "end": (index + 1) * width,
            "shape": [DIMENSIONS],
        }
        for index in (0, 1)
    ]
    in_json = ok(post(every, EMBED, {**asked, "encoding_format": "base64"}))["data"]
    assert got.content == b"".join(base64.b64decode(item["embedding"]) for item in in_json)


def test_ten_thousand_texts_are_embedded_in_order_while_others_are_served(every: RunningServer) -> None:
    texts = [f"text number {number % 700}" for number in range(10_000)]
    with Wire(every.port) as wire:
        wire.post({"input": texts, "dimensions": 256}, EMBED)
        assert get(every.port, "/health").status == 200
        items = wire.answer().json()["data"]
    assert [item["index"] for item in items] == list(range(10_000))
    found = [item["embedding"] for item in items]
    assert found[:700] == found[700:1400] == vectors(every, texts[:700], dimensions=256)


def test_a_client_that_leaves_a_large_answer_hurts_nobody(every: RunningServer) -> None:
    for _ in range(3):
        with Wire(every.port) as wire:
            wire.post({"input": ["a"] * 60, "dimensions": 65_536}, EMBED)
            assert wire.sock.recv(100)
            wire.reset()
    assert len(vectors(every, "a")) == 1
