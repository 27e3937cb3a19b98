"""Embeddings of tokens, and of chunks of tokens, as vLLM 0.33 answers them; 0.32 has none."""

import math
from typing import Any

import pytest

from app.core.server.http.errors import ApiError
from app.extensions.pooling.late_chunking import late_chunking_metadata
from tests.extensions.pooling.calls import COHERE, DIMENSIONS, EMBED, MESSAGES, POOL, client_of

FLAGS = ("--task=embed", "--pooling-task=token_embed")
NEW_FLAGS = (*FLAGS, "--vllm-version=0.33")
TEXTS = ["passage: Berlin has museums. They display art.", "passage: 中文 😀 e\u0301", "   "]


def post(path: str, body: object, *flags: str) -> Any:
    return client_of(*flags).post(path, json=body)


def items(**fields: Any) -> list[dict[str, Any]]:
    answer = post(EMBED, fields, *NEW_FLAGS)
    assert answer.status_code == 200, answer.text
    data: list[dict[str, Any]] = answer.json["data"]
    return data


def message(**fields: Any) -> str:
    answer = post(EMBED, {"input": "a b", **fields}, *NEW_FLAGS)
    assert answer.status_code == 400, answer.text
    text: str = answer.json["error"]["message"]
    return text


def mean(rows: list[list[float]]) -> list[float]:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def unit(row: list[float]) -> list[float]:
    length = math.sqrt(sum(number * number for number in row))
    return [number / (length or 1) for number in row]


def test_embeddings_of_a_token_model_have_a_row_for_each_token() -> None:
    pooled = post(POOL, {"input": TEXTS}, *NEW_FLAGS).json
    answer = post(EMBED, {"input": TEXTS}, *NEW_FLAGS).json
    assert answer["id"].startswith("embd-")
    assert answer["usage"] == pooled["usage"]
    assert [item["embedding"] for item in answer["data"]] == [
        item["data"] for item in pooled["data"]
    ]
    assert all(list(item) == ["index", "object", "embedding"] for item in answer["data"])


@pytest.mark.parametrize("activation", [None, False])
@pytest.mark.parametrize("chunk_size", [1, 5, 2**63 - 1])
def test_chunk_has_the_mean_of_its_tokens_and_its_place_in_the_text(
    chunk_size: int, activation: bool | None
) -> None:
    tokens = items(input=TEXTS, use_activation=False)
    chunked = items(
        input=TEXTS, use_activation=activation, late_chunking_params={"chunk_size": chunk_size}
    )
    for text, token_item, item in zip(TEXTS, tokens, chunked, strict=True):
        rows = token_item["embedding"]
        metadata = item["late_chunking"]
        assert list(metadata) == ["chunk_size", "input_tokens", "chunks", "strategy"]
        assert metadata["strategy"] == "fixed_tokens"
        assert (metadata["chunk_size"], metadata["input_tokens"]) == (chunk_size, len(rows))
        chunks = metadata["chunks"]
        assert [chunk["token_range"] for chunk in chunks] == [
            [start, min(start + chunk_size, len(rows))] for start in range(0, len(rows), chunk_size)
        ]
        covered = set()
        for chunk, vector in zip(chunks, item["embedding"], strict=True):
            start, end = chunk["token_range"]
            expected = mean(rows[start:end])
            if activation is None:
                expected = unit(expected)
            assert vector == pytest.approx(expected, abs=1e-5)
            assert len(vector) == DIMENSIONS
            covered.update(range(*chunk["char_range"]))
        assert covered == set(range(len(text)))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"input": ""}, "Late chunking requires nonempty plain-text input"),
        ({"input": [1, 2]}, "Late chunking requires nonempty plain-text input"),
        ({"truncate_prompt_tokens": 4}, "Late chunking does not support input padding"),
        ({"padding": "max_length"}, "Late chunking does not support input padding"),
        ({"input": "a " * 65}, "maximum context length"),
    ],
)
def test_late_chunking_refuses_what_has_no_place_in_a_text(
    fields: dict[str, Any], words: str
) -> None:
    assert words in message(late_chunking_params={"chunk_size": 5}, **fields)


@pytest.mark.parametrize("size", [0, -1, 2**63, 2**64, "5", 5.0, True, None])
def test_size_of_chunks_is_a_positive_64_bit_integer(size: object) -> None:
    assert "chunk_size" in message(late_chunking_params={"chunk_size": size})


@pytest.mark.parametrize("params", [{}, {"chunk_size": 3, "strategy": "x"}, 5, [3]])
def test_parameters_of_late_chunking_have_only_the_size(params: object) -> None:
    assert "late_chunking_params" in message(late_chunking_params=params)


@pytest.mark.parametrize(
    "fields", [{"dimensions": 4}, {"encoding_format": "base64"}, {"input": None}, {"normalize": 1}]
)
def test_token_embeddings_are_whole_lists_of_numbers(fields: dict[str, Any]) -> None:
    assert next(iter(fields)) in message(**fields)


def test_token_embeddings_have_no_conversations() -> None:
    answer = post(EMBED, {"messages": MESSAGES}, *NEW_FLAGS)
    assert answer.status_code == 400
    assert answer.json["error"]["param"] == "body.input"


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        (None, "fast tokenizer"),
        ([(0, 1)], "fast tokenizer"),
        ([(0, 4), (0, 0)], "not aligned"),
        ([(-1, 1), (0, 0)], "not aligned"),
        ([(2, 3), (0, 1)], "order"),
    ],
)
def test_unusable_places_of_tokens_are_refused(
    offsets: list[tuple[int, int]] | None, words: str
) -> None:
    with pytest.raises(ApiError, match=words):
        late_chunking_metadata("abc", 2, offsets, 2)


def test_chunk_of_special_tokens_has_no_place_in_the_text() -> None:
    metadata = late_chunking_metadata("abc", 3, [(0, 0), (0, 3), (0, 0)], 1)
    assert [chunk.char_range for chunk in metadata.chunks] == [None, (0, 3), None]


def test_older_version_has_no_embeddings_of_a_token_model() -> None:
    for path, body in ((EMBED, {"input": "a"}), (COHERE, {"texts": ["a"]})):
        answer = post(path, body, *FLAGS, "--vllm-version=0.32")
        assert answer.status_code == 501
        assert answer.json["error"]["message"] == "The model does not support Embeddings API"
    assert post(EMBED, {"input": 5}, *FLAGS, "--vllm-version=0.32").status_code == 400
    assert post(COHERE, {"texts": ["a"]}, *NEW_FLAGS).status_code == 404
