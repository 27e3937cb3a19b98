"""Rules that know the model: the last that is allowed, the first that is not, what follows from fields."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from app.serving.http.errors import ApiError
from app.serving.protocol.chat import ChatCompletionRequest
from app.serving.protocol.completions import CompletionRequest
from app.serving.protocol.decoding import decode
from app.serving.protocol.generate import GenerateRequest
from app.serving.protocol.messages import check_tool_calls, normalize_messages
from app.serving.protocol.validation import (
    GenerationRequest,
    ModelLimits,
    ValidatedRequest,
    check_prompt_text,
    fit_prompt,
    resolve_max_tokens,
)
from tests.protocol.refused import refused

CONTEXT = 2048
LIMITS = ModelLimits(max_model_len=CONTEXT, vocab_size=4096)


def chat(**fields: Any) -> ChatCompletionRequest:
    body = {"messages": [{"role": "user", "content": "hi"}], **fields}
    return decode(json.dumps(body).encode(), "application/json", ChatCompletionRequest)


def completion(**fields: Any) -> CompletionRequest:
    return decode(json.dumps({"prompt": "hi", **fields}).encode(), "application/json", CompletionRequest)


def accepted(request: GenerationRequest, limits: ModelLimits = LIMITS) -> ValidatedRequest[GenerationRequest]:
    return ValidatedRequest(request, "model", limits)


def check(request: GenerationRequest, *prompts: int) -> ValidatedRequest[GenerationRequest]:
    """Everything in the order in which a server does it, for prompts of so many tokens (one of 16)."""
    ids = [fit_prompt(request, [1] * tokens, CONTEXT) for tokens in prompts or (16,)]
    asked = accepted(request)
    asked.check_sampling([len(prompt) for prompt in ids])
    asked.check_engine(ids)
    return asked


def refusal(request: GenerationRequest, *prompts: int) -> str | None:
    status, kind, param = refused(lambda: check(request, *prompts))
    assert (status, kind) == (400, "BadRequestError")
    return param


def test_a_key_that_is_no_token_is_shown_up_to_its_fortieth_character() -> None:
    with pytest.raises(ApiError) as caught:
        check(chat(logit_bias={"x" * 50: 1}))
    assert caught.value.message.endswith(f"got {'x' * 40!r}")


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"properties": value}
    return value


IDS = {"logprobs": True}
WORDS = [str(number) for number in range(129)]
FORM = {"response_format": {"type": "json_object"}}
NAMED_FORM = {"type": "json_schema", "json_schema": {"name": "a"}}
BORDERS: list[tuple[dict[str, Any], dict[str, Any], str | None]] = [
    ({"n": 16384}, {"n": 16385}, None),
    ({"n": 1}, {"n": 0}, None),
    ({"n": 2, "temperature": 1e-5}, {"n": 2, "temperature": 0.9e-5}, None),
    ({"temperature": 0}, {"temperature": -1e-9}, "temperature"),
    ({"temperature": 2}, {"temperature": 2.0001}, "temperature"),
    ({}, {"temperature": math.nan}, "temperature"),
    ({}, {"temperature": math.inf}, "temperature"),
    ({"top_p": 1e-9}, {"top_p": 0}, "top_p"),
    ({"top_p": 1}, {"top_p": 1.0001}, "top_p"),
    ({"top_k": -1}, {"top_k": -2}, None),
    ({"min_p": 0}, {"min_p": -0.0001}, None),
    ({"min_p": 1}, {"min_p": 1.0001}, None),
    ({}, {"min_p": math.nan}, None),
    ({"presence_penalty": -2}, {"presence_penalty": -2.0001}, None),
    ({"presence_penalty": 2}, {"presence_penalty": 2.0001}, None),
    ({"frequency_penalty": -2}, {"frequency_penalty": -2.0001}, None),
    ({"frequency_penalty": 2}, {"frequency_penalty": 2.0001}, None),
    ({"repetition_penalty": 1e-9}, {"repetition_penalty": 0}, None),
    ({}, {"repetition_penalty": math.inf}, None),
    ({"max_tokens": 1}, {"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": CONTEXT}, {"max_tokens": CONTEXT + 1}, "max_tokens"),
    ({}, {"max_completion_tokens": 0, "max_tokens": 5}, "max_tokens"),
    ({}, {"max_completion_tokens": 5000, "max_tokens": 1}, "max_completion_tokens"),
    ({"min_tokens": 0}, {"min_tokens": -1}, None),
    ({"min_tokens": 3, "max_tokens": 3}, {"min_tokens": 4, "max_tokens": 3}, None),
    ({"stop": ["a"] * 4}, {"stop": ["a", ""]}, None),
    ({}, {"stop": ""}, None),
    ({"bad_words": WORDS[:128] * 2}, {"bad_words": WORDS}, "bad_words"),
    ({}, {"bad_words": [""]}, None),
    ({"logit_bias": {"0": 1000, "4095": -1000}}, {"logit_bias": {"4096": 1}}, "logit_bias"),
    ({}, {"logit_bias": {"x": 1}}, "logit_bias"),
    ({}, {"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"stop_token_ids": [0, 4095]}, {"stop_token_ids": [4096]}, "stop_token_ids"),
    ({"allowed_token_ids": [0]}, {"allowed_token_ids": [-1]}, "allowed_token_ids"),
    ({}, {"allowed_token_ids": []}, "allowed_token_ids"),
    ({"logprobs": True, "top_logprobs": 20}, {"logprobs": True, "top_logprobs": 21}, "logprobs"),
    ({}, {"logprobs": True, "top_logprobs": -1}, "logprobs"),
    ({"prompt_logprobs": 20}, {"prompt_logprobs": 21}, "prompt_logprobs"),
    ({}, {"prompt_logprobs": -1}, "prompt_logprobs"),
    ({**IDS, "logprob_token_ids": [1] * 128}, {**IDS, "logprob_token_ids": [1] * 129}, "logprob_token_ids"),
    ({}, {**IDS, "logprob_token_ids": [9999]}, "logprob_token_ids"),
    ({"vllm_xargs": {"a": 2**64 - 1}}, {"vllm_xargs": {"a": 2**64}}, "extra_args"),
    ({"vllm_xargs": {"a": -(2**63)}}, {"vllm_xargs": {"a": -(2**63) - 1}}, "extra_args"),
    ({}, {"kv_transfer_params": {"a": [{"b": -(2**63) - 1}]}}, "extra_args"),
    ({}, {"thinking_token_budget": 5}, None),
    ({}, {"structured_outputs": {"choice": []}}, None),
    ({}, {"structured_outputs": {"json_object": False}}, None),
    ({}, {"structured_outputs": {"grammar": " "}}, None),
    ({}, {"structured_outputs": {"regex": "\0"}}, None),
    (FORM, {"structured_outputs": {"regex": "a"}, **FORM}, None),
    ({}, {"response_format": NAMED_FORM}, None),
    ({"structured_outputs": {"json": nested(64)}}, {"structured_outputs": {"json": nested(65)}}, None),
    ({"truncate_prompt_tokens": CONTEXT}, {"truncate_prompt_tokens": 2049}, "truncate_prompt_tokens"),
    ({"routed_experts_prompt_start": 16}, {"routed_experts_prompt_start": 17}, "routed_experts_prompt_start"),
]


@pytest.mark.parametrize(("fields", "beyond", "param"), BORDERS)
def test_the_last_that_is_allowed_and_the_first_that_is_not(
    fields: dict[str, Any], beyond: dict[str, Any], param: str | None
) -> None:
    check(chat(**fields))
    assert refusal(chat(**beyond)) == param


REPEATS = {"max_pattern_size": 1, "min_pattern_size": 1, "min_count": 2}
BY_SCHEMA: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"seed": 2**63 - 1}, {"seed": 2**63}),
    ({"priority": -(2**63)}, {"priority": -(2**63) - 1}),
    ({"cache_salt": "x" * 128}, {"cache_salt": "x" * 129}),
    ({"cache_salt": "x"}, {"cache_salt": ""}),
    ({"thinking_token_budget": -1}, {"thinking_token_budget": -2}),
    *(
        ({"repetition_detection": good}, {"repetition_detection": bad})
        for good, bad in (
            (REPEATS, {**REPEATS, "min_pattern_size": 2}),
            ({"max_pattern_size": 0, "min_count": 0}, {"max_pattern_size": 1, "min_count": 1}),
        )
    ),
    ({"structured_outputs": {"json": {"a": 1}}}, {"structured_outputs": {"json": {"a": 1}, "regex": "a"}}),
]


@pytest.mark.parametrize(("fields", "beyond"), BY_SCHEMA)
def test_borders_that_need_no_model(fields: dict[str, Any], beyond: dict[str, Any]) -> None:
    check(chat(**fields))
    assert refused(lambda: chat(**beyond))[0] == 400


def test_an_error_names_five_tokens_that_the_model_does_not_know() -> None:
    wrong = [4096, 0, 4097, -1, 4098, 1, 4099, 5000, 49]
    with pytest.raises(ApiError) as caught:
        LIMITS.check_vocabulary("ids", wrong)
    assert "[4096, 4097, -1, 4098, 4099]" in caught.value.message and "4096" in caught.value.message


def test_the_rules_are_looked_at_in_vllms_order() -> None:
    assert refusal(chat(n=0, temperature=-1)) is None
    assert refusal(chat(presence_penalty=5, temperature=-1)) is None
    assert refusal(chat(temperature=-1, top_p=5)) == "temperature"
    assert refusal(chat(max_tokens=5000, temperature=-1)) == "max_tokens"
    assert refusal(chat(logit_bias={"x": 1}, presence_penalty=5)) == "logit_bias"
    assert refusal(chat(logit_bias={"x": 1}, n=0)) is None
    assert refusal(chat(logit_bias={"9999": 1}, allowed_token_ids=[])) == "logit_bias"


def test_what_concerns_the_prompts_is_looked_at_prompt_by_prompt() -> None:
    """What does not is refused with the first of them."""
    assert refusal(chat(), 16, CONTEXT) == "max_tokens"
    assert refusal(chat(bad_words=[""]), 16, CONTEXT) is None
    assert refusal(chat(routed_experts_prompt_start=17), 17, 16) == "routed_experts_prompt_start"
    assert refusal(chat(routed_experts_prompt_start=17, bad_words=list(map(str, range(129)))), 17, 16) == (
        "bad_words"
    )


def test_what_follows_from_the_fields_is_kept() -> None:
    asked = check(
        chat(max_completion_tokens=7, max_tokens=3, n=2, stop="end", seed=-1, temperature=0.5), 16, 2044
    )
    assert (asked.n, asked.requested, list(asked.max_tokens)) == (2, 7, [7, 4])
    assert (asked.stop, asked.seed, asked.greedy) == (("end",), None, False)
    asked = check(completion(temperature=0, stop=["a", "b"], seed=3, stop_token_ids=[5, 5, 6]))
    assert (asked.n, asked.requested, list(asked.max_tokens)) == (1, 16, [16])
    assert (asked.stop, asked.seed, asked.greedy) == (("a", "b"), 3, True)
    assert asked.stop_token_ids == {5, 6}
    assert check(chat()).requested is None


def test_a_form_can_be_asked_for_in_two_fields() -> None:
    asked = check(chat(response_format={"type": "json_object"}))
    assert asked.structured_outputs is not None and asked.structured_outputs.json_object
    asked = check(chat(structured_outputs={"regex": "a+"}, response_format={"type": "text"}))
    assert asked.structured_outputs is not None and asked.structured_outputs.regex == "a+"
    assert check(chat(response_format={"type": "text"})).structured_outputs is None


@pytest.mark.parametrize(
    ("requested", "prompt_tokens", "allowed"), [(None, 48, 2000), (5, 48, 5), (2048, 48, 2000), (1, 2048, 0)]
)
def test_output_is_limited_to_what_fits_behind_the_prompt(
    requested: int | None, prompt_tokens: int, allowed: int
) -> None:
    assert resolve_max_tokens(requested, prompt_tokens, LIMITS) == allowed


def test_a_prompt_leaves_room_for_a_token() -> None:
    assert refusal(chat(), CONTEXT) == "max_tokens"
    LIMITS.check_prompt([49] * (CONTEXT - 1))
    for tokens in (0, CONTEXT):
        assert refused(lambda tokens=tokens: LIMITS.check_prompt([49] * tokens))[0] == 400  # type: ignore[misc]


def test_a_prompt_longer_than_the_context_is_named_by_its_tokens_or_its_text() -> None:
    assert refusal(chat(), CONTEXT + 1) == "input_tokens"
    with pytest.raises(ApiError) as caught:
        check_prompt_text("x" * (CONTEXT * 10 + 1), CONTEXT, max_chars_per_token=10)
    assert caught.value.param == "input_text"
    check_prompt_text("x" * (CONTEXT * 10), CONTEXT, max_chars_per_token=10)


def test_an_empty_prompt_and_foreign_token_ids_are_refused_without_a_param() -> None:
    for prompt in ([], [4096], [-1]):
        with pytest.raises(ApiError) as caught:
            accepted(completion()).check_engine([prompt])
        assert (caught.value.status, caught.value.param) == (400, None)


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
    context = 3 if "-1" in str(fields) else 10
    assert fit_prompt(chat(**fields), [0, 1, 2, 3], context) == kept


def test_all_log_probabilities_are_as_many_as_the_vocabulary() -> None:
    everything = ModelLimits(max_model_len=CONTEXT, vocab_size=4096, max_logprobs=-1)
    asked = accepted(chat(logprobs=True, top_logprobs=-1), everything)
    asked.check_engine([[1]])
    assert (asked.entries_per_token, asked.entries_per_prompt_token) == (4097, 0)
    assert [everything.logprobs(it) for it in (None, 0, 1, 7, -1)] == [0, 0, 1, 7, 4096]
    everything.check_logprobs("logprobs", 4096)
    assert refused(lambda: everything.check_logprobs("logprobs", 4097))[2] == "logprobs"


def test_echo_asks_for_log_probabilities_of_the_prompt() -> None:
    assert accepted(completion(echo=True, logprobs=2)).prompt_logprobs == 2
    assert accepted(completion(logprobs=2)).prompt_logprobs is None
    assert accepted(chat(echo=True)).prompt_logprobs == 0
    assert accepted(chat(echo=True, prompt_logprobs=3)).prompt_logprobs == 3


def test_chat_needs_the_switch_and_completions_only_the_number() -> None:
    assert accepted(chat()).logprobs is None
    assert accepted(chat(logprobs=True)).logprobs == 0
    assert accepted(chat(logprobs=True, top_logprobs=4)).logprobs == 4
    assert accepted(completion(logprobs=3)).logprobs == 3
    assert accepted(completion(logprobs=3, logprob_token_ids=[1])).logprobs == 1


def test_messages_are_normalized_behind_what_is_no_message() -> None:
    messages: list[Any] = [
        5,
        {"tool_calls": {"a": 1}},
        {"reasoning_content": "hm", "reasoning": None},
        {"reasoning_content": "hm", "reasoning": "said"},
        {"reasoning_content": None},
    ]
    normalize_messages(messages)
    assert messages == [5, {"tool_calls": ["a"]}, {"reasoning": "hm"}, {"reasoning": "said"}, {}]
    assert refused(lambda: normalize_messages([5, {"tool_calls": 7}]))[0] == 400
    normalize_messages(None)


CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CUSTOM = {"id": "a", "type": "custom", "custom": {"name": "f", "input": "x"}}


@pytest.mark.parametrize(
    ("call", "where"),
    [
        (CALL, None),
        (CUSTOM, None),
        (5, ""),
        ({**CALL, "id": 5}, "id"),
        ({**CALL, "function": 5}, "function"),
        ({**CALL, "function": {"name": "f"}}, "function"),
        ({**CALL, "function": {"arguments": ""}}, "function.name"),
        ({**CALL, "type": "tool"}, "type"),
        ({**CUSTOM, "id": 5}, "id"),
        ({**CUSTOM, "custom": 5}, "function"),
        ({**CUSTOM, "custom": {"name": "f"}}, "function"),
    ],
)
def test_a_call_made_earlier_is_whole_or_named_by_its_place(call: Any, where: str | None) -> None:
    def check(role: str = "assistant") -> None:
        check_tool_calls([{"role": role, "tool_calls": [CALL, call]}])

    check("user")
    if where is None:
        check()
        return
    status, _, param = refused(check)
    assert status == 400 and param is not None
    assert param.startswith("body.1.") and param.endswith(where)


def test_what_is_asked_for_by_tokens_is_a_completion_of_the_same() -> None:
    sampling = {
        **{"n": 2, "presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.5},
        **{"temperature": 0.25, "top_p": 0.75, "top_k": 7, "min_p": 0.125, "seed": 3, "stop": ["a"]},
        **{"stop_token_ids": [9], "max_tokens": 5, "min_tokens": 2, "logprobs": 4, "prompt_logprobs": 6},
        **{"include_stop_str_in_output": True, "bad_words": ["b"]},
    }
    fields = {
        **{"model": "m", "stream": True, "stream_options": {"include_usage": True}, "cache_salt": "s"},
        **{"priority": 8, "request_id": "r", "return_token_ids": True},
    }
    extra = {"extra_args": {"kv_transfer_params": {"a": 1}}}

    def completion(sampling: dict[str, Any], **fields: Any) -> Any:
        body = {"token_ids": [1, 2], "sampling_params": sampling, **fields}
        request = decode(json.dumps(body).encode(), "application/json", GenerateRequest)
        return request.as_completion(64)

    told = completion({**sampling, **extra}, **fields)
    assert {name: getattr(told, name) for name in sampling} == sampling
    assert told.stream_options.include_usage
    plain = {name: value for name, value in fields.items() if name != "stream_options"}
    assert {name: getattr(told, name) for name in plain} == plain
    assert (told.prompt, told.kv_transfer_params, told.ignore_eos) == ([1, 2], {"a": 1}, False)
    assert completion(extra, kv_transfer_params={"b": 2}).kv_transfer_params == {"b": 2}
    assert completion({}, ignore_eos=True).ignore_eos and completion({"ignore_eos": True}).ignore_eos
    assert completion({}).bad_words == [] and completion({}).max_tokens == 62
