"""What the pooling routes refuse over HTTP: status, type and param as vLLM 0.32 has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.wiring.factory import create_app
from config.settings import ModelSettings, Settings, TokenizerSettings
from tests.conformance.calls import MESSAGES, error_of, post
from tests.pooling.calls import BASE, CLASSIFY, EMBED, POOL, RERANK, SCORE
from tests.running_server import RunningServer

LONG = "a " * 65

RULES: list[tuple[str, dict[str, Any], str | None]] = [
    (EMBED, {"input": ""}, None),
    (EMBED, {"input": []}, None),
    (EMBED, {"input": [[]]}, None),
    (EMBED, {"input": ["a", ""]}, None),
    (EMBED, {"input": [-1]}, None),
    (EMBED, {"input": [[1], [10**6]]}, None),
    (EMBED, {"input": [2**64]}, None),
    (EMBED, {"input": LONG}, "input_tokens"),
    (EMBED, {"input": ["a", LONG]}, "input_tokens"),
    (EMBED, {"input": [1] * 65}, "input_tokens"),
    (EMBED, {"input": "a" * 100_000}, "input_text"),
    (EMBED, {"dimensions": 0}, None),
    (EMBED, {"dimensions": -1}, None),
    (EMBED, {"dimensions": 65_537}, None),
    (EMBED, {"dimensions": 10**30}, None),
    (EMBED, {"input": ["a"] * 257, "dimensions": 65_536}, None),
    (EMBED, {"input": ["a"] * 65_537}, "input"),
    (EMBED, {"messages": []}, None),
    (EMBED, {"messages": MESSAGES, "chat_template": "x"}, None),
    (EMBED, {"messages": MESSAGES, "chat_template_kwargs": {"chat_template": "x"}}, None),
    (EMBED, {"messages": [{"role": "user", "content": LONG}]}, "input_tokens"),
    (EMBED, {"media_io_kwargs": {"image": {}}}, "media_io_kwargs"),
    (POOL, {"dimensions": 5}, "dimensions"),
    (POOL, {"task": "plugin"}, "task"),
    (POOL, {"input": None, "data": {"image": 1}}, "task"),
    (POOL, {"task": "score"}, "task"),
    (CLASSIFY, {"input": ""}, None),
    (CLASSIFY, {"input": LONG}, "input_tokens"),
    (CLASSIFY, {"normalize": True}, "normalize"),
    (SCORE, {"text_1": []}, None),
    (SCORE, {"text_2": []}, None),
    (SCORE, {"text_1": ["a", "b"]}, None),
    (SCORE, {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, None),
    *((SCORE, {name: ""}, None) for name in ("text_1", "text_2")),
    (RERANK, {"documents": ["a", ""]}, None),
    (RERANK, {"query": ""}, None),
    (SCORE, {"text_2": {"content": [{"type": "text", "text": "a"}]}}, None),
    (SCORE, {"text_2": LONG}, "input_tokens"),
    (SCORE, {"max_tokens_per_doc": -1}, None),
    (SCORE, {"max_tokens_per_query": 64}, None),
    (RERANK, {"documents": []}, None),
    (RERANK, {"documents": ["a", {"content": []}]}, None),
    (RERANK, {"documents": ["a"] * 65_537}, "documents"),
    (RERANK, {"query": LONG}, "input_tokens"),
    *((path, {"truncate_prompt_tokens": 65}, None) for path in BASE),
    *((path, {"truncate_prompt_tokens": 0}, None) for path in BASE),
    *((path, {"mm_processor_kwargs": {"a": 1}}, "mm_processor_kwargs") for path in BASE),
    *((path, {"cache_salt": "a@b"}, "cache_salt") for path in BASE),
]


@pytest.mark.parametrize(("path", "asked", "param"), RULES)
def test_a_broken_rule_is_a_bad_request_error(
    every: RunningServer, path: str, asked: dict[str, Any], param: str | None
) -> None:
    assert error_of(post(every, path, {**BASE[path], **asked})) == (400, "BadRequestError", param)


def test_a_cross_encoder_needs_room_for_both_texts(every: RunningServer, cross: RunningServer) -> None:
    asked = {"text_1": "a " * 40, "text_2": "a " * 40}
    assert post(every, SCORE, asked).status_code == 200
    assert error_of(post(cross, SCORE, asked)) == (400, "BadRequestError", "input_tokens")


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"messages": MESSAGES, "user": 5}, "body.input"),
        ({"messages": MESSAGES, "dimensions": "x"}, "body.dimensions"),
        ({"input": "a", "user": 5}, "body.user"),
    ],
)
def test_a_conversation_that_does_not_fit_lacks_an_input(
    every: RunningServer, asked: dict[str, Any], param: str
) -> None:
    assert error_of(post(every, EMBED, asked)) == (400, "Bad Request", param)


@pytest.mark.parametrize("path", BASE)
def test_an_unknown_model_is_not_found(every: RunningServer, path: str) -> None:
    assert error_of(post(every, path, {**BASE[path], "model": "nope"})) == (404, "NotFoundError", None)


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
    settings = Settings(
        model=ModelSettings(task="embed", model=str(tmp_path)),
        tokenizer=TokenizerSettings(force_dummy_tokenizer=True),
    )
    client = create_app(settings).test_client()
    for asked, expected in (({"dimensions": 4}, status), ({}, 200)):
        told = client.post(EMBED, json={**BASE[EMBED], **asked})
        assert told.status_code == expected
        assert told.status_code == 200 or told.json["error"]["param"] is None  # type: ignore[index]
