"""A reply that ends of itself ends with a token for that, in every family; forms and biases show it
best.
"""

from typing import Any

import pytest

from tests.client import Client, events

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
CHOICE = {"structured_outputs": {"choice": ["x"]}}
END = "<|endoftext|>"


@pytest.fixture(scope="module")
def ids(client: Client) -> list[int]:
    """Of "x" and of the end of text."""
    return [client.post("/tokenize", {"prompt": text}).json()["tokens"][0] for text in ("x", END)]


@pytest.mark.parametrize(
    ("path", "body"), [("chat/completions", CHAT), ("completions", {"prompt": "hi"})]
)
def test_end_of_text_token_counts_as_an_output_token(
    client: Client, ids: list[int], path: str, body: Any
) -> None:
    fields = {**body, **CHOICE, "return_token_ids": True, "logprobs": 1, "max_tokens": 9}
    whole = client.post(f"/v1/{path}", fields).json()
    assert (
        whole["choices"][0]["token_ids"] == ids and whole["choices"][0]["finish_reason"] == "stop"
    )
    assert whole["usage"]["completion_tokens"] == 2
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *_, text, last, usage = events(client.post(f"/v1/{path}", {**fields, **options}))
    [shown], [end] = text["choices"], last["choices"]
    assert (shown["token_ids"], shown["finish_reason"]) == (ids[:1], None)
    assert (end["token_ids"], end["finish_reason"], end["stop_reason"]) == (ids[1:], "stop", None)
    assert end["delta"] == {"content": ""} if "chat" in path else end["text"] == ""
    full = client.post(f"/v1/{path}", {**fields, "max_tokens": 1}).json()["choices"][0]
    assert (full["token_ids"], full["finish_reason"]) == (ids[:1], "length"), (
        "a full reply has no such token"
    )
    names = [token["token"] for token in end["logprobs"].get("content", ())] or end["logprobs"][
        "tokens"
    ]
    assert names == [END] and usage["usage"]["completion_tokens"] == 2
