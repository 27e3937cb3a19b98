"""How a model that computes is told to choose:

the request's fields before the model's own defaults.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from app.core.api.sampling import (
    MAX_SEARCHED_TOKENS,
    RealModel,
    ThoughtTokens,
)
from app.core.engine.choice_request import Thoughts
from app.core.engine.sampling import SAMPLING_FIELDS, Sampling, SamplingDefaults
from app.core.server.http.errors import ApiError
from tests.core.protocol.refused import completion as asked

OWN = SamplingDefaults(temperature=0.6, top_p=0.9, top_k=20, min_p=0.1, repetition_penalty=1.05)


def test_request_without_sampling_fields_uses_the_defaults_of_the_model() -> None:
    assert SamplingDefaults().sampling_of(asked(), max_tokens=None) == Sampling()
    wanted = Sampling(temperature=0.6, top_p=0.9, top_k=20, min_p=0.1, repetition_penalty=1.05)
    assert OWN.sampling_of(asked(), max_tokens=None) == wanted


def test_zero_in_a_request_overrides_the_default_sampling_value() -> None:
    request_sampling = {
        "temperature": 0.5,
        "top_p": 0.5,
        "top_k": 3,
        "min_p": 0.0,
        "repetition_penalty": 1.2,
    }
    penalties = {"presence_penalty": -1.0, "frequency_penalty": 0.5}
    sampling = OWN.sampling_of(
        asked(**request_sampling, **penalties, bad_words=["x"], skip_special_tokens=False),
        max_tokens=7,
    )
    assert sampling == Sampling(
        **request_sampling,
        **penalties,
        bad_words=("x",),
        skip_special_tokens=False,
        max_tokens=7,
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"temperature": 1e-6}, {"temperature": 0.01}),
        ({"temperature": 0.0, "top_p": 0.5, "top_k": 3, "min_p": 0.2}, {"temperature": 0.0}),
        ({"seed": -1}, {}),
        ({"seed": 0}, {"seed": 0}),
    ],
)
def test_normalized_parameters_are_those_that_vllm_samples_with(
    fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert Sampling(**fields).normalized() == Sampling(**expected)


def test_table_has_every_field_of_the_sampling_record_once() -> None:
    names = [field.name for field in SAMPLING_FIELDS]
    assert sorted(names) == sorted(Sampling.__struct_fields__)


def test_error_names_the_field_that_the_engine_does_not_support() -> None:
    for field, value in (
        ("use_beam_search", True),
        ("kv_transfer_params", {"do_remote_prefill": True}),
        ("kv_transfer_params", {"do_remote_decode": True}),
        ("cache_hit_threshold", 0.5),
        ("thinking_token_budget", 5),
        ("logprob_token_ids", [1]),
    ):
        with pytest.raises(ApiError) as caught:
            RealModel().check(asked(**{field: value}), has_media=False)
        assert (caught.value.status, caught.value.param) == (400, field)
    with pytest.raises(ApiError, match="not a multimodal model"):
        RealModel().check(asked(), has_media=True)
    for fine in (
        {},
        {"use_beam_search": False},
        {"kv_transfer_params": {"do_remote_prefill": False}},
    ):
        RealModel().check(asked(**fine), has_media=False)


BEGIN = 1
END = 2
BLANK = 3
WORD = 4
TEXTS = {BEGIN: "<think>", END: "</think>", BLANK: "\n\n", WORD: "word"}
BEGUN = Thoughts(end_id=END)
POSSIBLE = Thoughts(end_id=END, begin_id=BEGIN)


def text_of(ids: Sequence[int]) -> str:
    return "".join(TEXTS[token_id] for token_id in ids)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ([WORD, BEGIN], BEGUN),
        ([WORD, BEGIN, BLANK], BEGUN),
        ([WORD, BEGIN, WORD, WORD], BEGUN),
        ([BEGIN, WORD, END, WORD, BEGIN], BEGUN),
        ([WORD, BEGIN, BLANK, END, BLANK], None),
        ([WORD, BEGIN, END], None),
        ([BEGIN, WORD, END, WORD, BLANK], POSSIBLE),
        ([WORD], POSSIBLE),
        ([], POSSIBLE),
        ([BEGIN] + [WORD] * MAX_SEARCHED_TOKENS, POSSIBLE),
    ],
)
def test_prompt_determines_whether_the_reply_starts_with_reasoning(
    prompt: list[int], expected: Thoughts | None
) -> None:
    assert ThoughtTokens(BEGIN, END, text_of).after(prompt) == expected
