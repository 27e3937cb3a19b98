"""`stream_interval` of a request: the first token, then events of several tokens, then the rest."""

from typing import Any

import pytest

from tests.client import Client, events

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
}
FIELDS: dict[str, Any] = {
    "max_tokens": 40,
    "ignore_eos": True,
    "seed": 3,
    "logprobs": True,
    "return_token_ids": True,
}


def streamed(client: Client, path: str, **fields: Any) -> list[dict[str, Any]]:
    """Returns the choices of the events that have tokens."""
    fields = {**BODIES[path], **FIELDS, "stream": True, **fields}
    choices = [event["choices"][0] for event in events(client.post(path, fields))]
    return [choice for choice in choices if choice.get("token_ids")]


def text_of(choice: dict[str, Any]) -> str:
    text: str = choice.get("delta", {}).get("content") or choice.get("text", "")
    return text


@pytest.mark.parametrize("path", BODIES)
def test_stream_interval_joins_tokens_into_fewer_events(client: Client, path: str) -> None:
    single = streamed(client, path)
    joined = streamed(client, path, stream_interval=20)
    assert [len(choice["token_ids"]) for choice in single] == [1] * 40
    assert [len(choice["token_ids"]) for choice in joined] == [1, 20, 19]
    assert "".join(map(text_of, joined)) == "".join(map(text_of, single))
    assert [choice["finish_reason"] for choice in joined] == [None, None, "length"]


@pytest.mark.parametrize("path", BODIES)
def test_joined_plain_tokens_are_all_counted_in_the_usage(client: Client, path: str) -> None:
    body = {**BODIES[path], "max_tokens": 40, "ignore_eos": True, "stream": True}
    options = {"include_usage": True, "continuous_usage_stats": False}
    answer = events(client.post(path, {**body, "stream_options": options, "stream_interval": 7}))
    assert answer[-1]["usage"]["completion_tokens"] == 40
    texts = [event["choices"][0] for event in answer if event["choices"]]
    has_role = path == "/v1/chat/completions"
    assert len(texts) == 7 + has_role  # 1 + 5 * 7 + 4 tokens, after the role of a chat
