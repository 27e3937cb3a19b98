"""The Responses family with the openai SDK, strict about every answer that it receives.

Strict validation refuses the events of a thought's parts, from a real vLLM as from us: the SDK does not know
them. They are read without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.conformance.recording import ENVIRONMENT, FLAGS
from tests.conformance.sdk import openai_client
from tests.conformance.wire.test_responses import LOGPROBS, WEATHER
from tests.running_server import RunningServer, running_server

MODEL = "tiny"


class Place(BaseModel):
    """What a reply is to look like."""

    name: str
    inhabitants: int
    is_capital: bool


@pytest.fixture(scope="module")
def thinking() -> Iterator[RunningServer]:
    """Keeps responses of a model that thinks."""
    flags = (*FLAGS, "--reasoning-parser", "qwen3", "--enable-responses-store")
    with running_server(*flags, env=ENVIRONMENT) as server:
        yield server


@pytest.fixture(scope="module")
def client(vllm: RunningServer) -> Iterator[openai.OpenAI]:
    with openai_client(vllm) as strict:
        yield strict


@pytest.fixture(scope="module")
def thinker(thinking: RunningServer) -> Iterator[openai.OpenAI]:
    with openai_client(thinking) as strict:
        yield strict


def create(client: openai.OpenAI, **asked: Any) -> Any:
    return client.responses.create(**{"model": MODEL, "input": "Say something.", **asked})


def test_a_response_counts_its_tokens(client: openai.OpenAI) -> None:
    response = create(client, max_output_tokens=5, instructions="Be brief.")
    assert (response.status, response.instructions) == ("incomplete", "Be brief.")
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output_text
    assert response.usage.output_tokens == 5
    assert response.usage.total_tokens == response.usage.input_tokens + 5


def test_a_streamed_response_is_the_whole_one_in_pieces(client: openai.OpenAI) -> None:
    asked = {"max_output_tokens": 40, "temperature": 0}
    whole = create(client, **asked)
    events = list(create(client, **asked, stream=True))
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


@pytest.mark.parametrize("most", [0, 2])
def test_each_token_has_its_log_probabilities(client: openai.OpenAI, most: int) -> None:
    asked = {**LOGPROBS, "top_logprobs": most, "max_output_tokens": 4}
    entries = create(client, **asked).output[0].content[0].logprobs
    assert [len(entry.top_logprobs) for entry in entries] == [most] * 4
    told = [
        entry
        for event in create(client, **asked, stream=True)
        if event.type == "response.output_text.delta"
        for entry in event.logprobs
    ]
    assert [len(entry.top_logprobs) for entry in told] == [most] * 4


def test_a_function_is_called_and_its_result_is_answered(client: openai.OpenAI) -> None:
    conversation: list[Any] = [{"role": "user", "content": "How is the weather in Oslo?"}]
    first = create(client, input=conversation, tools=[WEATHER])
    (call,) = first.output
    assert (call.type, call.name, call.status) == ("function_call", "weather", "completed")
    conversation += first.output
    conversation.append({"type": "function_call_output", "call_id": call.call_id, "output": "Rain."})
    second = create(client, input=conversation, tools=[WEATHER])
    assert second.output_text
    assert second.usage.input_tokens > first.usage.input_tokens


def test_the_stream_helper_gathers_the_arguments_of_a_call(client: openai.OpenAI) -> None:
    with client.responses.stream(model=MODEL, input="hi", tools=[WEATHER]) as stream:  # type: ignore[list-item]
        deltas = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        (call,) = stream.get_final_response().output
    assert call.type == "function_call"
    assert "".join(deltas) == call.arguments


def test_a_reply_is_parsed_into_a_model(client: openai.OpenAI) -> None:
    response = client.responses.parse(model=MODEL, input="A town, please.", text_format=Place)
    place = response.output_parsed
    assert isinstance(place, Place)


def test_thoughts_come_before_words(thinker: openai.OpenAI) -> None:
    response = create(thinker, reasoning={"effort": "low"})
    thought, message = response.output
    assert (thought.type, message.type) == ("reasoning", "message")
    assert thought.content[0].text
    assert response.usage.output_tokens_details.reasoning_tokens > 0
    again = create(thinker, input=[*response.output, {"role": "user", "content": "And?"}])
    assert again.output_text


def test_a_response_is_kept_and_continued(thinker: openai.OpenAI) -> None:
    first = create(thinker)
    assert thinker.responses.retrieve(first.id).output_text == first.output_text
    second = create(thinker, previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert second.usage.input_tokens > first.usage.input_tokens


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"model": "other"}, openai.NotFoundError),
        ({"previous_response_id": "resp_1"}, openai.NotFoundError),
        ({"temperature": 9}, openai.BadRequestError),
        ({"background": True}, openai.BadRequestError),
    ],
)
def test_errors_have_their_classes(
    client: openai.OpenAI, asked: dict[str, Any], error: type[openai.APIStatusError]
) -> None:
    with pytest.raises(error) as caught:
        create(client, stream=True, **asked)
    assert caught.value.message


def test_a_response_that_fails_in_its_stream_is_told(client: openai.OpenAI) -> None:
    *_, last = create(client, **LOGPROBS, top_logprobs=21, stream=True)
    assert last.type == "response.failed"
    assert (last.response.status, last.response.error.code) == ("failed", "invalid_prompt")
