"""Requests of every API end with a token for that, and follow biases."""

import pytest

from tests.client import Client
from tests.surface.test_endings import CHAT, END


@pytest.fixture(scope="module")
def ids(client: Client) -> list[int]:
    """Of "x" and of the end of text."""
    return [client.post("/tokenize", {"prompt": text}).json()["tokens"][0] for text in ("x", END)]


def test_end_of_text_token_counts_as_an_output_token_in_every_api(
    client: Client, ids: list[int]
) -> None:
    tokens = client.post("/tokenize", {"prompt": "hi"}).json()["tokens"]
    sampling = {"max_tokens": 9, "structured_outputs": {"choice": ["x"]}}
    generated = client.post(
        "/inference/v1/generate", {"token_ids": tokens, "sampling_params": sampling}
    )
    assert generated.json()["choices"][0]["token_ids"] == ids
    forced = {"input": "hi", "logit_bias": {str(ids[1]): 100}}
    response = client.post("/v1/responses", forced).json()
    assert response["usage"]["output_tokens"] == 1 and response["status"] == "completed"
    fields = {**CHAT, "model": "base", "max_tokens": 300}
    message = client.post("/v1/messages", fields).json()
    text = message["content"][0]["text"]
    text_tokens = len(client.post("/tokenize", {"prompt": text}).json()["tokens"])
    ends = message["stop_reason"] == "end_turn"
    assert message["usage"]["output_tokens"] == text_tokens + ends


@pytest.mark.parametrize("n", [1, 2])
def test_logit_bias_and_allowed_token_ids_apply_in_every_api(
    client: Client, ids: list[int], n: int
) -> None:
    for steered in ({"logit_bias": {str(ids[0]): 100}}, {"allowed_token_ids": ids[:1]}):
        fields = {**steered, "n": n, "max_tokens": 4}
        chat = client.post("/v1/chat/completions", {**CHAT, **fields}).json()
        assert [choice["message"]["content"] for choice in chat["choices"]] == ["xxxx"] * n
        text = client.post("/v1/completions", {"prompt": "hi", **fields}).json()
        assert [choice["text"] for choice in text["choices"]] == ["xxxx"] * n
        generated = client.post(
            "/inference/v1/generate", {"token_ids": [1], "sampling_params": fields}
        )
        assert [choice["token_ids"] for choice in generated.json()["choices"]] == [ids[:1] * 4] * n
    fields = {"input": "hi", "max_output_tokens": 4, "logit_bias": {str(ids[0]): 100}}
    assert client.post("/v1/responses", fields).json()["output"][0]["content"][0]["text"] == "xxxx"
