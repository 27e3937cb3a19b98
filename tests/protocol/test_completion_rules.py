"""Parse-time rules of text completions, and the forms of a prompt."""

import json
from typing import Any

import pytest

from app.serving.protocol.completions import MAX_PROMPTS, CompletionRequest
from app.serving.protocol.decoding import decode
from tests.protocol.refused import refused


def completion(**fields: Any) -> CompletionRequest:
    return decode(json.dumps({"prompt": "hi", **fields}).encode(), "application/json", CompletionRequest)


def refusal(**fields: Any) -> tuple[int, str, str | None]:
    return refused(lambda: completion(**fields))


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("hi", ["hi"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        (["1", 2], [[1, 2]]),
        ([1] * (MAX_PROMPTS + 1), [[1] * (MAX_PROMPTS + 1)]),
    ],
)
def test_a_prompt_comes_in_four_forms(prompt: object, prompts: list[object]) -> None:
    assert completion(prompt=prompt).prompts() == prompts


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (5, "body.prompt"),
        ([1, "a"], "body.prompt.1"),
        (["a", 1], "body.prompt.0"),
        ([[1, -1]], "body.prompt.0"),
    ],
)
def test_forms_are_not_mixed(prompt: object, param: str) -> None:
    assert refusal(prompt=prompt) == (400, "Bad Request", param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": None, "prompt_embeds": []}, "prompt"),
        ({"prompt": ["a"] * (MAX_PROMPTS + 1)}, "prompt"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"logprob_token_ids": [1], "logprobs": 1, "echo": True, "max_tokens": 0}, "logprob_token_ids"),
        ({"use_beam_search": True, "echo": True, "logprobs": 1}, "echo"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
    ],
)
def test_a_broken_rule_names_the_bare_field(fields: dict[str, Any], param: str) -> None:
    assert refusal(**fields) == (400, "BadRequestError", param)
