"""Long lists in bodies, next to other requests."""

import json
import time
from itertools import count
from typing import Any

import gevent
import msgspec
import pytest

from app.core.api.tokenize import TOKENIZE_REQUESTS
from app.core.base.clock import pause
from app.core.protocol import decoding
from app.core.protocol.completions import CompletionRequest
from app.core.protocol.convert import convert_value
from app.core.protocol.validation import ModelLimits, ValidatedRequest
from app.core.server.http.errors import ApiError
from app.core.server.http.response import JSON


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """The pauses of a request for which each look at the clock takes a second."""
    pauses: list[None] = []
    now_s = count()
    monkeypatch.setattr(pause, "pause", lambda: pauses.append(None))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(now_s)))
    return pauses


def test_other_requests_run_while_a_long_list_is_converted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[None] = []
    monkeypatch.setattr(pause, "pause", lambda: pauses.append(None))
    documents = [{"name": "document"}] * 100_000

    converted = gevent.spawn(convert_value, list[dict[str, str]], documents).get()

    assert converted == documents
    assert len(pauses) >= 2


def test_other_requests_run_between_the_prompts_of_a_request(pauses: list[None]) -> None:
    prompts: list[str | int | list[int]] = [[1, 2]] * 500
    request = CompletionRequest(prompt=prompts)
    accepted = ValidatedRequest(request, "m", ModelLimits(max_model_len=99, vocab_size=9))

    gevent.spawn(accepted.check_sampling, [2] * len(prompts)).get()
    gevent.spawn(accepted.check_engine, prompts).get()

    assert len(pauses) >= 2 * len(prompts)


def test_other_requests_run_while_many_bad_words_are_counted(pauses: list[None]) -> None:
    """Comparing 200,000 words takes 20 to 40 ms."""
    words = [f"word {number}" for number in range(500)]
    request = CompletionRequest(prompt="hi", bad_words=words)
    accepted = ValidatedRequest(request, "m", ModelLimits(max_model_len=99, vocab_size=9))

    with pytest.raises(ApiError, match="at most 128 bad_words"):
        gevent.spawn(accepted.check_engine, [[1, 2]]).get()

    assert len(pauses) >= len(words)


def test_other_requests_run_between_the_attempts_to_read_a_large_body(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each attempt takes up to 150 ms, and an error at the end of a body makes four of them."""
    steps: list[str] = []
    read = json.loads

    class Decoder:
        def decode(self, body: bytes) -> object:
            steps.append("read")
            time.sleep(2 * pause.MAX_WORK_S)
            return msgspec.json.decode(body)

    def loads(body: bytes) -> Any:
        steps.append("read")
        return read(body)

    monkeypatch.setattr(decoding, "_decoder", lambda kind: Decoder())
    monkeypatch.setattr(json, "loads", loads)
    monkeypatch.setattr(pause, "pause", lambda: steps.append("pause"))
    prompt = "a" * decoding.LARGE_BODY_BYTES
    body = b'{"prompt": "%b", "logprobs": NaN}' % prompt.encode()

    request = gevent.spawn(decoding.decode, body, JSON, *TOKENIZE_REQUESTS).get()

    assert getattr(request, "prompt", None) == prompt
    reads = "".join(step[0] for step in steps).split("p")
    assert max(map(len, reads)) == 1 and sum(map(len, reads)) == 3
