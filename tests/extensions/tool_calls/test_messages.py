"""Calls in constrained texts, as clients of messages get them."""

from typing import Any

import pytest
import requests

from tests.client import MODEL, events, in_process


@pytest.mark.parametrize("stream", [False, True])
def test_structured_output_like_a_tool_call_becomes_a_tool_use_block(
    stream: bool,
) -> None:
    call = {"name": "ping", "parameters": {}}
    body = {
        "model": MODEL,
        "max_tokens": 200,
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"name": "ping", "input_schema": {"type": "object"}}],
        "output_config": {"format": {"type": "json_schema", "schema": {"const": call}}},
        "stream": stream,
    }
    with in_process("--tool-call-parser", "llama3_json") as client:
        answer = client.post("/v1/messages", body)
    assert answer.status_code == 200, answer.text
    blocks = answer.json()["content"] if not stream else blocks_of(answer)
    assert [block["name"] for block in blocks] == ["ping"]


def blocks_of(answer: requests.Response) -> list[dict[str, Any]]:
    starts = [event.get("content_block") for event in events(answer)]
    return [block for block in starts if block]
