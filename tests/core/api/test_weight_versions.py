"""Fields of chats and completions that show the weights and cache transfers, by vLLM's version."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from werkzeug.test import Client

from tests.application import app_of

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    COMPLETIONS: {"prompt": "hi"},
}
THREE_TOKENS = {"max_tokens": 3, "ignore_eos": True}
SHOWN = {"return_weight_versions": True}
SPANS = [{"version": "default", "start": 0, "end": 3}]


def client_of(version: str, *flags: str) -> Client:
    return app_of("--vllm-version", version, "--seed", "1", *flags).test_client()


def answer_of(client: Client, path: str, **fields: Any) -> dict[str, Any]:
    answer = client.post(path, json=BODIES[path] | THREE_TOKENS | fields)
    assert answer.status_code == 200, answer.text
    assert answer.json is not None
    parsed: dict[str, Any] = answer.json
    return parsed


def chunks_of(client: Client, path: str, **fields: Any) -> Iterator[dict[str, Any]]:
    answer = client.post(path, json=BODIES[path] | THREE_TOKENS | fields | {"stream": True})
    for line in answer.text.splitlines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_choices_contain_weight_versions_on_request(path: str) -> None:
    client = client_of("0.33")
    assert answer_of(client, path)["choices"][0]["weight_versions"] is None
    [*_, last_key] = answer_of(client, path)["choices"][0]
    assert last_key == "weight_versions"
    assert answer_of(client, path, **SHOWN)["choices"][0]["weight_versions"] == SPANS


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_last_chunk_of_each_choice_contains_weight_versions(path: str) -> None:
    chunks = list(chunks_of(client_of("0.33"), path, n=2, **SHOWN))
    finished = [
        chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["finish_reason"] is not None
    ]
    assert [choice["weight_versions"] for choice in finished] == [SPANS, SPANS]


def test_chat_stream_shows_weight_versions_only_in_its_last_chunk() -> None:
    choices = [chunk["choices"][0] for chunk in chunks_of(client_of("0.33"), CHAT)]
    assert ["weight_versions" in choice for choice in choices] == [False, False, False, True]


def test_completion_stream_shows_weight_versions_in_every_chunk() -> None:
    choices = [chunk["choices"][0] for chunk in chunks_of(client_of("0.33"), COMPLETIONS)]
    assert [choice["weight_versions"] for choice in choices] == [None, None, None]


def test_only_role_and_usage_chunks_lack_transfer_parameters() -> None:
    options = {"stream_options": {"include_usage": True}}
    chunks = list(chunks_of(client_of("0.33"), CHAT, **options))
    shown = ["kv_transfer_params" in chunk for chunk in chunks]
    assert shown == [False, True, True, True, False]
    chunks = list(chunks_of(client_of("0.33"), COMPLETIONS, **options))
    assert ["kv_transfer_params" in chunk for chunk in chunks] == [True, True, True, False]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_last_chunk_of_a_prefill_contains_the_transfer_parameters(path: str) -> None:
    client = client_of("0.33", "--enable-kvcache")
    prefill = {"kv_transfer_params": {"do_remote_decode": True}}
    [*_, last] = chunks_of(client, path, **prefill)
    [*_, last_key] = last
    assert last_key == "kv_transfer_params"
    assert last["kv_transfer_params"]["do_remote_prefill"] is True


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_version_0_32_ignores_return_weight_versions(path: str) -> None:
    client = client_of("0.32")
    for value in (True, None, "no boolean"):
        [choice] = answer_of(client, path, return_weight_versions=value)["choices"]
        assert "weight_versions" not in choice
    for chunk in chunks_of(client, path, **SHOWN):
        assert "kv_transfer_params" not in chunk
        assert "weight_versions" not in chunk["choices"][0]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_version_0_33_rejects_a_non_boolean_return_weight_versions(
    path: str,
) -> None:
    body = BODIES[path] | {"return_weight_versions": "no boolean"}
    answer = client_of("0.33").post(path, json=body)
    assert answer.status_code == 400
    assert answer.json is not None
    assert answer.json["error"]["param"] == "body.return_weight_versions"
