"""Prompts that differ only in an image have blocks of their own, whichever API they come by."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.surface.conftest import Client, served

TEXT = "What is there to be seen in this picture, and what is it that one does not see at once?"
HITS = "vllm:prefix_cache_hits_total"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with served("--enable-kvcache", "--block-size", "8", "--zmq-endpoint", "") as client:
        yield client


def chat(client: Client, image: str) -> None:
    parts = [{"type": "image_url", "image_url": {"url": image}}, {"type": "text", "text": TEXT}]
    ask(client, "/v1/chat/completions", messages=[{"role": "user", "content": parts}], max_tokens=1)


def message(client: Client, image: str) -> None:
    parts = [
        {"type": "image", "source": {"type": "url", "url": image}},
        {"type": "text", "text": TEXT},
    ]
    ask(client, "/v1/messages", messages=[{"role": "user", "content": parts}], max_tokens=1)


def response(client: Client, image: str) -> None:
    parts = [{"type": "input_image", "image_url": image}, {"type": "input_text", "text": TEXT}]
    asked = [{"type": "message", "role": "user", "content": parts}]
    ask(client, "/v1/responses", input=asked, max_output_tokens=1)


def ask(client: Client, path: str, **body: object) -> None:
    answer = client.post(path, {"model": "base", **body})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("tell", [chat, message, response])
def test_another_image_is_another_prompt(client: Client, tell: Callable[[Client, str], None]) -> None:
    hits = [client.metric(HITS)]
    for image in ("one", "one", "other"):
        tell(client, f"https://example.com/{tell.__name__}/{image}.png")
        hits.append(client.metric(HITS))
    assert hits[0] == hits[1] < hits[2] == hits[3]
