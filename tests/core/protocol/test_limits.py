"""Rules that know the model:

the last that is allowed, the first that is not, what follows from fields.
"""

import math
from typing import Any

import pytest

from app.core.engine.sampling import SamplingDefaults
from app.core.protocol.validation import (
    GenerationRequest,
    ModelLimits,
    RequestRules,
    ValidatedRequest,
    fit_prompt,
)
from tests.core.protocol.refused import chat, completion, refused

CONTEXT = 2048
LIMITS = ModelLimits(max_model_len=CONTEXT, vocab_size=4096)


def accepted(
    request: GenerationRequest, limits: ModelLimits = LIMITS
) -> ValidatedRequest[GenerationRequest]:
    return ValidatedRequest(request, "model", limits)


def check(request: GenerationRequest, *prompts: int) -> ValidatedRequest[GenerationRequest]:
    """Everything in the order in which a server does it, for prompts of so many tokens (one of 16)."""
    ids = [
        fit_prompt(request, [1] * tokens, CONTEXT, rules=RequestRules())
        for tokens in prompts or (16,)
    ]
    validated = accepted(request)
    validated.check_sampling([len(prompt) for prompt in ids])
    validated.check_engine(ids)
    return validated


def refusal(request: GenerationRequest, *prompts: int) -> str | None:
    status, kind, param = refused(check, request, *prompts)
    assert (status, kind) == (400, "BadRequestError")
    return param


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"properties": value}
    return value


IDS = {"logprobs": True}
WORDS = [str(number) for number in range(129)]
FORM = {"response_format": {"type": "json_object"}}
BORDERS: list[tuple[dict[str, Any], dict[str, Any], str | None]] = [
    ({"n": 16384}, {"n": 16385}, None),
    ({"n": 2, "temperature": 1e-9}, {"n": 2, "temperature": 0}, None),
    ({"temperature": 0}, {"temperature": -1e-9}, "temperature"),
    ({"temperature": 2}, {"temperature": 2.0001}, "temperature"),
    ({}, {"temperature": math.nan}, "temperature"),
    ({"top_p": 1e-9}, {"top_p": 0}, "top_p"),
    ({"top_k": -1}, {"top_k": -2}, None),
    ({"min_p": 0}, {"min_p": -0.0001}, None),
    ({"presence_penalty": -2}, {"presence_penalty": -2.0001}, None),
    ({"frequency_penalty": -2}, {"frequency_penalty": -2.0001}, None),
    ({"repetition_penalty": 1e-9}, {"repetition_penalty": 0}, None),
    ({"max_tokens": 1}, {"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": CONTEXT}, {"max_tokens": CONTEXT + 1}, "max_tokens"),
    ({}, {"max_completion_tokens": 5000, "max_tokens": 1}, "max_completion_tokens"),
    ({"min_tokens": 3, "max_tokens": 3}, {"min_tokens": 4, "max_tokens": 3}, None),
    ({"stop": ["a"] * 4}, {"stop": ["a", ""]}, None),
    ({"bad_words": WORDS[:128] * 2}, {"bad_words": WORDS}, "bad_words"),
    ({"logit_bias": {"0": 1000, "4095": -1000}}, {"logit_bias": {"4096": 1}}, "logit_bias"),
    ({}, {"logit_bias": {"x": 1}}, "logit_bias"),
    ({"stop_token_ids": [0, 4095]}, {"stop_token_ids": [4096]}, "stop_token_ids"),
    ({"allowed_token_ids": [0]}, {"allowed_token_ids": [-1]}, "allowed_token_ids"),
    ({"logprobs": True, "top_logprobs": 20}, {"logprobs": True, "top_logprobs": 21}, "logprobs"),
    ({"prompt_logprobs": 20}, {"prompt_logprobs": 21}, "prompt_logprobs"),
    (
        {**IDS, "logprob_token_ids": [1] * 128},
        {**IDS, "logprob_token_ids": [1] * 129},
        "logprob_token_ids",
    ),
    ({}, {**IDS, "logprob_token_ids": [9999]}, "logprob_token_ids"),
    ({"vllm_xargs": {"a": 2**64 - 1}}, {"vllm_xargs": {"a": 2**64}}, "extra_args"),
    ({}, {"kv_transfer_params": {"a": [{"b": -(2**63) - 1}]}}, "extra_args"),
    ({}, {"thinking_token_budget": 5}, None),
    ({}, {"structured_outputs": {"choice": []}}, None),
    ({}, {"structured_outputs": {"regex": "\0"}}, None),
    (FORM, {"structured_outputs": {"regex": "a"}, **FORM}, None),
    (
        {"structured_outputs": {"json": nested(64)}},
        {"structured_outputs": {"json": nested(65)}},
        None,
    ),
    (
        {"truncate_prompt_tokens": CONTEXT},
        {"truncate_prompt_tokens": 2049},
        "truncate_prompt_tokens",
    ),
    (
        {"routed_experts_prompt_start": 16},
        {"routed_experts_prompt_start": 17},
        "routed_experts_prompt_start",
    ),
]


@pytest.mark.parametrize(("fields", "beyond", "param"), BORDERS)
def test_only_field_values_beyond_their_limits_are_rejected(
    fields: dict[str, Any], beyond: dict[str, Any], param: str | None
) -> None:
    check(chat(**fields))
    assert refusal(chat(**beyond)) == param


def test_first_invalid_sampling_field_in_the_order_of_vllm_is_reported() -> None:
    assert refusal(chat(n=0, temperature=-1)) is None
    assert refusal(chat(presence_penalty=5, temperature=-1)) is None
    assert refusal(chat(temperature=-1, top_p=5)) == "temperature"
    assert refusal(chat(max_tokens=5000, temperature=-1)) == "max_tokens"
    assert refusal(chat(logit_bias={"x": 1}, presence_penalty=5)) == "logit_bias"
    assert refusal(chat(logit_bias={"x": 1}, n=0)) is None
    assert refusal(chat(logit_bias={"9999": 1}, allowed_token_ids=[])) == "logit_bias"


def test_token_limits_stop_strings_and_seed_come_from_the_request_fields() -> None:
    validated = check(
        chat(max_completion_tokens=7, max_tokens=3, n=2, stop="end", seed=-1, temperature=0.5),
        16,
        2044,
    )
    assert (validated.n, validated.requested, list(validated.max_tokens)) == (2, 7, [7, 4])
    sampling = validated.sampling(SamplingDefaults())
    assert (sampling.stop, sampling.seed, sampling.is_greedy) == (("end",), None, False)
    validated = check(completion(temperature=0, stop=["a", "b"], seed=3, stop_token_ids=[5, 5, 6]))
    assert (validated.n, validated.requested, list(validated.max_tokens)) == (1, 16, [16])
    sampling = validated.sampling(SamplingDefaults())
    assert (sampling.stop, sampling.seed, sampling.is_greedy) == (("a", "b"), 3, True)
    assert sampling.stop_token_ids == {5, 6}
    assert check(chat()).requested is None


def test_prompt_that_fills_the_whole_context_is_rejected() -> None:
    assert refusal(chat(), CONTEXT) == "max_tokens"
    LIMITS.check_prompt([49] * (CONTEXT - 1))
    for tokens in (0, CONTEXT):
        assert refused(LIMITS.check_prompt, [49] * tokens)[0] == 400


@pytest.mark.parametrize(
    ("fields", "remaining"),
    [
        ({}, [0, 1, 2, 3]),
        ({"truncate_prompt_tokens": 2, "truncation_side": "right"}, [0, 1]),
        ({"truncate_prompt_tokens": 2, "truncation_side": "left"}, [2, 3]),
        ({"truncate_prompt_tokens": 0, "truncation_side": "left"}, []),
        ({"truncate_prompt_tokens": 2}, [2, 3]),
        ({"truncate_prompt_tokens": -1, "max_tokens": 1}, [2, 3]),
    ],
)
def test_prompt_is_truncated_on_the_requested_side(
    fields: dict[str, Any], remaining: list[int]
) -> None:
    context = 3 if "-1" in str(fields) else 10
    assert fit_prompt(chat(**fields), [0, 1, 2, 3], context, rules=RequestRules()) == remaining


@pytest.mark.parametrize(
    ("fields", "length"),
    [({}, 2), ({"max_tokens": 0}, 3), ({"max_tokens": 1}, 2), ({"max_completion_tokens": 0}, 3)],
)
def test_truncation_leaves_room_for_one_token_unless_max_tokens_is_0(
    fields: dict[str, Any], length: int
) -> None:
    request = chat(truncate_prompt_tokens=-1, **fields)
    assert len(fit_prompt(request, [0, 1, 2, 3], 3, rules=RequestRules())) == length


def test_unlimited_logprobs_are_bounded_by_the_vocabulary_size() -> None:
    everything = ModelLimits(max_model_len=CONTEXT, vocab_size=4096, max_logprobs=-1)
    validated = accepted(chat(logprobs=True, top_logprobs=-1), everything)
    validated.check_engine([[1]])
    assert (validated.entries_per_token, validated.entries_per_prompt_token) == (4097, 0)
    assert [everything.logprobs(count) for count in (None, 0, 1, 7, -1)] == [0, 0, 1, 7, 4096]
    everything.check_logprobs("logprobs", 4096)
    assert refused(everything.check_logprobs, "logprobs", 4097)[2] == "logprobs"


def test_echo_with_logprobs_enables_prompt_logprobs() -> None:
    assert accepted(completion(echo=True, logprobs=2)).prompt_logprobs == 2
    assert accepted(completion(logprobs=2)).prompt_logprobs is None
    assert accepted(chat(echo=True)).prompt_logprobs == 0
    assert accepted(chat(echo=True, prompt_logprobs=3)).prompt_logprobs == 3
