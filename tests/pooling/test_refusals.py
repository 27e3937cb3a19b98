"""What the pooling routes refuse: status, type and param as vLLM 0.32 has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.pooling.calls import BASE, CLASSIFY, EMBED, MESSAGES, POOL, RERANK, SCORE, client_of, refused

LONG = "a " * 65

RULES: list[tuple[str, dict[str, Any], str | None]] = [
    (EMBED, {"input": ""}, None),
    (EMBED, {"input": [-1]}, None),
    (EMBED, {"input": ["a", LONG]}, "input_tokens"),
    (EMBED, {"input": "a" * 100_000}, "input_text"),
    (EMBED, {"dimensions": 0}, None),
    (EMBED, {"input": ["a"] * 65, "dimensions": 65_536}, None),
    (EMBED, {"input": ["a"] * 65_537}, "input"),
    (EMBED, {"messages": MESSAGES, "chat_template": "x"}, None),
    (EMBED, {"media_io_kwargs": {"image": {}}}, "media_io_kwargs"),
    (POOL, {"dimensions": 5}, "dimensions"),
    (POOL, {"input": None, "data": {"image": 1}}, "task"),
    (CLASSIFY, {"input": LONG}, "input_tokens"),
    (SCORE, {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, None),
    (SCORE, {"text_2": {"content": [{"type": "text", "text": "a"}]}}, None),
    (SCORE, {"text_2": LONG}, "input_tokens"),
    (SCORE, {"max_tokens_per_query": 64}, None),
    (RERANK, {"documents": []}, None),
    (RERANK, {"documents": ["a"] * 65_537}, "documents"),
    (RERANK, {"query": LONG}, "input_tokens"),
    *((path, {"truncate_prompt_tokens": count}, None) for path in BASE for count in (0, 65)),
    *((path, {"mm_processor_kwargs": {"a": 1}}, "mm_processor_kwargs") for path in BASE),
    *((path, {"cache_salt": "a@b"}, "cache_salt") for path in BASE),
]


@pytest.mark.parametrize(("path", "asked", "param"), RULES)
def test_a_broken_rule_is_a_bad_request_error(path: str, asked: dict[str, Any], param: str | None) -> None:
    told = refused(path, {**BASE[path], **asked}, "--task=pooling")
    assert told == (400, "BadRequestError", param)


def test_a_cross_encoder_needs_room_for_both_texts() -> None:
    asked = {"text_1": "a " * 40, "text_2": "a " * 40}
    assert client_of("--task=pooling").post(SCORE, json=asked).status_code == 200
    assert refused(SCORE, asked, "--task=score") == (400, "BadRequestError", "input_tokens")


@pytest.mark.parametrize("path", BASE)
def test_an_unknown_model_is_not_found(path: str) -> None:
    asked = {**BASE[path], "model": "nope"}
    assert refused(path, asked, "--task=pooling") == (404, "NotFoundError", None)


@pytest.mark.parametrize(
    ("config", "status"),
    [
        ("{}", 200),
        ('{"hidden_size": 8}', 400),
        ('{"is_matryoshka": true}', 200),
        ('{"matryoshka_dimensions": [4]}', 200),
    ],
)
def test_a_plain_model_has_vectors_of_one_length(tmp_path: Path, config: str, status: int) -> None:
    (tmp_path / "config.json").write_text(config)
    client = client_of("--task=embed", f"--model={tmp_path}", "--force-dummy-tokenizer")
    assert client.post(EMBED, json={**BASE[EMBED], "dimensions": 4}).status_code == status
    assert client.post(EMBED, json=BASE[EMBED]).status_code == 200
