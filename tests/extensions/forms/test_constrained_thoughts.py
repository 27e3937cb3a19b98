"""Constraints that hold from the first token, so that their text contains the thoughts."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.client import Client, events, in_process

PING = {
    "type": "function",
    "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}},
}
CALL = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'
MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def thinking_client() -> Iterator[Client]:
    flags = (
        "--reasoning-parser",
        "qwen3",
        "--tool-call-parser",
        "hermes",
        "--structured-output-in-reasoning",
        "true",
    )
    with in_process(*flags) as client:
        yield client


def asked(client: Client, choice: str, **fields: Any) -> dict[str, Any]:
    chat = client.chat("Hi", structured_outputs={"choice": [choice]}, **fields)
    message = chat["choices"][0]["message"]
    return {
        "reasoning": message["reasoning"],
        "content": message["content"],
        "calls": [call["function"]["name"] for call in message.get("tool_calls") or ()],
    }


@pytest.mark.parametrize(
    ("choice", "fields", "message"),
    [
        ("<think>hm hm</think>yes", {}, ("hm hm", "yes", [])),
        ("yes", {}, ("yes", None, [])),
        ("<think>hm hm", {}, ("hm hm", None, [])),
        ("<think>hm</think>", {}, ("hm", None, [])),
        ("<think>\n\n</think>\n\nyes", {}, ("\n\n", "\n\nyes", [])),
        ("<think>hm</think>ok " + CALL, {"tools": [PING]}, ("hm", "ok ", ["ping"])),
        (f"<think>{CALL}</think>yes", {"tools": [PING]}, (None, None, ["ping"])),
        (f"<think>{CALL}</think>yes", {}, (CALL, "yes", [])),
        ("<think>hm hm</think>yes", {"stop": ["hm"]}, (None, None, [])),
        ("<think>hm hm</think>yes", {"stop": ["e"]}, ("hm hm", "y", [])),
    ],
)
def test_constrained_text_is_split_into_thoughts_text_and_calls(
    thinking_client: Client,
    choice: str,
    fields: dict[str, Any],
    message: tuple[str | None, str | None, list[str]],
) -> None:
    reasoning, content, calls = message
    expected = {"reasoning": reasoning, "content": content, "calls": calls}
    assert asked(thinking_client, choice, **fields) == expected


def test_streamed_constrained_thoughts_show_no_marks(thinking_client: Client) -> None:
    body = {
        "messages": MESSAGES,
        "stream": True,
        "n": 2,
        "structured_outputs": {"choice": ["<think>hm hm</think>yes"]},
    }
    texts = {0: ["", ""], 1: ["", ""]}
    for chunk in events(thinking_client.post("/v1/chat/completions", body)):
        for choice in chunk["choices"]:
            delta = choice["delta"]
            texts[choice["index"]][0] += delta.get("reasoning") or ""
            texts[choice["index"]][1] += delta.get("content") or ""
    assert texts == {0: ["hm hm", "yes"], 1: ["hm hm", "yes"]}


def test_hidden_thoughts_are_null_in_the_chunks_of_the_reply(thinking_client: Client) -> None:
    body = {
        "messages": MESSAGES,
        "stream": True,
        "include_reasoning": False,
        "tools": [PING],
        "structured_outputs": {"choice": ["<think>hm</think>ok " + CALL]},
    }
    stream = events(thinking_client.post("/v1/chat/completions", body))
    deltas = [choice["delta"] for chunk in stream for choice in chunk["choices"]]
    shown = [delta for delta in deltas[1:] if delta]
    assert any("tool_calls" in delta for delta in shown)
    assert all("reasoning" in delta and delta["reasoning"] is None for delta in shown), shown


def test_constraint_begins_after_the_thoughts_without_the_setting() -> None:
    with in_process("--reasoning-parser", "qwen3") as client:
        message = asked(client, "<think>hm hm</think>yes")
    assert message["content"] == "<think>hm hm</think>yes"
    assert message["reasoning"] not in (None, "", "hm hm")
