"""Whole answers of vLLM 0.32.0 that no recorded exchange shows: counts, echoes, log probabilities, ends."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.calls import chat, text, token_ids
from tests.running_server import RunningServer


def test_a_chat_echoes_the_last_message_only_in_its_own_role(vllm: RunningServer) -> None:
    assert not chat(vllm, echo=True)["choices"][0]["message"]["content"].startswith("hi")
    own = chat(vllm, echo=True, add_generation_prompt=False)["choices"][0]["message"]
    assert own["role"] == "user"
    assert own["content"].startswith("hi")


def test_prompt_log_probabilities_are_keyed_by_token_id(vllm: RunningServer) -> None:
    for entries in (
        chat(vllm, prompt_logprobs=2)["prompt_logprobs"],
        text(vllm, prompt_logprobs=2)["choices"][0]["prompt_logprobs"],
    ):
        assert entries[0] is None
        for entry in entries[1:]:
            assert 2 <= len(entry) <= 3
            assert all(token_id.isdecimal() for token_id in entry)
            assert {tuple(item) for item in entry.values()} == {("logprob", "rank", "decoded_token")}


def test_a_completion_echoes_its_prompt(vllm: RunningServer) -> None:
    assert text(vllm, echo=True)["choices"][0]["text"].startswith("hello")
    only = text(vllm, echo=True, max_tokens=0)
    assert only["choices"][0]["text"] == "hello"
    assert only["choices"][0]["finish_reason"] == "length"
    assert only["usage"]["completion_tokens"] == 1


def test_an_echo_with_token_ids_returned_leaves_the_prompts_text_away(vllm: RunningServer) -> None:
    choice = text(vllm, echo=True, return_token_ids=True)["choices"][0]
    assert not choice["text"].startswith("hello")
    assert choice["prompt_token_ids"] == token_ids(vllm)


def test_an_echo_with_log_probabilities_begins_with_the_prompts(vllm: RunningServer) -> None:
    choice = text(vllm, echo=True, logprobs=1)["choices"][0]
    logprobs, prompt = choice["logprobs"], token_ids(vllm)
    assert list(logprobs) == ["text_offset", "token_logprobs", "tokens", "top_logprobs"]
    assert {len(values) for values in logprobs.values()} == {len(prompt) + 2}
    assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
    assert "".join(logprobs["tokens"][: len(prompt)]) == "hello"
    assert len(choice["prompt_logprobs"]) == len(prompt)


def test_tokens_can_be_named_by_their_ids(vllm: RunningServer) -> None:
    asked = {"return_tokens_as_token_ids": True, "return_token_ids": True, "seed": 7}
    choice = chat(vllm, logprobs=True, top_logprobs=1, **asked)["choices"][0]
    for entry, token_id in zip(choice["logprobs"]["content"], choice["token_ids"], strict=True):
        assert list(entry) == ["token", "logprob", "bytes", "top_logprobs"]
        assert entry["token"] == f"token_id:{token_id}"
        assert entry["top_logprobs"][0]["bytes"] == list(entry["token"].encode())
    content = choice["message"]["content"]
    assert bytes(sum((entry["bytes"] for entry in choice["logprobs"]["content"]), [])).decode() == content
    choice = text(vllm, logprobs=0, **asked)["choices"][0]
    assert choice["logprobs"]["tokens"] == [f"token_id:{token_id}" for token_id in choice["token_ids"]]


def test_a_completion_tells_as_many_log_probabilities_as_wanted(vllm: RunningServer) -> None:
    for wanted in (0, 1, 3):
        told = text(vllm, logprobs=wanted, max_tokens=4, ignore_eos=True)["choices"][0]["logprobs"]
        for token, top in zip(told["tokens"], told["top_logprobs"], strict=True):
            assert next(iter(top)) == token and len(top) <= max(wanted, 1)
        assert max(map(len, told["top_logprobs"])) == max(wanted, 1)


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
