"""Answers to requests with `use_beam_search`."""

from typing import Any

import pytest

from tests.client import Client, events, in_process

HELLO = {"role": "user", "content": "hi"}
CHAT: dict[str, Any] = {"messages": [HELLO]}


def test_beam_is_streamed_as_one_chunk(client: Client) -> None:
    fields = {
        **CHAT,
        "use_beam_search": True,
        "n": 2,
        "max_tokens": 3,
        "ignore_eos": True,
        "logprobs": True,
    }
    chunks = events(client.post("/v1/chat/completions", {**fields, "stream": True}))
    beams = [event["choices"][0] for event in chunks if event["choices"][0]["finish_reason"]]
    assert [beam["index"] for beam in beams] == [0, 1] and len(chunks) == 4
    for beam in beams:
        assert [token["bytes"] for token in beam["logprobs"]["content"]] == [None] * 3
    usage = client.post("/v1/chat/completions", fields).json()["usage"]
    assert (usage["completion_tokens"], usage["prompt_tokens_details"]) == (6, None)


@pytest.mark.parametrize("fields", [{}, {"temperature": 0}, {"temperature": 0, "max_tokens": 1}])
def test_beams_are_distinct_and_sorted_by_probability(client: Client, fields: Any) -> None:
    beams = {"use_beam_search": True, "n": 3, "max_tokens": 5, **fields}
    chat = client.post("/v1/chat/completions", {**CHAT, **beams, "logprobs": True}).json()[
        "choices"
    ]
    entries = [choice["logprobs"]["content"] for choice in chat]
    assert len({choice["message"]["content"] for choice in chat}) == 3
    assert are_falling([[entry["logprob"] for entry in beam] for beam in entries])
    body = {"prompt": ["one", "two"], **beams, "logprobs": 1}
    choices = client.post("/v1/completions", body).json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(6))
    for prompt in (choices[:3], choices[3:]):
        assert len({choice["text"] for choice in prompt}) == 3
        assert are_falling([choice["logprobs"]["token_logprobs"] for choice in prompt])


def are_falling(beams: list[list[float]]) -> bool:
    sums = [round(sum(beam), 6) for beam in beams]
    return sums == sorted(sums, reverse=True)


def test_beam_search_ignores_unsupported_fields(client: Client) -> None:
    for fields in (
        *(
            {"min_tokens": 9},
            {"stop": ""},
            {"top_p": 7},
            {"logit_bias": {"x": 1}},
            {"allowed_token_ids": []},
        ),
        *(
            {"bad_words": [" "]},
            {"structured_outputs": {"choice": []}},
            {"thinking_token_budget": 3},
        ),
        *(
            {"response_format": {"type": "json_object"}},
            {"prompt_logprobs": 99},
            {"stop_token_ids": [-1]},
        ),
    ):
        beams = {"use_beam_search": True, "n": 2, "max_tokens": 2, "ignore_eos": True, **fields}
        for path, prompt in (
            ("/v1/chat/completions", CHAT),
            ("/v1/completions", {"prompt": "hi there"}),
        ):
            answer = client.post(path, {**prompt, **beams})
            assert answer.json()["usage"]["completion_tokens"] == 4, answer.text
            assert 'prompt_logprobs":[' not in answer.text


def test_invalid_temperature_of_a_beam_search_is_rejected(client: Client) -> None:
    beam = {**CHAT, "use_beam_search": True, "max_tokens": 1, "logprobs": True, "top_logprobs": 9}
    choice = client.post("/v1/chat/completions", beam).json()["choices"][0]
    assert len(choice["logprobs"]["content"][0]["top_logprobs"]) == 3
    hot = {**beam, "temperature": 5}
    assert client.post("/v1/chat/completions", hot).json()["error"]["param"] == "temperature"
    [error, *_] = events(client.post("/v1/chat/completions", {**hot, "stream": True}))
    assert error["error"]["code"] == 400


def test_beam_search_of_zero_tokens_returns_one_empty_choice_per_prompt() -> None:
    search = {"use_beam_search": True, "n": 3, "max_tokens": 0}
    with in_process() as client:
        chat = client.post("/v1/chat/completions", {"messages": [HELLO], **search}).json()
        texts = client.post("/v1/completions", {"prompt": ["a", "b"], **search}).json()
    assert [choice["message"]["content"] for choice in chat["choices"]] == [""]
    assert [choice["text"] for choice in texts["choices"]] == ["", ""]
    for answer in (chat, texts):
        assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}
        assert answer["usage"]["completion_tokens"] == 0
