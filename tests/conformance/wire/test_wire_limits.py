"""Where a reply of vLLM 0.32.0 ends, and what of a prompt it reads."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.calls import chat, text
from tests.running_server import RunningServer

LONG = {"max_tokens": 12, "ignore_eos": True, "return_token_ids": True}


@pytest.fixture(scope="module")
def seeded(vllm: RunningServer) -> dict[str, Any]:
    """Fields whose reply is several English words, whatever the tokenizer makes of the sample sentences."""
    for seed in range(100):
        fields = LONG | {"seed": seed}
        said = text(vllm, **fields)["choices"][0]["text"]
        if said.isascii() and len(said.split()) > 3:
            return fields
    raise AssertionError("no reply of several words in a hundred")


def test_a_stop_string_is_cut_off_or_kept(vllm: RunningServer, seeded: dict[str, Any]) -> None:
    whole = text(vllm, **seeded)["choices"][0]
    word = whole["text"].split()[1]
    before, _, _ = whole["text"].partition(word)
    for include, expected in ((False, before), (True, before + word)):
        choice = text(vllm, **seeded, stop=["zzz", word], include_stop_str_in_output=include)["choices"][0]
        assert choice["text"] == expected
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", word)
        assert whole["token_ids"][: len(choice["token_ids"])] == choice["token_ids"]


def test_a_stop_token_is_counted_but_not_shown(vllm: RunningServer, seeded: dict[str, Any]) -> None:
    whole = text(vllm, **seeded)["choices"][0]
    stop = whole["token_ids"][3]
    count = whole["token_ids"].index(stop) + 1
    answer = text(vllm, **seeded, stop_token_ids=[stop])
    choice = answer["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    assert choice["token_ids"] == whole["token_ids"][:count]
    assert answer["usage"]["completion_tokens"] == count
    kept = text(vllm, **seeded, stop_token_ids=[stop], include_stop_str_in_output=True)["choices"][0]
    assert kept["text"].startswith(choice["text"]) and len(kept["text"]) > len(choice["text"])


def test_a_reply_that_ignores_its_end_uses_its_limit_up(vllm: RunningServer) -> None:
    answer = chat(vllm, ignore_eos=True, max_tokens=90)
    assert answer["usage"]["completion_tokens"] == 90
    assert answer["choices"][0]["finish_reason"] == "length"


def test_a_reply_has_at_least_min_tokens(vllm: RunningServer) -> None:
    assert chat(vllm, min_tokens=80, max_tokens=90)["usage"]["completion_tokens"] >= 80


def test_the_limit_is_what_the_context_leaves(vllm: RunningServer) -> None:
    answer = text(vllm, prompt=[5] * 2046, max_tokens=500, ignore_eos=True)
    assert answer["usage"] | {"prompt_tokens_details": None} == {
        "prompt_tokens": 2046,
        "total_tokens": 2048,
        "completion_tokens": 2,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }
