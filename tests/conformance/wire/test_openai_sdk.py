"""The openai SDK, strict about every answer that it receives.

Strict validation refuses streams of completions from a real vLLM as from us, for vLLM sends a null
reason to finish where the SDK's models have none, and the events of a thought's parts, which the
SDK does not know.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from tests.conformance.clients import openai_client
from tests.conformance.wire.test_responses import LOGPROBS, WEATHER
from tests.running_server import RunningServer
from tests.sdks import openai

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageParam

MODEL = "tiny"
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Say something."}]


class Place(BaseModel):
    name: str
    inhabitants: int
    is_capital: bool


@pytest.fixture(scope="module")
def client(vllm: RunningServer) -> Iterator[openai.OpenAI]:
    with openai_client(vllm, strict=True) as strict:
        yield strict


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(model=MODEL, messages=MESSAGES, **fields)


def test_concatenated_chunks_of_a_streamed_chat_equal_the_complete_chat(
    client: openai.OpenAI,
) -> None:
    whole = chat(client, max_tokens=40, seed=1).choices[0]
    chunks = list(chat(client, max_tokens=40, seed=1, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.message.content
    )
    assert chunks[-1].choices[0].finish_reason == whole.finish_reason
    assert all(chunk.usage is None for chunk in chunks)


def test_stream_helper_assembles_the_complete_reply(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, stop=["e", "a", " "]
    ) as stream:
        contents = [event.delta for event in stream if event.type == "content.delta"]
        reply = stream.get_final_completion().choices[0]
    assert reply.finish_reason == "stop"
    assert reply.message.content == "".join(contents)


# The Responses family


def create(client: openai.OpenAI, **fields: Any) -> Any:
    return client.responses.create(**{"model": MODEL, "input": "Say something.", **fields})


def test_streamed_deltas_of_a_response_equal_the_complete_text(
    client: openai.OpenAI,
) -> None:
    fields = {"max_output_tokens": 40, "temperature": 0}
    whole = create(client, **fields)
    events = list(create(client, **fields, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    types = [event.type for event in events]
    assert types[:4] == [
        *("response.created", "response.in_progress"),
        *("response.output_item.added", "response.content_part.added"),
    ]
    assert set(types[4:-4]) == {"response.output_text.delta"}
    assert types[-4:] == [
        *("response.output_text.done", "response.content_part.done"),
        *("response.output_item.done", "response.completed"),
    ]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text == events[-1].response.output_text


def test_function_call_and_its_result_complete_a_conversation(client: openai.OpenAI) -> None:
    conversation: list[Any] = [{"role": "user", "content": "How is the weather in Oslo?"}]
    first = create(client, input=conversation, tools=[WEATHER])
    (call,) = first.output
    assert (call.type, call.name, call.status) == ("function_call", "weather", "completed")
    conversation += first.output
    conversation.append(
        {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}
    )
    second = create(client, input=conversation, tools=[WEATHER])
    assert second.output_text
    assert second.usage.input_tokens > first.usage.input_tokens


def test_reply_is_parsed_into_a_pydantic_model(client: openai.OpenAI) -> None:
    response = client.responses.parse(model=MODEL, input="A town, please.", text_format=Place)
    place = response.output_parsed
    assert isinstance(place, Place)


def test_reasoning_item_precedes_the_message(thinking: RunningServer) -> None:
    with openai_client(thinking) as thinker:
        response = create(thinker, reasoning={"effort": "low"})
        thought, message = response.output
        assert (thought.type, message.type) == ("reasoning", "message")
        assert thought.content[0].text
        assert response.usage.output_tokens_details.reasoning_tokens > 0
        answer = create(thinker, input=[*response.output, {"role": "user", "content": "And?"}])
        assert answer.output_text


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"model": "other"}, "NotFoundError"),
        ({"previous_response_id": "resp_1"}, "NotFoundError"),
        ({"temperature": 9}, "BadRequestError"),
        ({"background": True}, "BadRequestError"),
    ],
)
def test_errors_raise_the_exception_classes_of_the_sdk(
    client: openai.OpenAI, fields: dict[str, Any], error: str
) -> None:
    with pytest.raises(getattr(openai, error)) as caught:
        create(client, stream=True, **fields)
    assert caught.value.message


def test_stream_of_a_failed_response_ends_with_a_response_failed_event(
    client: openai.OpenAI,
) -> None:
    *_, last = create(client, **LOGPROBS, top_logprobs=21, stream=True)
    assert last.type == "response.failed"
    assert (last.response.status, last.response.error.code) == ("failed", "invalid_prompt")
