"""The openai SDK, strict about every answer that it receives.

Strict validation refuses some answers from a real vLLM as from us, for vLLM sends null where the SDK's models
have none: `REFUSED` names the fields. Those are read without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletionMessageParam

from tests.conformance.recording import CASES, MORE_CASES, recorded
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


REFUSED = {
    "stream": {"finish_reason"},
    "echo": {"token_logprobs", "top_logprobs"},
    "echo in a stream": {"finish_reason", "token_logprobs", "top_logprobs"},
}
"""Fields in which a text completion has a null that the SDK's models do not know: before the last chunk there
is no reason to finish, and the first token of a prompt has no probability. The recording has them all."""


@pytest.mark.parametrize("case", REFUSED)
def test_strict_validation_refuses_what_it_refuses_of_vllm(client: openai.OpenAI, case: str) -> None:
    asked: dict[str, Any] = {"echo": True, "logprobs": 1} if "echo" in case else {}
    raw = client.completions.with_raw_response.create(
        model=MODEL, prompt="hello world", max_tokens=3, stream="stream" in case, **asked
    )
    fields = refused_fields(raw.http_response.read().decode())
    assert fields == REFUSED[case]
    with pytest.raises(openai.APIResponseValidationError):
        told = client.completions.create(
            model=MODEL, prompt="hello world", max_tokens=3, stream="stream" in case, **asked
        )
        next(iter(told))


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "case"),
    [("text_stream", "stream"), ("text_echo_logprobs", "echo"), ("text_echo_stream", "stream")],
)
def test_a_recorded_vllm_is_refused_in_the_same_fields(name: str, case: str) -> None:
    (body,) = [
        told["body"] for cases in (CASES, MORE_CASES) for told in recorded(cases) if told["name"] == name
    ]
    assert refused_fields(body) == REFUSED[case]


def refused_fields(body: str) -> set[str]:
    """Names of the fields of a text completion, whole or in chunks, that the SDK's own models refuse."""
    events = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith(("data: {", "{"))]
    refused: set[str] = set()
    for event in events:
        try:
            Completion.model_validate_json(event)
        except pydantic.ValidationError as error:
            refused |= {
                [part for part in each["loc"] if isinstance(part, str)][-1] for each in error.errors()
            }
    return refused


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="nope", messages=MESSAGES)
    assert (caught.value.type, caught.value.param) == ("NotFoundError", "model")
