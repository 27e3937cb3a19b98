"""Which requests are plain, and what is read off them; all others are left to the general way."""

import json
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest

from app.core.api.plain import (
    MAX_BODIES,
    MAX_BODY_BYTES,
    MAX_LOGPROBS,
    MAX_STOPS,
    PlainChat,
    PlainChats,
    PlainCompletion,
    PlainCompletions,
    PlainGeneration,
    Recognised,
)
from app.core.engine.sampling import SamplingDefaults
from app.core.protocol.validation import ModelLimits
from app.core.settings import load
from app.core.text.memo import PromptMemo
from config.validation import LiveSettings

CHAT = [{"role": "user", "content": "hi"}]
LENGTH = 100
Kind: TypeAlias = type[PlainChat] | type[PlainCompletion]


def generation(kind: Kind, prompt_ids: Any, length: int, *names: str | None) -> PlainGeneration:
    """The fast path of one family, for a model with a context of `length` tokens."""
    limits = ModelLimits(max_model_len=length, vocab_size=4096)
    models = SimpleNamespace(names=["m"])
    pipeline: Any = SimpleNamespace(
        limits=limits,
        models=models,
        live=LiveSettings(load((), {})),
        real=None,
        builder=SimpleNamespace(defaults=SamplingDefaults()),
        identity=SimpleNamespace(fresh_call_id=str),
    )
    family = PlainChats if kind is PlainChat else PlainCompletions
    family_reader: PlainGeneration = family(pipeline, PromptMemo(prompt_ids))
    family_reader._names = frozenset(names)
    return family_reader


def recognise(
    kind: Kind = PlainChat, ids: int = 10, length: int = LENGTH, **body: Any
) -> Recognised | None:
    """What a model with a context of `length` tokens recognises, the prompt having `ids` of them."""
    reader = generation(kind, lambda prompt: range(ids), length, None, "m")
    prompt = {"messages": CHAT} if kind is PlainChat else {"prompt": "hi"}
    return reader.recognise(json.dumps(prompt | body).encode())


def room(recognised: Recognised | None) -> tuple[int, bool] | None:
    return recognised and (recognised.max_tokens, recognised.sampling.is_limited)


@pytest.mark.parametrize(
    ("fields", "most_tokens", "limited"),
    [
        ({}, 90, False),
        ({"max_tokens": 5}, 5, True),
        ({"max_tokens": 95}, 90, True),
        ({"max_tokens": LENGTH}, 90, True),
        ({"max_tokens": 5, "max_completion_tokens": 7}, 7, True),
        ({"max_completion_tokens": 1}, 1, True),
        ({"min_tokens": 90}, 90, False),
    ],
)
def test_max_tokens_of_a_chat_is_limited_by_the_request_and_the_context(
    fields: dict[str, int], most_tokens: int, limited: bool
) -> None:
    recognised = recognise(**fields)
    assert room(recognised) == (most_tokens, limited)
    assert recognised is not None and list(recognised.prompt_ids) == list(range(10))


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0}, {"temperature": 2}, {"top_p": 1}, {"top_p": 0.01}, {"n": 1}, {"seed": 2**63 - 1},
        {"presence_penalty": -2, "frequency_penalty": 2}, {"presence_penalty": 2, "frequency_penalty": -2},
        {"min_tokens": 0}, {"user": "u"}, {"stop": None}, {"stop": []}, {"stop": "x"}, {"stop": ["a", "b"]},
        {"model": None}, {"model": "m"}, {"stream": True},
        {"stream": True, "stream_options": {"include_usage": True}}, {"stream": None, "stream_options": None},
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", [PlainChat, PlainCompletion])
def test_request_with_common_valid_fields_takes_the_fast_path(kind: Kind, fields: Any) -> None:
    assert recognise(kind, **fields) is not None


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": -0.1}, {"temperature": 2.1}, {"top_p": 0}, {"top_p": 1.1}, {"n": 0}, {"n": 2},
        {"seed": 2**63}, {"presence_penalty": -2.1}, {"presence_penalty": 2.1}, {"frequency_penalty": -2.1},
        {"frequency_penalty": 2.1}, {"max_tokens": 0}, {"max_tokens": LENGTH + 1}, {"min_tokens": -1},
        {"min_tokens": 91}, {"min_tokens": 6, "max_tokens": 5}, {"stop": ""}, {"stop": ["a", ""]},
        {"stop": ["a"] * (MAX_STOPS + 1)},
        {"stop": 1}, {"model": "another"}, {"logprobs": 1},
        {"top_logprobs": 1}, {"tools": []}, {"stream": "true"},
        {"stream": True, "stream_options": {"more": 1}},
        {"stream_options": {}}, {"stream": False, "stream_options": {"include_usage": True}},
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", [PlainChat, PlainCompletion])
def test_request_with_an_invalid_or_rare_field_does_not_take_the_fast_path(
    kind: Kind, fields: Any
) -> None:
    assert recognise(kind, **fields) is None


@pytest.mark.parametrize(
    ("fields", "alternatives"),
    [
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": None}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"logprobs": None}, None),
    ],
)
def test_chat_with_logprobs_within_the_limit_takes_the_fast_path(
    fields: dict[str, Any], alternatives: int | None
) -> None:
    recognised = recognise(max_tokens=16, **fields)
    assert recognised is not None
    assert recognised.sampling.logprobs == alternatives
    assert recognised.options.top_logprobs == alternatives  # type: ignore[attr-defined]


def test_chat_with_logprobs_above_the_limit_does_not_take_the_fast_path() -> None:
    length = 2 * MAX_LOGPROBS
    fields = {"logprobs": True, "length": length}
    assert recognise(max_tokens=MAX_LOGPROBS, **fields) is not None
    assert recognise(max_tokens=MAX_LOGPROBS + 1, **fields) is None
    assert recognise(max_tokens=MAX_LOGPROBS, top_logprobs=1, **fields) is None
    assert recognise(**fields) is None
    assert recognise(max_tokens=1, top_logprobs=21, **fields) is None


@pytest.mark.parametrize(
    ("kind", "body", "key"),
    [
        (PlainChat, b'{"messages": [{"role":  "user"}]}', b'[{"role":  "user"}]'),
        (PlainCompletion, b'{"prompt": "h\\u00ef"}', "hï".encode()),
    ],
)
def test_fast_path_finds_cached_token_ids_by_the_bytes_of_the_prompt(
    kind: Kind, body: bytes, key: bytes
) -> None:
    looked_up: list[bytes] = []
    assert (
        generation(kind, looked_up.append, LENGTH).recognise(body) is None and looked_up == []
    )  # no model yet
    assert generation(kind, looked_up.append, LENGTH, None).recognise(
        body
    ) is None and looked_up == [key]


def test_fast_path_caches_request_bodies_from_the_second_use() -> None:
    looked_up: list[bytes] = []
    reader = generation(PlainCompletion, lambda key: looked_up.append(key) or [1, 2], LENGTH, None)
    results = [reader.recognise(b'{"prompt": "hi", "max_tokens": 7}') for _ in range(4)]
    assert results[0] == results[1] == results[3] and results[1] is results[2] is results[3]
    assert len(looked_up) == 2 and reader.recognise(b'{"prompt": "hi"}') != results[3]
    long = json.dumps({"prompt": "hi", "user": "x" * MAX_BODY_BYTES}).encode()
    assert reader.recognise(long) is not reader.recognise(long)
    for number in range(2 * MAX_BODIES):
        reader.recognise(b'{"prompt": "hi", "seed": %d}' % number)
    assert len(reader._bodies) <= MAX_BODIES
