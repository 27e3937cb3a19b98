"""The sampling parameters of a rendered request: vLLM's, with its defaults or what the request says."""

from __future__ import annotations

from functools import cache
from typing import Any

from app.factory import create_app
from app.web.application import Understudy
from config.loader import load

DEFAULTS = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "min_p": 0.0,
    "stop": [],
    "stop_token_ids": [],
    "max_tokens": 5,
    "output_kind": 2,
    "skip_clone": True,
    "bad_words": [],
    "skip_reading_prefix_cache": False,
}


@cache
def application() -> Understudy:
    return create_app(load(["--seed", "1", "--force-dummy-tokenizer", "--enable-scale-out"], {}))


def sampling(**fields: Any) -> dict[str, Any]:
    body = {"prompt": "hi", "max_tokens": 5, **fields}
    told: list[dict[str, Any]] = (
        application().test_client().post("/v1/completions/render", json=body).get_json()
    )
    return told[0]["sampling_params"]


def test_what_a_request_leaves_out_has_a_default_or_is_left_out() -> None:
    assert sampling() == DEFAULTS
    assert sampling(top_k=0, ignore_eos=False, min_tokens=0, stop=None, bad_words=[]) == DEFAULTS


def test_what_a_request_says_is_told_zeros_too() -> None:
    said = {
        "seed": 0, "top_k": 3, "logprobs": 0, "ignore_eos": True, "min_tokens": 2, "presence_penalty": -1.0,
        "frequency_penalty": 0.5, "repetition_penalty": 1.2, "temperature": 0.0, "top_p": 0.5, "min_p": 0.1,
        "stop": ["a", "b"], "stop_token_ids": [7], "bad_words": ["x"],
    }  # fmt: skip
    assert sampling(**said) == DEFAULTS | said
    assert sampling(stop="a")["stop"] == ["a"]


def test_a_completion_without_a_limit_has_vllms() -> None:
    assert sampling(max_tokens=None)["max_tokens"] == 16
