"""POST /v2/embed: Cohere's form of embeddings."""

from __future__ import annotations

import json
import struct
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from app.serving.api.pooling import task_instructions
from tests.pooling.calls import COHERE, client_of, refused

BAD, RULE = "Bad Request", "BadRequestError"
FLAGS = ("--task=embed", "--force-dummy-tokenizer")


def embedded(*flags: str, **asked: object) -> Any:
    told = client_of(*FLAGS, *flags).post(COHERE, json=asked)
    assert told.status_code == 200, told.text
    return told.get_json()


def test_every_form_is_of_the_same_vector() -> None:
    kinds = ["float", "base64", "binary", "ubinary"]
    told = embedded(texts=["hello", "world"], embedding_types=kinds)
    assert list(told) == ["id", "embeddings", "texts", "meta", "response_type"]
    assert told["texts"] == ["hello", "world"] and told["response_type"] == "embeddings_by_type"
    usual = client_of(*FLAGS).post("/v1/embeddings", json={"input": ["hello", "world"]}).get_json()
    for index, item in enumerate(usual["data"]):
        vector = item["embedding"]
        assert told["embeddings"]["float"][index] == vector
        assert list(struct.unpack("<16f", b64decode(told["embeddings"]["base64"][index]))) == vector
        signs = "".join("1" if number >= 0 else "0" for number in vector)
        packed = [int(signs[:8], 2), int(signs[8:], 2)]
        assert told["embeddings"]["ubinary"][index] == packed
        assert told["embeddings"]["binary"][index] == [byte - 128 for byte in packed]
    units = {"input_tokens": usual["usage"]["prompt_tokens"], "image_tokens": 0}
    assert told["meta"] == {"api_version": {"version": "2"}, "billed_units": units}


def test_mixed_inputs_are_conversations() -> None:
    mixed = {"content": [{"type": "text", "text": "hello"}]}
    told = embedded(inputs=[mixed], output_dimension=8)
    assert "texts" not in told and list(told["embeddings"]) == ["float"]
    assert len(told["embeddings"]["float"][0]) == 8


@pytest.mark.parametrize(("truncate", "same"), [("END", "a b"), ("START", "c d")])
def test_a_long_text_is_cut(truncate: str, same: str) -> None:
    most = embedded(texts=[same])["meta"]["billed_units"]["input_tokens"]
    told = embedded(texts=["a b c d"], truncate=truncate, max_tokens=most)
    assert told["meta"]["billed_units"]["input_tokens"] == most
    assert embedded(texts=["word " * 100])["meta"]["billed_units"]["input_tokens"] == 64


def test_input_types_are_those_of_the_model(tmp_path: Path) -> None:
    prompts = {"prompts": {"search_query": "Find: ", "none": ""}}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    assert task_instructions(tmp_path) == prompts["prompts"]
    assert task_instructions(tmp_path / "missing") is None
    own = f"--model={tmp_path}"
    plain = embedded(own, texts=["cat"])["meta"]["billed_units"]["input_tokens"]
    assert embedded(own, texts=["cat"], input_type="none")["meta"]["billed_units"]["input_tokens"] == plain
    longer = embedded(own, texts=["cat"], input_type="search_query")["meta"]["billed_units"]
    assert longer["input_tokens"] > plain
    assert (
        client_of(*FLAGS, own).post(COHERE, json={"texts": ["cat"], "input_type": "other"}).status_code == 400
    )
    assert embedded(texts=["cat"], input_type="search_document")["texts"] == ["cat"]


@pytest.mark.parametrize(
    ("body", "kind", "param"),
    [
        ({}, BAD, "body"),
        ({"texts": ["a"], "images": ["data:"]}, BAD, "body"),
        ({"texts": ["a"], "truncate": "MIDDLE"}, BAD, "body.truncate"),
        ({"inputs": [{"content": [{"type": "text"}]}]}, BAD, "body.inputs.0.content.0"),
        ({"texts": ["a b c d"], "truncate": "NONE", "max_tokens": 1}, RULE, None),
        ({"texts": ["a"], "output_dimension": 9, "embedding_types": ["binary"]}, RULE, None),
    ],
)
def test_refusals(body: object, kind: str, param: str | None) -> None:
    assert refused(COHERE, body, *FLAGS) == (400, kind, param)
    assert refused(COHERE, {"texts": ["a"], "model": "other"}, *FLAGS)[0] == 404
