"""Clients before the verdict: one that behaves, and several that do not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.conformance.clients import openai_client
from tests.extensions.faults.client import CHAT, TEXT, TOKENS, Asker, ask, question
from tests.hostile.raw_client import wait_until
from tests.running_server import RunningServer
from tests.sdks import openai

MESSAGES: Any = [{"role": "user", "content": "Say something."}]


@pytest.fixture
def sdk(faulty: RunningServer) -> Iterator[openai.OpenAI]:
    with openai_client(faulty, api_key="sdk", max_retries=2) as client:
        yield client


def verdict(server: RunningServer, over: bool = False) -> dict[str, Any]:
    report = requests.get(server.url + "/admin/verdict", params={"over": over}, timeout=20)
    report.raise_for_status()
    body: dict[str, Any] = report.json()
    return body


def conduct(server: RunningServer, over: bool = False) -> dict[str, Any]:
    (only,) = verdict(server, over)["clients"].values()
    counters: dict[str, Any] = only
    return counters


def kinds(server: RunningServer, over: bool = False) -> set[str]:
    return {finding["kind"] for finding in conduct(server, over)["findings"]}


def chat(client: openai.OpenAI, fault: str, **fields: Any) -> Any:
    return client.chat.completions.create(
        model="understudy-tiny",
        messages=MESSAGES,
        max_tokens=TOKENS,
        extra_headers={"X-Fault": fault},
        **fields,
    )


def test_openai_sdk_honors_retry_after(faulty: RunningServer, sdk: openai.OpenAI) -> None:
    reply = chat(sdk, "error; status=429; retry_after=1; times=2")
    assert reply.usage.completion_tokens == TOKENS
    seen = conduct(faulty)
    assert seen["errors"] == {"429": 2} and seen["faults"] == {"error": 2} and seen["requests"] == 3
    assert seen["findings"] == [] and verdict(faulty, over=True)["clean"] is True


def test_openai_sdk_retries_a_broken_connection(faulty: RunningServer, sdk: openai.OpenAI) -> None:
    assert chat(sdk, "disconnect; times=1").choices
    assert conduct(faulty)["faults"] == {"disconnect": 1} and kinds(faulty, over=True) == set()


def test_openai_sdk_raises_an_exception_for_each_fault(
    faulty: RunningServer, sdk: openai.OpenAI
) -> None:
    hasty = sdk.with_options(max_retries=0)
    with pytest.raises(openai.RateLimitError) as limited:
        chat(hasty, "error; status=429; type=RateLimitError; message=enough")
    assert limited.value.type == "RateLimitError" and "enough" in limited.value.message
    with pytest.raises(openai.APIConnectionError):
        chat(hasty, "disconnect")
    with pytest.raises(json.JSONDecodeError):
        list(chat(hasty, "malformed-chunk; chunk=2", stream=True))
    with pytest.raises(openai.APIConnectionError):
        chat(hasty, "disconnect; after=1")
    with pytest.raises(openai.APITimeoutError):
        chat(hasty.with_options(timeout=0.3), "slow-first-token; seconds=3600")


def test_openai_sdk_does_not_notice_a_truncated_stream(
    faulty: RunningServer, sdk: openai.OpenAI
) -> None:
    """Which is what the finding is for; the finish reason is all that a program could look at."""
    chunks = list(chat(sdk, "truncate; after=3", stream=True))
    assert len(chunks) == 3 and all(chunk.choices[0].finish_reason is None for chunk in chunks)
    wait_until(lambda: conduct(faulty)["awaiting_retry"] == 1)
    assert kinds(faulty) == set()
    assert kinds(faulty, over=True) == {"truncated_stream_not_retried"}


def test_each_client_is_audited_separately_under_a_hidden_key(faulty: RunningServer) -> None:
    for key, times in (("good", 1), ("bad", 3)):
        for _ in range(times):
            ask(
                faulty.port,
                TEXT,
                False,
                "error; status=429; retry_after=60",
                Authorization=f"Bearer {key}",
            )
    ask(faulty.port, TEXT, False, "error; status=429", X_Api_Key="other")
    ask(faulty.port, TEXT, False, "error; status=429")
    clients = verdict(faulty)["clients"]
    assert sorted(client["requests"] for client in clients.values()) == [1, 1, 1, 3]
    assert sorted(bool(client["findings"]) for client in clients.values()) == [
        False,
        False,
        False,
        True,
    ]
    assert sum(name.startswith("key:") for name in clients) == 3 and "address:127.0.0.1" in clients
    assert not any(key in name for name in clients for key in ("good", "bad", "other"))


def test_audit_counts_the_disconnects_of_a_client(faulty: RunningServer) -> None:
    for stream in (True, False):
        with Asker(faulty.port) as asker:
            asker.send(CHAT, question(CHAT, stream), X_Fault="slow-first-token; seconds=3600")
            if stream:
                asker.sock.recv(1)
    wait_until(lambda: conduct(faulty)["disconnects"] == 2)
    assert kinds(faulty, over=True) == set()


def test_client_that_ignores_its_rate_limit_is_reported(faulty: RunningServer) -> None:
    config = f"{faulty.url}/admin/config"

    def is_found() -> bool:
        answer = ask(faulty.port, TEXT, False)
        return answer is not None and answer.status == 429 and not verdict(faulty)["clean"]

    requests.post(config, json={"requests-per-minute": 1}, timeout=20).raise_for_status()
    try:
        wait_until(is_found)
        assert kinds(faulty) == {"retry_after_ignored"}
    finally:
        requests.post(config, json={"requests-per-minute": None}, timeout=20).raise_for_status()
