"""Numbers and forms at the very border of what is allowed, and one step beyond it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from app.http.errors import ApiError
from app.protocol import rules
from app.protocol.chat import ChatCompletionRequest
from app.protocol.decoding import decode
from app.protocol.generate import GenerateRequest
from app.protocol.messages import check_tool_calls, normalize_messages
from app.protocol.validation import ModelLimits, ValidatedRequest, fit_prompt
from tests.protocol.refused import refused

VOCABULARY = 50
LIMITS = ModelLimits(max_model_len=64, vocab_size=VOCABULARY)


def decoded(**fields: Any) -> ChatCompletionRequest:
    body = {"messages": [{"role": "user", "content": "hi"}], **fields}
    return decode(json.dumps(body).encode(), "application/json", ChatCompletionRequest)


def checked(**fields: Any) -> None:
    request = decoded(**fields)
    prompt = fit_prompt(request, [1] * 16, LIMITS.max_model_len)
    asked = ValidatedRequest(request, "model", LIMITS)
    asked.check_sampling([len(prompt)])
    asked.check_engine([prompt])


@pytest.mark.parametrize(
    ("fields", "beyond"),
    [
        ({"n": 16384}, {"n": 16385}),
        ({"n": 1}, {"n": 0}),
        ({"n": 2, "temperature": 1e-5}, {"n": 2, "temperature": 0.9e-5}),
        ({"temperature": 0}, {"temperature": -1e-9}),
        ({"temperature": 2}, {"temperature": 2.0001}),
        ({"top_p": 1e-9}, {"top_p": 0}),
        ({"top_p": 1}, {"top_p": 1.0001}),
        ({"top_k": -1}, {"top_k": -2}),
        ({"min_p": 0}, {"min_p": -0.0001}),
        ({"min_p": 1}, {"min_p": 1.0001}),
        ({"presence_penalty": -2}, {"presence_penalty": -2.0001}),
        ({"presence_penalty": 2}, {"presence_penalty": 2.0001}),
        ({"frequency_penalty": -2}, {"frequency_penalty": -2.0001}),
        ({"frequency_penalty": 2}, {"frequency_penalty": 2.0001}),
        ({"repetition_penalty": 1e-9}, {"repetition_penalty": 0}),
        ({"max_tokens": 1}, {"max_tokens": 0}),
        ({"min_tokens": 0}, {"min_tokens": -1}),
        ({"min_tokens": 3, "max_tokens": 3}, {"min_tokens": 4, "max_tokens": 3}),
        ({"bad_words": [str(i) for i in range(128)] * 2}, {"bad_words": [str(i) for i in range(129)]}),
        ({"stop": ["a"] * 4}, {"stop": ["a"] * 5}),
        ({"logit_bias": {"0": 1, "49": 1}}, {"logit_bias": {"50": 1}}),
        ({"stop_token_ids": [0, 49]}, {"stop_token_ids": [50]}),
        ({"allowed_token_ids": [0]}, {"allowed_token_ids": [-1]}),
        ({"logprobs": True, "top_logprobs": 20}, {"logprobs": True, "top_logprobs": 21}),
        ({"prompt_logprobs": 20}, {"prompt_logprobs": 21}),
        (
            {"logprobs": True, "logprob_token_ids": [1] * 128},
            {"logprobs": True, "logprob_token_ids": [1] * 129},
        ),
        ({"vllm_xargs": {"a": 2**64 - 1}}, {"vllm_xargs": {"a": 2**64}}),
        ({"vllm_xargs": {"a": -(2**63)}}, {"vllm_xargs": {"a": -(2**63) - 1}}),
        ({"seed": 2**63 - 1}, {"seed": 2**63}),
        ({"priority": -(2**63)}, {"priority": -(2**63) - 1}),
        ({"cache_salt": "x" * 128}, {"cache_salt": "x" * 129}),
        ({"cache_salt": "x"}, {"cache_salt": ""}),
        ({"thinking_token_budget": -1}, {"thinking_token_budget": -2}),
        (
            {"repetition_detection": {"max_pattern_size": 1, "min_pattern_size": 1, "min_count": 2}},
            {"repetition_detection": {"max_pattern_size": 1, "min_pattern_size": 2, "min_count": 2}},
        ),
        (
            {"repetition_detection": {"max_pattern_size": 0, "min_count": 0}},
            {"repetition_detection": {"max_pattern_size": 1, "min_count": 1}},
        ),
        (
            {"structured_outputs": {"json": {"a": 1}}},
            {"structured_outputs": {"json": {"a": 1}, "regex": "a"}},
        ),
        ({"truncate_prompt_tokens": 64}, {"truncate_prompt_tokens": 65}),
        ({"routed_experts_prompt_start": 16}, {"routed_experts_prompt_start": 17}),
    ],
    ids=lambda it: ",".join(it),
)
def test_the_last_that_is_allowed_and_the_first_that_is_not(
    fields: dict[str, Any], beyond: dict[str, Any]
) -> None:
    checked(**fields)
    assert refused(lambda: checked(**beyond))[0] == 400


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"properties": value}
    return value


def test_a_schema_nests_64_levels() -> None:
    checked(structured_outputs={"json": nested(64)})
    assert refused(lambda: checked(structured_outputs={"json": nested(65)}))[0] == 400


def test_an_error_names_five_tokens_that_the_model_does_not_know() -> None:
    wrong = [50, 0, 51, -1, 52, 1, 53, 54, 49]
    with pytest.raises(ApiError) as caught:
        LIMITS.check_vocabulary("ids", wrong)
    assert "[50, 51, -1, 52, 53]" in caught.value.message and str(VOCABULARY) in caught.value.message


@pytest.mark.parametrize(("tokens", "fits"), [(0, False), (1, True), (63, True), (64, False)])
def test_a_prompt_leaves_room_for_a_token(tokens: int, fits: bool) -> None:
    def check() -> None:
        LIMITS.check_prompt([49] * tokens)

    if fits:
        check()
    else:
        assert refused(check)[0] == 400


def test_all_log_probabilities_are_as_many_as_tokens() -> None:
    limits = ModelLimits(max_model_len=64, vocab_size=VOCABULARY, max_logprobs=-1)
    assert [limits.logprobs(it) for it in (None, 0, 1, 7, -1)] == [0, 0, 1, 7, VOCABULARY]
    limits.check_logprobs("logprobs", VOCABULARY)
    assert refused(lambda: limits.check_logprobs("logprobs", VOCABULARY + 1))[2] == "logprobs"


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


@pytest.mark.parametrize(
    ("features", "hashes"),
    [
        (None, None),
        (
            {"mm_hashes": {"image": ["a"]}, "mm_placeholders": {"image": [{"offset": 0, "length": 1}]}},
            {"image": ["a"]},
        ),
    ],
)
def test_hashes_of_images_are_an_object_or_none(features: Any, hashes: Any) -> None:
    body = {"token_ids": [1], "sampling_params": {}, "features": features}
    request = decode(json.dumps(body).encode(), "application/json", GenerateRequest)
    assert request.mm_hashes == hashes


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


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        (rules.check_stream_options, [(None, None), ({}, False), ({"a": 1}, True)], [({"a": 1}, False)]),
        (rules.check_continuation, [(True, False), (False, True), (False, False)], [(True, True)]),
        (
            rules.check_prompt_logprobs,
            [(None, True), (0, True), (-1, False), (5, False)],
            [(1, True), (-1, True), (-2, False), (-0.5, False)],
        ),
        (rules.check_thinking_budget, [(None,), (-1,), (0,)], [(-2,), (True,), (1.0,), ("1",)]),
        (rules.check_cache_salt, [(None,), ("x" * 128,)], [("",), (5,), ("a@",), ("/",), ("\\",), ("\0",)]),
    ],
)
def test_rules_of_parsing(rule: Callable[..., None], good: list[Any], bad: list[Any]) -> None:
    for values in good:
        rule(*values)
    for values in bad:
        assert refused(lambda values=values: rule(*values))[0] == 400  # type: ignore[misc]


@pytest.mark.parametrize(
    ("form", "fits"),
    [
        ({"type": "json_schema"}, False),
        ({"type": "json_schema", "json_schema": {"name": "a"}}, True),
        ({"type": "structural_tag"}, False),
        ({"type": "structural_tag", "format": {}}, True),
        ({"type": "structural_tag", "structures": [], "triggers": []}, True),
        ({"type": "structural_tag", "structures": [{"begin": "a", "end": "b"}], "triggers": ["a"]}, True),
        ({"type": "structural_tag", "structures": [{"begin": "a"}], "triggers": ["a"]}, False),
        ({"type": "structural_tag", "structures": [{"end": "a"}], "triggers": ["a"]}, False),
        ({"type": "structural_tag", "structures": [], "triggers": [5]}, False),
        ({"type": "structural_tag", "structures": []}, False),
        ({"type": "structural_tag", "triggers": []}, False),
        ({"type": "text"}, True),
    ],
)
def test_forms_of_a_response(form: dict[str, Any], fits: bool) -> None:
    if fits:
        rules.check_response_format(form)
    else:
        assert refused(lambda: rules.check_response_format(form))[2] == "response_format"
