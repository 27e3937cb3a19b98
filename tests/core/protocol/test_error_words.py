"""The words and numbers of error messages by which clients recognize vLLM's errors."""

import json
import re
from collections.abc import Callable
from typing import Any, Literal

import pytest

from app.core.protocol.coercion import ConversionError
from app.core.protocol.completions import CompletionRequest
from app.core.protocol.decoding import decode
from app.core.protocol.lax_conversion import converter_of
from app.core.protocol.validation import ModelLimits, ValidatedRequest, fit_prompt
from app.core.server.http.errors import MAX_SHOWN_CHARS, ApiError
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
    text = message(fit_prompt, completion(), [1] * tokens, 64, is_text=is_text)
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
        ({"allowed_token_ids": [100]}, "out-of-vocab token id"),
        ({"stop": ""}, "cannot contain an empty string"),
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
    assert "'none'" in text and "'max'" in text and "not 'extreme'" in text


def test_request_without_a_prompt_is_rejected() -> None:
    text = message(completion, prompt="")
    assert text == "Either prompt or prompt_embeds must be provided and non-empty."


def test_error_message_quotes_client_input_up_to_a_limit() -> None:
    keys = {"x" * 10_000: 1}
    body = json.dumps({"prompt": "hi", "logit_bias": keys}).encode()
    text = message_of(decode(body, JSON, CompletionRequest))
    assert len(text) < 3 * MAX_SHOWN_CHARS


def test_error_for_a_value_outside_a_fixed_set_shortens_a_large_value() -> None:
    class Large(list[object]):
        def __repr__(self) -> str:
            raise AssertionError

    convert = converter_of(Literal["a", "b"])
    for value, shown in ((Large(), "a list"), ({"a": Large()}, "an object"), ("c" * 999, "'ccc")):
        with pytest.raises(ConversionError, match=f"'a' or 'b', not {shown}") as caught:
            convert(value)
        assert len(str(caught.value)) < 300
