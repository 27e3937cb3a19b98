"""Routes of scale-out before and after the releases that changed them."""

import json
from typing import Any

from werkzeug.test import Client

from tests.application import app_of

GENERATE = "/inference/v1/generate"
TOKENS = {"token_ids": [5, 6], "sampling_params": {"max_tokens": 2}}
Body = dict[str, Any]


def client_of(version: str, *flags: str) -> Client:
    every = ("--enable-scale-out=true", "--server-dev-mode", "true", "--seed", "1")
    return app_of("--vllm-version", version, *every, *flags).test_client()


def answer_of(version: str, path: str, body: Body) -> Body:
    answer = client_of(version).post(path, json=body)
    assert answer.status_code == 200, answer.text
    result: Body = json.loads(answer.data)
    return result


def test_rendered_requests_have_new_fields_since_025_and_026() -> None:
    path = "/v1/chat/completions/render"
    body = {"messages": [{"role": "user", "content": "hi"}]}
    keys = {name: answer_of(name, path, body).keys() for name in ("0.24", "0.25", "0.26")}
    assert keys["0.25"] - keys["0.24"] == {"token_offsets", "assistant_tokens_mask"}
    assert keys["0.26"] - keys["0.25"] == {"ec_transfer_params"}


def test_generated_choices_have_routed_experts_since_022() -> None:
    old = answer_of("0.21", GENERATE, TOKENS)["choices"][0]
    new = answer_of("0.22", GENERATE, TOKENS)["choices"][0]
    assert new.keys() - old.keys() == {"routed_experts"}


def test_generation_is_streamed_since_020() -> None:
    body = {**TOKENS, "stream": True}
    assert len(answer_of("0.19", GENERATE, body)["choices"][0]["token_ids"]) == 2
    stream = client_of("0.20").post(GENERATE, json=body)
    assert stream.text.endswith("data: [DONE]\n\n")


def test_rank_is_checked_since_022() -> None:
    headers = {"X-data-parallel-rank": "7"}
    old = client_of("0.21").post(GENERATE, json=TOKENS, headers=headers)
    new = client_of("0.22").post(GENERATE, json=TOKENS, headers=headers)
    assert (old.status_code, new.status_code) == (200, 400)


def test_development_mode_can_abort_since_026() -> None:
    statuses = [
        client_of(version).post("/abort_requests", json={"request_ids": []}).status_code
        for version in ("0.25", "0.26")
    ]
    assert statuses == [404, 200]


def test_choices_of_one_request_are_whole_in_old_releases() -> None:
    body = {"token_ids": [5], "sampling_params": {"max_tokens": 1, "n": 2}}
    assert len(answer_of("0.19", GENERATE, body)["choices"]) == 1
    assert len(answer_of("0.30", GENERATE, body)["choices"]) == 2


def test_chosen_calls_have_a_structural_tag_since_024() -> None:
    flags = ("--enable-auto-tool-choice=true", "--tool-call-parser", "hermes")
    function = {"name": "ping", "parameters": {"type": "object"}}
    named = {"type": "function", "function": {"name": "ping"}}
    for choice in ("required", named):
        body = {
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [{"type": "function", "function": function}],
            "tool_choice": choice,
        }
        forms: list[Body] = []
        for version in ("0.23", "0.24"):
            answer = client_of(version, *flags).post("/v1/chat/completions/render", json=body)
            forms.append(json.loads(answer.data)["sampling_params"]["structured_outputs"])
        old, new = forms
        assert old["structural_tag"] is None
        assert isinstance(new["structural_tag"], str)
        call = old["json"]
        if choice == "required":
            [call] = old["json"]["items"]["anyOf"]
            assert call["properties"]["name"]["enum"] == ["ping"]
            call = call["properties"]["parameters"]
        assert call == function["parameters"]
