"""Replies that a test sets, and the journal that it asks."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

import vllm_understudy
from tests.sdks import openai

CHATS = "/v1/chat/completions"


@pytest.fixture(scope="module")
def running() -> Iterator[vllm_understudy.Server]:
    with vllm_understudy.running_server(data_parallel_size=2, admin_key="secret") as server:
        yield server


@pytest.fixture
def server(running: vllm_understudy.Server) -> Iterator[vllm_understudy.Server]:
    yield running
    running.reset()
    assert running.requests() == []


def chat(server: vllm_understudy.Server, messages: Any, scope: str = "", **fields: Any) -> Any:
    headers = {"X-Understudy-Scope": scope} if scope else {}
    client = openai.OpenAI(base_url=server.base_url, api_key="sk-secret", default_headers=headers)
    return client.chat.completions.create(model="understudy-tiny", messages=messages, **fields)


def test_reply_rule_applies_only_within_its_scope_and_with_block(
    server: vllm_understudy.Server,
) -> None:
    hello = [{"role": "user", "content": "hello"}]
    with server.reply(
        {"message": "hello"}, then={"text": "Hi."}, name="greet", scope="one"
    ) as greeting:
        chunks = list(chat(server, hello, "one", stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hi."
        assert chat(server, hello).choices[0].message.content != "Hi."
        assert greeting.answered == 1
    assert chat(server, hello, "one").choices[0].message.content != "Hi."
    first, second = server.requests(route=CHATS, scope="one")
    assert first.rule and first.rule.endswith("(greet)") and second.rule is None
    assert (first.text, first.status, first.request["stream"]) == ("Hi.", 200, True)
    with pytest.raises(
        vllm_understudy.ControlError, match="unknown key 'contians'; did you mean contains"
    ):
        server.reply({"message": {"contians": "x"}}, then="pass")


def test_failed_assertion_shows_the_received_requests(
    server: vllm_understudy.Server,
) -> None:
    server.reply(then={"text": "Yes."})
    for city, scope in (("Rome", "one"), ("Oslo", "one"), ("Rome", "two")):
        chat(server, [{"role": "user", "content": f"weather in {city}"}], scope)
    assert len(server.assert_called(times=2, contains="Rome")) == 2
    server.assert_called(times=0, route="/v1/completions")
    with pytest.raises(AssertionError) as failed:
        server.assert_called(times=2, contains="Rome", scope="one")
    head, *lines = re.sub(r"[\d:.]{12} ", "", str(failed.value)).splitlines()
    assert head == "expected 2 requests, contains 'Rome', scope 'one'; of 3 in the journal 1 fit:"
    assert lines == [
        f"  fits: {CHATS} 200 'weather in Rome' -> 'Yes.'",
        f"  {CHATS} 200 'weather in Oslo' -> 'Yes.'",
        "      its body does not contain the text",
        f"  {CHATS} 200 'weather in Rome' -> 'Yes.'",
        "      scope is 'two'",
    ]
    server.reset()
    with pytest.raises(
        AssertionError, match="expected at least one request; of 0 in the journal 0 fit$"
    ):
        server.assert_called()
