"""Large answers are written in parts that say the same, with turns for others between them."""

import json
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from itertools import count, pairwise
from typing import Any

import gevent
import pytest
from msgspec import Raw

from app.core.api import answer_limits, writer
from app.core.api.answer_limits import check_answer_size
from app.core.api.chat.writer import ChatResponseOptions, ChatWriter
from app.core.api.choice_state import ChoiceState
from app.core.api.completions import CompletionResponseOptions, CompletionWriter, EchoedPrompt
from app.core.api.identity import ResponseMeta
from app.core.api.logprobs import rendered
from app.core.api.writer import ResponseWriter
from app.core.engine.outputs import EngineOutput, Finish, Part, Started, TokenLogprob, Tokens
from app.core.protocol.completions import CompletionRequest
from app.core.protocol.validation import AcceptedRequest, ModelLimits, ValidatedRequest
from app.core.server.http.errors import ApiError
from tests.application import app_of
from tests.core.api.segments import THOUGHT, body_of

META = ResponseMeta("id-1", 1_700_000_000, "a model", "fp")
TOKENS = 128
"""Tokens of a large answer: each takes a second by the clock of these tests, and so a pause."""
PROMPT = list(range(TOKENS + 9))
WORDS = ["Hello", " there", "", '"', "日本", "\n", " x"]
ALTERNATIVES = 3


class Entries(Sequence[Any]):
    """Log probabilities of tokens, made when they are looked at; `made` counts them."""

    created_count = 0

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Entries(self.ids[index])
        Entries.created_count += ALTERNATIVES + 1
        first = self.ids[index]
        top = [
            (first + k, WORDS[(first + k) % len(WORDS)], -1.0 - k) for k in range(ALTERNATIVES + 1)
        ]
        return TokenLogprob(first, top[0][1], -1.0, top)


def reply(
    choices: int,
    tokens: int,
    at_once: int = 7,
    part: Part | None = None,
    with_logprobs: bool = True,
) -> Iterator[EngineOutput]:
    """The outputs of replies of so many tokens, of which some come together."""
    prompt = Entries(PROMPT) if with_logprobs else None
    for index in range(choices):
        yield Started(index, 0.5, 4, prompt)
    for start in range(0, tokens, at_once):
        ids = range(start, min(start + at_once, tokens))
        for index in range(choices):
            yield Tokens(
                index,
                [WORDS[(k + index) % len(WORDS)] for k in ids],
                ids=list(ids),
                at_s=1.0,
                logprobs=Entries(ids) if with_logprobs else None,
                finish=Finish("length") if ids.stop == tokens else None,
                part=part,
            )


def chat(choices: int) -> ResponseWriter:
    options = ChatResponseOptions(
        n=choices, prompt_ids=PROMPT, top_logprobs=-1, token_ids=True, echo="Eh?"
    )
    return ChatWriter(META, options)


def completion(choices: int) -> ResponseWriter:
    prompt = EchoedPrompt(PROMPT, "The prompt", ["p"] * len(PROMPT))
    options = CompletionResponseOptions(
        n=choices, prompts=[prompt], logprobs=True, echo=True, token_ids=True, token_id_names=True
    )
    return CompletionWriter(META, options)


FAMILIES = [
    pytest.param(make, choices, id=f"{make.__name__}-{choices}")
    for make, choices in ((chat, 2), (chat, 1), (completion, 2))
]


@pytest.mark.parametrize(("make", "choices"), FAMILIES)
def test_large_response_is_the_same_whether_written_in_parts_or_at_once(
    make: Callable[[int], ResponseWriter], choices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_slices(make, choices, monkeypatch)


def check_slices(
    make: Callable[[int], ResponseWriter], choices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asserts that a large answer is the same whether it is written in slices or at once."""
    part = THOUGHT if choices == 1 else None
    outputs = [*reply(choices, TOKENS + 5, part=part)]
    body = body_of(make(choices), outputs)
    monkeypatch.setattr(time, "monotonic", map(float, count()).__next__)
    assert body == body_of(make(choices), outputs)
    json.loads(body)


def test_other_requests_run_while_a_large_response_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_turns(chat(2), monkeypatch, choices=2)


def check_turns(
    response_writer: ResponseWriter, monkeypatch: pytest.MonkeyPatch, *, choices: int
) -> None:
    """Asserts that another greenlet runs often while a large answer is written."""
    monkeypatch.setattr(time, "monotonic", map(float, count()).__next__)
    entries_at_switch: list[int] = []

    def look() -> None:
        while not done:
            entries_at_switch.append(Entries.created_count)
            gevent.sleep(1e-6)

    done = False
    other = gevent.spawn(look)
    body_of(response_writer, reply(choices, 3 * TOKENS))
    done = True
    other.join()
    assert max(later - earlier for earlier, later in pairwise(entries_at_switch)) < TOKENS


def test_log_probabilities_of_an_answer_are_held_once_while_they_are_written() -> None:
    entry = Entries([1])[0]
    text = b"{%b}" % (b"1" * 500)
    rendered(([entry],), lambda entry: Raw(text))
    tracemalloc.start()
    try:
        written = bytes(rendered(([entry] * 2000,), lambda entry: Raw(text)))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert written == b"[%b]" % b",".join([text] * 2000)
    assert peak_bytes < 2.5 * len(written), "the copy of this test included"


def test_memory_of_a_whole_answer_and_of_its_copy_is_claimed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claims: list[int] = []
    monkeypatch.setattr(answer_limits, "claim_memory", claims.append)
    limits = ModelLimits(max_model_len=1 << 30, vocab_size=4096, max_logprobs=30)
    body = CompletionRequest(prompt="x", max_tokens=1000, logprobs=20)
    accepted: AcceptedRequest = ValidatedRequest(body, "m", limits)
    accepted.check_sampling([1])

    check_answer_size(accepted, 1)

    json_bytes = 75 * 1000 * 21
    assert claims and claims[0] > 2 * json_bytes


def test_request_whose_response_would_exceed_the_memory_limit_is_rejected() -> None:
    limits = ModelLimits(max_model_len=1 << 30, vocab_size=4096, max_logprobs=30)

    def check(n: int, tokens: int, prompt_tokens: int = 1, **fields: Any) -> None:
        body = CompletionRequest(prompt="x", max_tokens=tokens, n=n, **fields)
        accepted: AcceptedRequest = ValidatedRequest(body, "m", limits)
        accepted.check_sampling([prompt_tokens])
        check_answer_size(accepted, prompt_tokens)

    check(16384, 85)
    check(1, 38_000, logprobs=20)
    too_much: list[tuple[int, int, int, dict[str, Any]]] = [
        (16384, 86, 1, {}),
        (1, 38_000, 1, {"logprobs": 21}),
        (1, 1, 1 << 20, {"prompt_logprobs": 0}),
    ]
    for n, tokens, prompt_tokens, fields in too_much:
        with pytest.raises(ApiError, match="stream") as refused:
            check(n, tokens, prompt_tokens, **fields)
        assert (refused.value.status, refused.value.type) == (400, "BadRequestError")


def test_stream_that_would_repeat_its_prompts_too_often_is_rejected() -> None:
    flags = ["--seed", "1", "--force-dummy-tokenizer", "--max-model-len", "4096"]
    client = app_of(*flags).test_client()
    for tokens, stream, status in ((3000, True, 400), (900, True, 200), (3000, False, 200)):
        body = {
            "prompt": [5] * tokens,
            "max_tokens": 1,
            "echo": True,
            "logprobs": 20,
            "stream": stream,
        }
        answer = client.post("/v1/completions", json=body)
        assert answer.status_code == status
        assert status == 200 or answer.get_json()["error"]["param"] == "echo"
    chat = {"messages": [{"role": "user", "content": "a " * 900}], "n": 600, "max_tokens": 1}
    for route, body, param in (
        ("/v1/chat/completions", chat | {"return_prompt_text": True}, "messages"),
        (
            "/v1/completions",
            {"prompt": [5] * 3000, "n": 400, "return_token_ids": True},
            "return_token_ids",
        ),
    ):
        answer = client.post(route, json=body | {"stream": True, "temperature": 1})
        assert (answer.status_code, answer.get_json()["error"]["param"]) == (400, param)


def test_completion_of_too_many_choices_is_rejected_before_their_states_exist(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = app_of("--seed", "1", "--force-dummy-tokenizer").test_client()
    state_count = 0

    def count_state(tokens: int) -> ChoiceState:
        nonlocal state_count
        state_count += 1
        return ChoiceState(tokens)

    monkeypatch.setattr(writer, "ChoiceState", count_state)
    body = {"prompt": ["a", "b"], "n": 16_384, "max_tokens": 1, "temperature": 1}
    for stream in (False, True):
        answer = client.post("/v1/completions", json=body | {"stream": stream})
        assert answer.status_code == 429
    assert state_count == 0
    assert client.post("/v1/completions", json=body | {"n": 3}).status_code == 200
    assert state_count == 6
