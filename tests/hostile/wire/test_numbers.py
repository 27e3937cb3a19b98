"""Numbers and names that no request should carry; the rules themselves are those of tests/protocol."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from typing import Any

import pytest

from tests.hostile.raw_client import COMPLETIONS, Wire, ask, get, http_post, is_error, metric, post
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


def with_choices(n: int) -> dict[str, Any]:
    return {"prompt": "a", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "n": n}


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("n", [16385, 100_000])
def test_more_choices_than_vllm_allows_are_refused_however_long_the_waiting_list(
    server: RunningServer, path: str, n: int
) -> None:
    is_error(post(server.port, with_choices(n), path), 400, RULE)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_number_of_choices_that_no_memory_holds_is_refused_before_anything_is_made_of_it(path: str) -> None:
    with stressed_server() as careful:
        [worker] = workers_of(careful)
        # Were it tried all the same, this machine should not suffer.
        resource.prlimit(worker, resource.RLIMIT_AS, (1 << 30, 1 << 30))
        for n in (10**8, 2**62, 2**70):
            is_error(post(careful.port, with_choices(n), path), 400, RULE)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/tokenize", "/detokenize"])
def test_an_unknown_model_is_not_found(server: RunningServer, path: str) -> None:
    for name in ("gpt-9", "x" * 100_000, "../../etc/passwd", "\u0000"):
        body = {"model": name, "prompt": "a", "messages": [{"role": "user", "content": "a"}], "tokens": [1]}
        is_error(post(server.port, body, path), 404, "NotFoundError", "model")


def test_a_prompt_that_does_not_fit_is_refused(server: RunningServer) -> None:
    text = "one two three four five six seven eight nine ten " * 20
    for prompt in (text, [1] * 65, [text, "a"], [[1] * 65]):
        for stream in (False, True):
            answer = post(server.port, {"prompt": prompt, "max_tokens": 1, "stream": stream})
            assert answer.status == 400 and answer.json()["error"]["type"] == RULE
    chat = {"messages": [{"role": "user", "content": text}]}
    assert post(server.port, chat, CHAT).json()["error"]["type"] == RULE


def test_token_ids_outside_the_vocabulary_are_refused(server: RunningServer) -> None:
    for prompt in ([10**9], [2**63], [2**80], [-1], [[1], [10**9]]):
        assert post(server.port, {"prompt": prompt, "max_tokens": 1}).status == 400, prompt
    for token_id in (10**9, 2**80, -1):
        assert post(server.port, ask(stop_token_ids=[token_id])).status == 400
        assert post(server.port, {"tokens": [token_id]}, "/detokenize").status in (200, 400)
    assert post(server.port, ask(logit_bias={"x": 1})).status == 400
    assert post(server.port, ask(logit_bias={str(10**9): 1})).status == 400


def test_what_only_the_engine_would_refuse_comes_in_the_stream(server: RunningServer) -> None:
    with Wire(server.port) as wire:
        [event] = wire.post(ask(prompt=[10**9], stream=True)).events()
        assert event["error"]["code"] == 400
    assert metric(server.port, "vllm:num_requests_running") == 0


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{}],
        [{"role": "user"}, 5],
        "hello",
        [{"role": 5, "content": "a"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": 5}]}],
        [{"role": "user", "content": [5]}],
        [{"role": "assistant", "tool_calls": [{"function": 5}]}],
        [{"role": "assistant", "tool_calls": 5}],
        [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"function": {"arguments": "{", "name": "f"}}],
            }
        ],
    ],
    ids=lambda value: str(value)[:60],
)
@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
def test_messages_of_any_shape_are_never_an_error_of_the_server(
    server: RunningServer, path: str, messages: Any
) -> None:
    continued = {"add_generation_prompt": False, "continue_final_message": True}
    for more in ({}, {"echo": True}, {"stream": True}, continued):
        assert post(server.port, {"messages": messages, "max_tokens": 2, **more}, path).status in (200, 400)


def test_the_server_is_as_before(server: RunningServer) -> None:
    assert get(server.port, "/health").status == 200
    assert post(server.port, ask(max_tokens=8)).json()["usage"]["completion_tokens"] == 8
