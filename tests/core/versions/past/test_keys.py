"""API keys, and forced usage, before and after the releases that changed them."""

import json
from typing import Any

import pytest
from werkzeug.test import Client

from tests.application import app_of

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
CHAT = "/v1/chat/completions"


def client_of(version: str, *flags: str) -> Client:
    return app_of("--vllm-version", version, "--force-dummy-tokenizer", *flags).test_client()


@pytest.mark.parametrize(
    ("path", "release"),
    [("/v2/nothing", ("0.21", "0.22")), ("/inference/nothing", ("0.21", "0.22"))],
)
def test_guarded_paths(path: str, release: tuple[str, str]) -> None:
    statuses = [client_of(version, "--api-key", "k").get(path).status_code for version in release]
    assert statuses == [404, 401]


def test_chats_need_a_key_in_each_version() -> None:
    for version in ("0.10", "0.21", "0.26", "0.33"):
        assert client_of(version, "--api-key", "k").post(CHAT, json=HELLO).status_code == 401


@pytest.mark.parametrize(("version", "status"), [("0.10", 401), ("0.11", 200)])
def test_small_letters_before_a_key(version: str, status: int) -> None:
    client = client_of(version, "--api-key", "k")
    answer = client.post(CHAT, json=HELLO, headers={"Authorization": "bearer k"})
    assert answer.status_code == status
    assert client.post(CHAT, json=HELLO, headers={"Authorization": "Bearer k"}).status_code == 200


@pytest.mark.parametrize(("version", "has_each"), [("0.18", False), ("0.19", True)])
@pytest.mark.parametrize("fields", [{}, {"seed": 1, "logprobs": True}])
def test_forced_usage_of_a_stream(version: str, has_each: bool, fields: dict[str, Any]) -> None:
    client = client_of(version, "--enable-force-include-usage")
    lines = client.post(CHAT, json={**HELLO, **fields, "stream": True}).text.split("\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    assert [bool(chunk.get("usage")) for chunk in chunks[:-1]] == [has_each] * (len(chunks) - 1)
    assert chunks[-1]["usage"]


@pytest.mark.parametrize(("version", "has_id"), [("0.17", True), ("0.19", False), ("0.26", True)])
def test_request_ids_of_raised_errors(version: str, has_id: bool) -> None:
    client = client_of(version, "--enable-request-id-headers", "--max-logprobs", "3")
    answer = client.post(CHAT, json={**HELLO, "logprobs": True, "top_logprobs": 4})
    assert answer.status_code == 400
    assert ("X-Request-Id" in answer.headers) == has_id
