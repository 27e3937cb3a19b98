"""The rules that need to know the model."""

import json
import math
from typing import Any

import pytest

from app.http.errors import ApiError
from app.protocol.chat import ChatCompletionRequest
from app.protocol.completions import CompletionRequest
from app.protocol.decoding import decode
from app.protocol.validation.limits import (
    GenerateRequest,
    check_lengths,
    check_prompt_length,
    check_prompt_text,
    check_sampling,
    requested_max_tokens,
    resolve_max_tokens,
    truncate_prompt,
)
from app.protocol.validation.model import ModelLimits, check_engine, wanted_logprobs, wanted_prompt_logprobs

CONTEXT = 2048
LIMITS = ModelLimits(max_model_len=CONTEXT, vocab_size=4096)


def chat(**fields: Any) -> ChatCompletionRequest:
    body = {"messages": [{"role": "user", "content": "hi"}], **fields}
    return decode(json.dumps(body).encode(), "application/json", ChatCompletionRequest)


def completion(**fields: Any) -> CompletionRequest:
    return decode(json.dumps({"prompt": "hi", **fields}).encode(), "application/json", CompletionRequest)


def check(request: GenerateRequest, prompt_tokens: int = 16) -> None:
    """Everything in the order in which a server does it."""
    check_lengths(request, CONTEXT)
    check_prompt_length(prompt_tokens, CONTEXT)
    check_sampling(request, resolve_max_tokens(requested_max_tokens(request)[0], prompt_tokens, CONTEXT))
    check_engine(request, [1] * prompt_tokens, LIMITS)


def refusal(request: GenerateRequest, prompt_tokens: int = 16) -> str | None:
    with pytest.raises(ApiError) as caught:
        check(request, prompt_tokens)
    assert (caught.value.status, caught.value.type) == (400, "BadRequestError")
    return caught.value.param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 2}, "top_p"),
        ({"top_k": -2}, None),
        ({"min_p": 2}, None),
        ({"min_p": math.nan}, None),
        ({"presence_penalty": 3}, None),
        ({"frequency_penalty": -3}, None),
        ({"repetition_penalty": 0}, None),
        ({"repetition_penalty": math.inf}, None),
        ({"n": 0}, None),
        ({"n": -1}, None),
        ({"n": 100_000}, None),
        ({"n": 2, "temperature": 0}, None),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_completion_tokens": 0, "max_tokens": 5}, "max_tokens"),
        ({"max_tokens": 5000}, "max_tokens"),
        ({"max_completion_tokens": 5000, "max_tokens": 1}, "max_completion_tokens"),
        ({"truncate_prompt_tokens": 5000}, "truncate_prompt_tokens"),
        ({"min_tokens": -1}, None),
        ({"min_tokens": 5, "max_tokens": 3}, None),
        ({"stop": ""}, None),
        ({"stop": ["a", ""]}, None),
        ({"bad_words": [""]}, None),
        ({"bad_words": [str(i) for i in range(129)]}, "bad_words"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"4096": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"stop_token_ids": [4096]}, "stop_token_ids"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids"),
        ({"logprobs": True, "top_logprobs": 21}, "logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"logprobs": True, "logprob_token_ids": [9999]}, "logprob_token_ids"),
        ({"logprobs": True, "logprob_token_ids": [1] * 129}, "logprob_token_ids"),
        ({"vllm_xargs": {"a": 2**64}}, "extra_args"),
        ({"kv_transfer_params": {"a": [{"b": -(2**63) - 1}]}}, "extra_args"),
        ({"thinking_token_budget": 5}, None),
        ({"structured_outputs": {"choice": []}}, None),
        ({"structured_outputs": {"json_object": False}}, None),
        ({"structured_outputs": {"grammar": " "}}, None),
        ({"structured_outputs": {"regex": "\0"}}, None),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, None),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, None),
        ({"routed_experts_prompt_start": 17}, "routed_experts_prompt_start"),
    ],
)
def test_what_no_model_does_is_refused(fields: dict[str, Any], param: str | None) -> None:
    assert refusal(chat(**fields)) == param


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0, "top_p": 1, "top_k": -1, "min_p": 1},
        {"temperature": 2, "n": 16384},
        {"seed": -1, "min_tokens": 3, "max_tokens": 3},
        {"max_tokens": CONTEXT},
        {"logprobs": True, "top_logprobs": 20},
        {"prompt_logprobs": 20},
        {"logit_bias": {"0": 1000, "4095": -1000}},
        {"vllm_xargs": {"a": 2**64 - 1}},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}},
        {"use_beam_search": True, "n": 3},
        {"repetition_detection": {"max_pattern_size": 3, "min_count": 2}},
    ],
)
def test_what_the_model_can_do_is_accepted(fields: dict[str, Any]) -> None:
    check(chat(**fields))


def test_the_rules_are_looked_at_in_vllms_order() -> None:
    assert refusal(chat(n=0, temperature=-1)) is None
    assert refusal(chat(presence_penalty=5, temperature=-1)) is None
    assert refusal(chat(temperature=-1, top_p=5)) == "temperature"
    assert refusal(chat(max_tokens=5000, temperature=-1)) == "max_tokens"
    assert refusal(chat(logit_bias={"x": 1}, n=0)) == "logit_bias"


@pytest.mark.parametrize(
    ("requested", "prompt_tokens", "allowed"), [(None, 48, 2000), (5, 48, 5), (2048, 48, 2000), (1, 2048, 0)]
)
def test_output_is_limited_to_what_fits_behind_the_prompt(
    requested: int | None, prompt_tokens: int, allowed: int
) -> None:
    assert resolve_max_tokens(requested, prompt_tokens, CONTEXT) == allowed


def test_the_models_own_limit_counts_when_the_client_names_none() -> None:
    assert resolve_max_tokens(None, 48, CONTEXT, default=100) == 100
    assert resolve_max_tokens(7, 48, CONTEXT, default=100) == 7


def test_a_prompt_that_fills_the_context_leaves_no_token() -> None:
    assert refusal(chat(), prompt_tokens=CONTEXT) == "max_tokens"


def test_a_prompt_longer_than_the_context_is_named_by_its_tokens_or_its_text() -> None:
    assert refusal(chat(), prompt_tokens=CONTEXT + 1) == "input_tokens"
    with pytest.raises(ApiError) as caught:
        check_prompt_text("x" * (CONTEXT * 10 + 1), CONTEXT, max_chars_per_token=10)
    assert caught.value.param == "input_text"
    check_prompt_text("x" * (CONTEXT * 10), CONTEXT, max_chars_per_token=10)


def test_an_empty_prompt_and_foreign_token_ids_are_refused_without_a_param() -> None:
    for prompt in ([], [4096], [-1]):
        with pytest.raises(ApiError) as caught:
            check_engine(completion(), prompt, LIMITS)
        assert (caught.value.status, caught.value.param) == (400, None)


def test_echo_alone_needs_no_output() -> None:
    check(completion(echo=True, max_tokens=0))
    assert refusal(completion(max_tokens=0)) == "max_tokens"


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, [0, 1, 2, 3]),
        ({"truncate_prompt_tokens": 2}, [0, 1]),
        ({"truncate_prompt_tokens": 2, "truncation_side": "right"}, [0, 1]),
        ({"truncate_prompt_tokens": 2, "truncation_side": "left"}, [2, 3]),
        ({"truncate_prompt_tokens": 0, "truncation_side": "left"}, []),
        ({"truncate_prompt_tokens": 9}, [0, 1, 2, 3]),
        ({"truncate_prompt_tokens": -1}, [0, 1, 2]),
        ({"truncate_prompt_tokens": -1, "max_tokens": 1}, [0, 1]),
    ],
)
def test_a_prompt_is_truncated_at_the_side_that_was_asked_for(
    fields: dict[str, Any], kept: list[int]
) -> None:
    assert (
        truncate_prompt([0, 1, 2, 3], chat(**fields), max_model_len=3 if "-1" in str(fields) else 10) == kept
    )


def test_all_log_probabilities_are_as_many_as_the_vocabulary() -> None:
    everything = ModelLimits(max_model_len=CONTEXT, vocab_size=4096, max_logprobs=-1)
    check_engine(chat(logprobs=True, top_logprobs=-1), [1], everything)


def test_echo_asks_for_log_probabilities_of_the_prompt() -> None:
    assert wanted_prompt_logprobs(completion(echo=True, logprobs=2)) == 2
    assert wanted_prompt_logprobs(completion(logprobs=2)) is None
    assert wanted_prompt_logprobs(chat(echo=True)) == 0
    assert wanted_prompt_logprobs(chat(echo=True, prompt_logprobs=3)) == 3


def test_chat_needs_the_switch_and_completions_only_the_number() -> None:
    assert wanted_logprobs(chat()) is None
    assert wanted_logprobs(chat(logprobs=True)) == 0
    assert wanted_logprobs(chat(logprobs=True, top_logprobs=4)) == 4
    assert wanted_logprobs(completion(logprobs=3)) == 3
    assert wanted_logprobs(completion(logprobs=3, logprob_token_ids=[1])) is None


def test_a_schema_may_nest_64_levels() -> None:
    schema: dict[str, Any] = {}
    for _ in range(63):
        schema = {"a": schema}
    check(chat(structured_outputs={"json": schema}))
    assert refusal(chat(structured_outputs={"json": {"a": schema}})) is None
