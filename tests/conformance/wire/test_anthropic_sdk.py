"""The anthropic SDK, strict about every answer that it receives.

It is given its key as `auth_token`, which it sends the way vLLM expects it: `Authorization:
Bearer`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.running_server import RunningServer
from tests.sdks import anthropic
from vllm_understudy import Server

if TYPE_CHECKING:
    from anthropic.types import Message, MessageParam, ToolParam

MODEL = "tiny"
HELLO: MessageParam = {"role": "user", "content": "Say something."}

REPEATABLE = {"temperature": 0}
"""What the SDK has no argument for: the same prompt gets the same reply."""


WEATHER: ToolParam = {
    "name": "weather",
    "description": "The weather in a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}


def sdk(server: RunningServer | Server, strict: bool = True) -> anthropic.Anthropic:
    return anthropic.Anthropic(
        base_url=server.url,
        auth_token="x",
        max_retries=0,
        timeout=20,
        _strict_response_validation=strict,
    )


@pytest.fixture(scope="module")
def client(vllm: RunningServer) -> Iterator[anthropic.Anthropic]:
    with sdk(vllm) as strict:
        yield strict


@pytest.fixture(scope="module")
def thinker(thinking: RunningServer) -> Iterator[anthropic.Anthropic]:
    """Asks a model that thinks aloud:

    a streamed thought begins without the signature that SDKs ask for.
    """
    with sdk(thinking, strict=False) as lenient:
        yield lenient


def create(client: anthropic.Anthropic, **fields: Any) -> Any:
    return client.messages.create(
        **{"model": MODEL, "messages": [HELLO], "max_tokens": 5, **fields}
    )


def text_of(message: Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def test_stream_helper_assembles_the_complete_message(client: anthropic.Anthropic) -> None:
    whole = create(client, max_tokens=40, extra_body=REPEATABLE)
    fields: dict[str, Any] = {
        "model": MODEL,
        "messages": [HELLO],
        "max_tokens": 40,
        "extra_body": REPEATABLE,
    }
    with client.messages.stream(**fields) as stream:
        texts = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(texts) == text_of(final) == text_of(whole)
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"model": "other"}, "NotFoundError"),
        ({"max_tokens": 0}, "BadRequestError"),
        (
            {"messages": [{"role": "user", "content": "w" * (5 << 20)}]},
            "RequestTooLargeError",
        ),
    ],
)
def test_errors_raise_the_exception_classes_of_the_sdk(
    client: anthropic.Anthropic, fields: dict[str, Any], error: str
) -> None:
    with pytest.raises(getattr(anthropic, error)) as caught:
        create(client, stream=True, **fields)
    assert caught.value.message


def test_error_event_in_a_stream_raises_api_status_error(client: anthropic.Anthropic) -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    stream = create(client, max_tokens=1500, thinking=thinking, stream=True)
    with pytest.raises(anthropic.APIStatusError) as caught:
        list(stream)
    assert caught.value.body["error"]["type"] == "BadRequestError"  # type: ignore[index]


def test_tool_use_and_tool_result_complete_a_conversation(client: anthropic.Anthropic) -> None:
    fields: dict[str, Any] = {"tools": [WEATHER], "max_tokens": 200}
    message = create(client, **fields, tool_choice={"type": "any"})
    (use,) = message.content
    assert (message.stop_reason, use.type, use.name) == ("tool_use", "tool_use", "weather")
    assert isinstance(use.input, dict)
    result = {
        "type": "tool_result",
        "tool_use_id": use.id,
        "content": [{"type": "text", "text": "sunny"}],
    }
    turns = [
        HELLO,
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result]},
    ]
    assert text_of(create(client, **fields, messages=turns, tool_choice={"type": "none"}))


def test_thinking_block_precedes_the_text_block(thinker: anthropic.Anthropic) -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    message = create(thinker, max_tokens=1500, thinking=thinking)
    thought, text = message.content
    assert (thought.type, text.type) == ("thinking", "text")
    assert thought.thinking and thought.signature
    turns = [HELLO, {"role": "assistant", "content": message.content}, HELLO]
    assert text_of(create(thinker, max_tokens=100, messages=turns))


def beta(client: anthropic.Anthropic, stream: bool, **fields: Any) -> Any:
    """The reply of the beta, whole or as a stream tells it."""
    body = {"model": MODEL, "max_tokens": 200, "extra_body": REPEATABLE, **fields}
    if not stream:
        return client.beta.messages.create(**body)
    with client.beta.messages.stream(**body) as events:
        return events.get_final_message()


def prompt_tokens(message: Any) -> int:
    """All tokens of the prompt: those from the cache are counted apart."""
    usage = message.usage
    cached: int = usage.cache_read_input_tokens + usage.cache_creation_input_tokens
    total: int = usage.input_tokens + cached
    return total


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_continued_thread_has_the_same_prompt_as_the_whole_conversation(
    client: anthropic.Anthropic, stream: bool
) -> None:
    called: dict[str, Any] = {
        "system": "Be brief.",
        "tools": [WEATHER],
        "tool_choice": {"type": "any"},
    }
    first = beta(client, stream, messages=[HELLO], thread={"type": "create"}, **called)
    (use,) = first.content
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "Rain."}
    turn: Any = {"role": "user", "content": [result, {"type": "text", "text": "And now?"}]}
    calm = {"tool_choice": {"type": "none"}}
    going_on = {"type": "continue", "previous_message_id": first.id}
    second = beta(client, stream, messages=[turn], thread=going_on, **calm)
    turns = [HELLO, {"role": "assistant", "content": first.content}, turn]
    whole = beta(client, stream, messages=turns, **{**called, **calm})
    assert prompt_tokens(second) == prompt_tokens(whole) > prompt_tokens(first)
    assert second.content == whole.content
    continuation = {"type": "continue", "previous_message_id": second.id}
    third = beta(client, stream, messages=[HELLO], thread=continuation, **calm)
    assert prompt_tokens(third) > prompt_tokens(second)


def test_sdk_raises_a_not_found_error_for_an_unknown_thread(
    client: anthropic.Anthropic,
) -> None:
    lost: Any = {"type": "continue", "previous_message_id": "msg_lost"}
    with pytest.raises(anthropic.NotFoundError) as refused:
        beta(client, False, messages=[HELLO], thread=lost)
    error: Any = refused.value.body
    assert error["error"]["details"] == {"error_code": "thread_not_found"}
    thread = client.beta.messages.thread(model=MODEL, max_tokens=8, messages=[HELLO])
    first = thread.send()
    assert thread.previous_message_id == first.id
    second = thread.send({"role": "user", "content": "More."})
    assert second.usage.input_tokens > first.usage.input_tokens and len(thread.messages) == 4
