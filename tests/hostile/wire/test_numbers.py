"""Numbers and names that no request should carry; the rules themselves are those of tests/protocol."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from typing import Any

import pytest

from tests.hostile.raw_client import COMPLETIONS, Wire, ask, http_post, is_error, metric, post
from tests.hostile.stressed_server import stressed_server, workers_of
from tests.running_server import RunningServer

CHAT = "/v1/chat/completions"
RULE = "BadRequestError"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with stressed_server("--max-model-len", "64") as running:
        yield running


@pytest.mark.parametrize("number", ["1e400", "-1e400", "NaN", "Infinity", "1e-400", "1" * 5000])
@pytest.mark.parametrize("field", ["temperature", "max_tokens", "seed", "n"])
def test_numbers_that_no_type_holds_are_never_an_error_of_the_server(
    server: RunningServer, field: str, number: str
) -> None:
    with Wire(server.port) as wire:
        body = f'{{"prompt": "a", "max_tokens": 1, "{field}": {number}}}'.encode()
        answer = wire.send(http_post(COMPLETIONS, body)).answer()
    harmless = number == "1e-400" and field in ("temperature", "seed")  # it is 0
    assert answer.status == 400 or (harmless and answer.status == 200), answer


def test_more_choices_than_vllm_or_any_memory_holds_are_refused_before_anything_is_made_of_them(
    server: RunningServer,
) -> None:
    [worker] = workers_of(server)
    before = resource.prlimit(worker, resource.RLIMIT_AS)
    # Were it tried all the same, this machine should not suffer.
    resource.prlimit(worker, resource.RLIMIT_AS, (1 << 31, before[1]))
    for n in (16385, 100_000, 10**8, 2**62, 2**70):
        body = {"prompt": "a", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "n": n}
        for path in (COMPLETIONS, CHAT):
            is_error(post(server.port, body, path), 400, RULE)
    resource.prlimit(worker, resource.RLIMIT_AS, before)


def test_an_unknown_model_is_not_found(server: RunningServer) -> None:
    for name in ("gpt-9", "x" * 100_000, "../../etc/passwd", "\u0000"):
        body = {"model": name, "prompt": "a", "messages": [{"role": "user", "content": "a"}], "tokens": [1]}
        for path in (COMPLETIONS, CHAT, "/tokenize", "/detokenize"):
            is_error(post(server.port, body, path), 404, "NotFoundError", "model")


def test_what_only_the_engine_would_refuse_comes_in_the_stream(server: RunningServer) -> None:
    with Wire(server.port) as wire:
        [event] = wire.post(ask(prompt=[10**9], stream=True)).events()
        assert event["error"]["code"] == 400
    assert metric(server.port, "vllm:num_requests_running") == 0


ODD_MESSAGES: list[Any] = [
    [],
    [{}],
    [{"role": "user"}, 5],
    "hello",
    [{"role": 5, "content": "a"}],
    *([{"role": "user", "content": it}] for it in (5, [{"type": "text"}], [5])),
    [{"role": "user", "content": [{"type": "image_url", "image_url": 5}]}],
    *([{"role": "assistant", "tool_calls": it}] for it in (5, [{"function": 5}])),
    [{"role": "assistant", "content": None, "tool_calls": [{"function": {"arguments": "{", "name": "f"}}]}],
]


@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
def test_messages_of_any_shape_are_never_an_error_of_the_server(server: RunningServer, path: str) -> None:
    continued = {"add_generation_prompt": False, "continue_final_message": True}
    for messages in ODD_MESSAGES:
        for more in ({}, {"echo": True}, {"stream": True}, continued):
            body = {"messages": messages, "max_tokens": 2, **more}
            assert post(server.port, body, path).status in (200, 400), body
