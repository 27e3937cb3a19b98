"""Requests get the same answers on both ways of a request, with latencies and in steps."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.conformance.calls import CHAT, MESSAGES, TEXT, post
from tests.conformance.recording import ENVIRONMENT, FLAGS
from tests.running_server import QUICK_STEPS, RunningServer, running_server

TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {}}},
}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": MESSAGES, "max_tokens": 20, **USAGE}),
    (
        CHAT,
        {
            "messages": MESSAGES,
            "max_tokens": 4,
            "n": 2,
            "seed": 1,
            "logprobs": True,
            "top_logprobs": 2,
        },
    ),
    (CHAT, {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "required", "stream": True}),
    (TEXT, {"prompt": "hello", "max_tokens": 20, **USAGE}),
    ("/v1/responses", {"input": "hi", "max_output_tokens": 9, "stream": True}),
    ("/v1/messages", {"messages": MESSAGES, "max_tokens": 9, "stop_sequences": ["e"]}),
    (
        "/inference/v1/generate",
        {"token_ids": [5, 6], "sampling_params": {"max_tokens": 5, "temperature": 0}},
    ),
]
DRAWN = re.compile(
    rb'"(?:id|item_id|request_id|call_id|created|created_at|signature)":(?:"[^"]*"|\d+)|call-[0-9a-f]+'
)


@pytest.fixture(scope="module")
def servers() -> Iterator[list[RunningServer]]:
    """By both ways of a request, each with latencies of its own and with steps."""
    paces = (["--inter-token-latency", "1ms"], ["--profile", str(QUICK_STEPS)])
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                running_server(*FLAGS, *pace, f"--fast-path={fast}", env=ENVIRONMENT)
            )
            for fast in ("true", "false")
            for pace in paces
        ]


@pytest.mark.parametrize("number", range(len(REQUESTS)))
def test_response_does_not_depend_on_the_fast_path_or_the_token_timing(
    servers: list[RunningServer], number: int
) -> None:
    path, fields = REQUESTS[number]
    body = {"model": "tiny", "temperature": 0 if "n" not in fields else 1, **fields}
    answers = [post(server, path, body) for server in servers]
    assert {answer.status_code for answer in answers} == {200}
    assert len({DRAWN.sub(b"", answer.content) for answer in answers}) == 1
