"""Media of rendered chats, and of an encoder that serves other engines."""

import re

from tests.client import Client, in_process
from tests.extensions.scale_out.test_scale_out import MESSAGES, generate


def test_rendered_media_have_hashes_and_count_as_prompt_tokens(client: Client) -> None:
    content = [
        {"type": "text", "text": "Look at these, please, and tell me what you see"},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "image_url", "image_url": {"url": "https://example.com/b.png"}},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
    ]
    body = {"messages": [{"role": "user", "content": content}]}
    rendered = client.post("/v1/chat/completions/render", body).json()
    features = rendered["features"]
    assert {kind: len(names) for kind, names in features["mm_hashes"].items()} == {
        "image": 2,
        "audio": 1,
    }
    assert (
        client.post("/v1/chat/completions/render", {"messages": MESSAGES}).json()["features"]
        is None
    )
    chat = client.post("/v1/chat/completions", {**body, "max_tokens": 1}).json()
    features = chat["usage"]["prompt_tokens_details"]["multimodal_tokens"]
    assert set(features) == {"image", "audio"}
    alone = {"messages": [{"role": "user", "content": content[:1]}], "max_tokens": 1}
    texts = client.post("/v1/chat/completions", alone)
    line_breaks = 3  # the template's, behind each placeholder
    added_tokens = chat["usage"]["prompt_tokens"] - texts.json()["usage"]["prompt_tokens"]
    assert sum(features.values()) + line_breaks == added_tokens
    assert all(count > 0 for count in features.values())


def test_encoder_returns_placeholder_text_and_media_locations() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    with in_process("--mm-encoder-only", "--enable-scale-out", "--mode", "echo") as client:
        body = {"messages": [{"role": "user", "content": [image]}], "max_tokens": 3}
        completion = client.post("/v1/chat/completions", body).json()
        assert completion["choices"][0]["message"]["content"] == "!!!"
        assert completion["choices"][0]["finish_reason"] == "length"
        (name,) = completion["ec_transfer_params"]
        assert re.fullmatch("[0-9a-f]{64}", name)
        spans = [{"offset": 0, "length": 1}, {"offset": 1, "length": 2}]
        features = {"mm_hashes": {"image": ["h1", "h2"]}, "mm_placeholders": {"image": spans}}
        assert set(generate(client, features=features)["ec_transfer_params"]) == {"h1", "h2"}
        assert client.complete(max_tokens=2)["choices"][0]["text"] == "!!"
