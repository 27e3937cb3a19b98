"""The words and numbers of error messages by which clients recognize vLLM's errors."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from app.core.protocol.completions import CompletionRequest
from app.core.protocol.decoding import decode
from app.core.protocol.lax_conversion import MAX_INVALID_ITEMS
from app.core.protocol.validation import ModelLimits, RequestRules, ValidatedRequest, fit_prompt
from app.core.server.http.errors import MAX_SHOWN_CHARS, ApiError, bad_request
from tests.core.protocol.refused import JSON, chat, completion

LIMITS = ModelLimits(max_model_len=64, vocab_size=100)


def message(action: Callable[..., Any], *arguments: Any, **fields: Any) -> str:
    with pytest.raises(ApiError) as caught:
        action(*arguments, **fields)
    assert caught.value.status == 400
    return caught.value.message


def message_of(request: Any, prompt: list[int] | None = None) -> str:
    """The message of the error that a valid body leads to, with this prompt or with token 1."""
    ids = [1] if prompt is None else prompt

    def check() -> None:
        accepted = ValidatedRequest(request, "model", LIMITS)
        accepted.check_sampling([len(ids)])
        accepted.check_engine([ids])

    return message(check)


@pytest.mark.parametrize(
    ("tokens", "is_text", "words"),
    [
        (65, False, "at least 65"),
        (66, False, "66"),
        # vLLM stops tokenizing at the first token beyond the context.
        (66, True, "at least 65"),
    ],
)
def test_agents_can_parse_the_numbers_of_a_context_overflow_error(
    tokens: int, is_text: bool, words: str
) -> None:
    text = message(
        fit_prompt, completion(), [1] * tokens, 64, rules=RequestRules(), is_text=is_text
    )
    assert text.startswith(
        "This model's maximum context length is 64 tokens. However, your prompt contains "
        f"{words} input tokens"
    )
    value = re.findall(r"\d+", words)[0]
    assert text.endswith(f"length of the input prompt. (parameter=input_tokens, value={value})")


def test_error_for_a_prompt_that_fills_the_context_states_both_lengths() -> None:
    text = message(LIMITS.check_prompt, [1] * 64)
    assert "(length 64)" in text
    assert "longer than the maximum model length of 64" in text


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": 65}, "max_tokens=65 cannot be greater than max_model_len=64"),
        ({"max_tokens": 65}, "(parameter=max_tokens, value=65)"),
        ({"max_tokens": 0}, "must be at least 1, got 0. (parameter=max_tokens, value=0)"),
        ({"temperature": 3}, "must be in [0, 2], got 3.0. (parameter=temperature, value=3.0)"),
        ({"top_p": 0}, "must be in (0, 1], got 0.0. (parameter=top_p, value=0.0)"),
        ({"top_k": -2}, "got -2."),
        ({"truncate_prompt_tokens": 65}, "Please request a smaller truncation size"),
        ({"logprobs": True, "top_logprobs": 21}, "Requested sample logprobs of 21"),
        ({"prompt_logprobs": 21}, "greater than max allowed: 20"),
        ({"logit_bias": {"a": 1, "5": 1, "b": 1}}, "['a', 'b']"),
        (
            {"logit_bias": {"100": 1, "5": 1, "-1": 1}},
            "[100, -1] in logit_bias contain out-of-vocab",
        ),
        ({"logit_bias": {"100": 1}}, "Vocabulary size: 100"),
        (
            {"allowed_token_ids": [100, 5]},
            "contains out-of-vocab token id! (parameter=allowed_token_ids, value=[100])",
        ),
        ({"stop": ""}, "stop cannot contain an empty string"),
        ({"stop": "x", "bad_words": [""]}, "bad_words cannot contain an empty string"),
        ({"min_tokens": 9, "max_tokens": 8}, "less than or equal to max_tokens=8, got 9"),
    ],
)
def test_validation_error_of_each_field_is_worded_as_in_vllm(
    fields: dict[str, Any], words: str
) -> None:
    assert words in message_of(chat(**fields))


@pytest.mark.parametrize(("ids", "shown"), [([1, 100, 101], 101), ([-2, 100], -2)])
def test_error_for_an_out_of_vocabulary_token_names_the_token_id(
    ids: list[int], shown: int
) -> None:
    assert message_of(completion(), ids) == f"Token id {shown} is out of vocabulary"


@pytest.mark.parametrize(
    ("fields", "kind", "place"),
    [
        ({"seed": -(2**63) - 1}, "greater_than_equal", "body.seed"),
        ({"seed": 2**63}, "less_than_equal", "body.seed"),
        ({"reasoning_effort": "extreme"}, "literal_error", "body.reasoning_effort"),
        ({"max_tokens": "many"}, "int_parsing", "body.max_tokens"),
        ({"max_tokens": 1.5}, "int_from_float", "body.max_tokens"),
        ({"max_tokens": []}, "int_type", "body.max_tokens"),
        ({"temperature": "hot"}, "float_parsing", "body.temperature"),
        ({"temperature": []}, "float_type", "body.temperature"),
        ({"stream": "perhaps"}, "bool_parsing", "body.stream"),
        ({"user": 5}, "string_type", "body.user"),
        ({"stop_token_ids": "x"}, "list_type", "body.stop_token_ids"),
        ({"chat_template_kwargs": "x"}, "dict_type", "body.chat_template_kwargs"),
        ({"stream_options": "x", "stream": True}, "model_attributes_type", "body.stream_options"),
        ({"messages": "hi"}, "list_type", "body.messages"),
    ],
)
def test_field_error_has_the_error_type_of_pydantic(
    fields: dict[str, Any], kind: str, place: str
) -> None:
    text = message(chat, **fields)
    assert text.startswith(f"1 validation error:\n  {{'type': '{kind}', 'loc': '{place}'")


def test_missing_field_and_invalid_json_have_the_error_types_of_pydantic() -> None:
    assert "'missing', 'loc': 'body.messages'" in message(chat_of, b"{}")
    assert "'json_invalid', 'loc': 'body.1'" in message(chat_of, b"{x")


def chat_of(body: bytes) -> object:
    return decode(body, JSON, type(chat()))


def test_error_for_a_value_outside_a_fixed_set_lists_the_allowed_values() -> None:
    text = message(chat, reasoning_effort="extreme")
    assert "'none'" in text and "'max'" in text and "'input': 'extreme'" in text


def test_request_without_a_prompt_is_rejected() -> None:
    text = message(completion, prompt="")
    assert text == (
        "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)"
    )


def test_error_message_quotes_client_input_up_to_a_limit() -> None:
    keys = {"x" * 10_000: 1}
    body = json.dumps({"prompt": "hi", "logit_bias": keys}).encode()
    text = message_of(decode(body, JSON, CompletionRequest))
    assert len(text) < 3 * MAX_SHOWN_CHARS


def test_field_error_shows_a_large_value_by_its_size() -> None:
    values: list[tuple[Any, str]] = [
        ([1] * 100_000, "'<list of 100000 items>'"),
        ({"a": 1}, "'<dict of 1 items>'"),
        ("c" * 999, f"'{'c' * 200}...[truncated]'"),
    ]
    for value, shown in values:
        text = message(chat, reasoning_effort=value)
        assert f"'input': {shown}, 'ctx'" in text


@pytest.mark.parametrize(
    ("fields", "problems"),
    [
        (
            {"seed": 2**63},
            [
                "{'type': 'less_than_equal', 'loc': 'body.seed', 'msg': 'Input should be less than "
                "or equal to 9223372036854775807', 'input': '9223372036854775808', "
                "'ctx': {'le': 9223372036854775807}}"
            ],
        ),
        (
            {"temperature": "hot", "stream": "maybe", "documents": [5, {}, "x"]},
            [
                "{'type': 'bool_parsing', 'loc': 'body.stream', 'msg': 'Input should be a valid "
                "boolean, unable to interpret input', 'input': 'maybe'}",
                "{'type': 'float_parsing', 'loc': 'body.temperature', 'msg': 'Input should be a "
                "valid number, unable to parse string as a number', 'input': 'hot'}",
                "{'type': 'dict_type', 'loc': 'body.documents.0', 'msg': 'Input should be a valid "
                "dictionary', 'input': '5'}",
                "{'type': 'dict_type', 'loc': 'body.documents.2', 'msg': 'Input should be a valid "
                "dictionary', 'input': 'x'}",
            ],
        ),
        (
            {"stop_token_ids": ["a"] * 12},
            [
                f"{{'type': 'int_parsing', 'loc': 'body.stop_token_ids.{index}', 'msg': 'Input "
                "should be a valid integer, unable to parse string as an integer', 'input': 'a'}"
                for index in range(10)
            ]
            + ["...and 2 more errors"],
        ),
    ],
)
def test_error_lists_the_invalid_fields_as_vllm_does(
    fields: dict[str, Any], problems: list[str]
) -> None:
    count, *lines = message(chat, **fields).splitlines()
    expected_count = 12 if len(problems) > 10 else len(problems)
    label = "error" if expected_count == 1 else "errors"
    assert count == f"{expected_count} validation {label}:"
    assert sorted(lines) == sorted(f"  {problem}" for problem in problems)


def test_a_list_of_invalid_items_is_converted_up_to_a_limit() -> None:
    text = message(chat, stop_token_ids=["a"] * (MAX_INVALID_ITEMS + 5))
    assert text.startswith(f"{MAX_INVALID_ITEMS} validation errors:\n")
    assert text.endswith(f"  ...and {MAX_INVALID_ITEMS - 10} more errors")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "{'type': 'missing', 'loc': 'body', 'msg': 'Field required', 'input': 'None'}"),
        (
            b"{}",
            "{'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required', "
            "'input': '<dict of 0 items>'}",
        ),
        (
            b"{x",
            "{'type': 'json_invalid', 'loc': 'body.1', 'msg': 'JSON decode error', 'input': '<dict "
            "of 0 items>', 'ctx': {'error': 'Expecting property name enclosed in double quotes'}}",
        ),
    ],
)
def test_error_for_a_body_without_fields_has_the_words_of_vllm(body: bytes, problem: str) -> None:
    assert message(chat_of, body) == f"1 validation error:\n  {problem}"


def test_error_of_a_rule_ends_with_field_and_value_if_they_are_given() -> None:
    ends = [bad_request("m").message, bad_request("m", "f").message]
    assert ends == ["m", "m (parameter=f)"]
    assert bad_request("m", "f", 0).message == "m (parameter=f, value=0)"
    assert bad_request("m", "f").param == "f"
