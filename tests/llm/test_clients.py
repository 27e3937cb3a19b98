"""The SDKs of OpenAI and Anthropic, strict, before a model that computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.conformance.sdk import openai_client
from tests.llm.test_server import serving
from tests.running_server import RunningServer

pytestmark = pytest.mark.engine
MESSAGES: Any = [{"role": "user", "content": "Hello there"}]
ASKED: Any = {"model": "tiny", "messages": MESSAGES, "max_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def server(model: str) -> Iterator[RunningServer]:
    with serving(model, "--seed", "3") as server:
        yield server


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai_client(server) as client:
        yield client


def test_chats_whole_streamed_and_with_log_probabilities(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**ASKED)
    chunks = list(
        client.chat.completions.create(**ASKED, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert whole.usage and chunks[-1].usage and chunks[-1].usage.completion_tokens <= 12
    assert chunks[-1].usage == whole.usage
    told = client.chat.completions.create(**ASKED, logprobs=True, top_logprobs=3).choices[0].logprobs
    assert told and told.content
    for token in told.content:
        best = [other.logprob for other in token.top_logprobs]
        assert token.logprob == max(best) <= 0 and best == sorted(best, reverse=True)
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        client.chat.completions.create(**ASKED | {"max_tokens": 10**6})


def test_anthropics_messages_are_read_whole_and_streamed(server: RunningServer) -> None:
    with anthropic.Anthropic(
        base_url=server.url, auth_token="x", max_retries=0, timeout=20, _strict_response_validation=True
    ) as client:
        asked = {name: ASKED[name] for name in ("model", "messages", "max_tokens")}
        greedy = asked | {"extra_body": {"temperature": 0}}
        whole = client.messages.create(**greedy)
        with client.messages.stream(**greedy) as stream:
            streamed = stream.get_final_message()
    assert [(block.type, getattr(block, "text", "")) for block in whole.content] == [
        (block.type, getattr(block, "text", "")) for block in streamed.content
    ]
    assert whole.usage.output_tokens == streamed.usage.output_tokens > 0
