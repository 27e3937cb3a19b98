"""Values of request fields that only one version of vLLM accepts."""

import json
from typing import Any

import pytest

from tests.application import app_of
from tests.present import is_present

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO, "max_tokens": 2},
    "/v1/completions": {"prompt": "hi", "max_tokens": 2},
}
FLAGS: tuple[str, ...] = ()
if is_present("responses"):
    BODIES["/v1/responses"] = {"input": "hi", "max_output_tokens": 2}
    FLAGS = ("--enable-responses-store",)
if is_present("chat_batch"):
    BODIES["/v1/chat/completions/batch"] = {"messages": [HELLO], "max_tokens": 2}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(("version", "status"), [("0.32", 400), ("0.33", 200)])
def test_null_skip_special_tokens_is_accepted_from_version_0_33(
    path: str, version: str, status: int
) -> None:
    client = app_of("--vllm-version", version, *FLAGS).test_client()
    answer = client.post(path, json=BODIES[path] | {"skip_special_tokens": None})
    assert answer.status_code == status
    wrong = client.post(path, json=BODIES[path] | {"skip_special_tokens": "perhaps"})
    assert wrong.status_code == 400


@pytest.mark.parametrize(("version", "status"), [("0.32", 400), ("0.33", 200)])
def test_truncated_chat_prompt_leaves_room_for_one_token_from_version_0_33(
    version: str, status: int
) -> None:
    client = app_of("--vllm-version", version, "--max-model-len", "32").test_client()
    messages = [{"role": "user", "content": "word " * 60}]
    chat = {"messages": messages, "truncate_prompt_tokens": -1}
    answer = client.post(CHAT, json=chat)
    assert answer.status_code == status
    if status == 200:
        usage = json.loads(answer.data)["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (31, 1)
    assert client.post(CHAT, json=chat | {"max_tokens": 1}).status_code == 200
