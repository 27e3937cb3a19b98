"""The openai SDK, strict about every answer that it receives.

Strict validation refuses streams of completions from a real vLLM as from us, for vLLM sends a null reason to
finish where the SDK's models have none. Those are read without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.conformance.sdk import openai_client
from tests.running_server import RunningServer

MODEL = "tiny"
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Say something."}]


@pytest.fixture(scope="module")
def client(vllm: RunningServer) -> Iterator[openai.OpenAI]:
    with openai_client(vllm, strict=True) as strict:
        yield strict


@pytest.fixture(scope="module")
def lenient(vllm: RunningServer) -> Iterator[openai.OpenAI]:
    with openai_client(vllm, strict=False) as lenient:
        yield lenient


def chat(client: openai.OpenAI, **asked: Any) -> Any:
    return client.chat.completions.create(model=MODEL, messages=MESSAGES, **asked)


def test_the_model_is_listed(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.owned_by) == (MODEL, "vllm")


def test_a_chat_counts_its_tokens(client: openai.OpenAI) -> None:
    reply = chat(client, max_tokens=5)
    assert reply.choices[0].message.content
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.completion_tokens == 5
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 5


def test_a_streamed_chat_is_the_whole_one_in_pieces(client: openai.OpenAI) -> None:
    whole = chat(client, max_tokens=40, seed=1).choices[0]
    chunks = list(chat(client, max_tokens=40, seed=1, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.message.content
    assert chunks[-1].choices[0].finish_reason == whole.finish_reason
    assert all(chunk.usage is None for chunk in chunks)


def test_the_stream_helper_gathers_the_reply(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES, stop=["e", "a", " "]) as stream:
        contents = [event.delta for event in stream if event.type == "content.delta"]
        reply = stream.get_final_completion().choices[0]
    assert reply.finish_reason == "stop"
    assert reply.message.content == "".join(contents)


PROMPTS = [
    pytest.param("hello", 1, id="text"),
    pytest.param(["hello", "world"], 2, id="texts"),
    pytest.param([1, 2, 3], 1, id="ids"),
    pytest.param([[1, 2], [3]], 2, id="lists-of-ids"),
]


@pytest.mark.parametrize(("prompt", "count"), PROMPTS)
def test_a_completion_takes_every_form_of_prompt(client: openai.OpenAI, prompt: Any, count: int) -> None:
    reply = client.completions.create(model=MODEL, prompt=prompt, max_tokens=3)
    assert [choice.index for choice in reply.choices] == list(range(count))
    assert reply.usage is not None and reply.usage.completion_tokens == 3 * count


def test_a_streamed_completion_is_the_whole_one_in_pieces(lenient: openai.OpenAI) -> None:
    whole = lenient.completions.create(model=MODEL, prompt="hello", max_tokens=30, seed=1).choices[0]
    chunks = list(lenient.completions.create(model=MODEL, prompt="hello", max_tokens=30, seed=1, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.text
    assert chunks[-1].choices[0].finish_reason == whole.finish_reason
