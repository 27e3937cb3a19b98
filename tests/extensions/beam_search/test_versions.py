"""Beam searches in the two versions of vLLM."""

import json
from typing import Any

import pytest

from tests.application import app_of

CHAT = "/v1/chat/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    "/v1/completions": {"prompt": "hi", "max_tokens": 2},
}


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
@pytest.mark.parametrize("token_ids", [[1, 2], []])
def test_beam_search_with_allowed_token_ids_is_rejected_from_version_0_33(
    path: str, token_ids: list[int]
) -> None:
    search = {"use_beam_search": True, "n": 2, "allowed_token_ids": token_ids}
    old = app_of("--vllm-version", "0.32").test_client()
    assert old.post(path, json=BODIES[path] | search).status_code == 200
    client = app_of("--vllm-version", "0.33").test_client()
    answer = client.post(path, json=BODIES[path] | search)
    assert answer.status_code == 400
    assert json.loads(answer.data)["error"]["type"] == "BadRequestError"
    assert client.post(path, json=BODIES[path] | search | {"n": 0}).status_code == 400
    search["allowed_token_ids"] = None
    assert client.post(path, json=BODIES[path] | search).status_code == 200


def test_streamed_beam_search_with_allowed_token_ids_sends_an_error_event() -> None:
    client = app_of("--vllm-version", "0.33").test_client()
    search = {"use_beam_search": True, "allowed_token_ids": [1], "stream": True}
    answer = client.post(CHAT, json=BODIES[CHAT] | search)
    assert answer.status_code == 200
    assert '"code":400' in answer.text


def test_beams_have_no_weight_versions() -> None:
    client = app_of("--vllm-version", "0.33").test_client()
    search = {"use_beam_search": True, "n": 2, "return_weight_versions": True}
    answer = client.post(CHAT, json=BODIES[CHAT] | search)
    choices = json.loads(answer.data)["choices"]
    assert [choice["weight_versions"] for choice in choices] == [None, None]
