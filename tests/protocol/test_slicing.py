"""Whatever is long in a request is looked at in slices."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.clock.pause import Slices
from app.http.errors import ApiError
from app.protocol import decoding, long_json
from app.protocol.chat import ChatCompletionRequest
from app.protocol.completions import CompletionRequest
from app.protocol.decoding import LONG, Request, decode
from app.protocol.responses import ResponsesRequest
from app.protocol.slicing import SLICE, distinct, each, every, is_long, kinds_of, pieces, release, slices
from app.protocol.validation.generation import ValidatedRequest
from app.protocol.validation.model import ModelLimits

JSON = "application/json"
HELLO = [{"role": "user", "content": "hi"}]
LIMITS = ModelLimits(max_model_len=100_000, vocab_size=4096)


class Counted(Slices):
    """Counts its pauses."""

    def __init__(self) -> None:
        self.pauses = 0
        super().__init__(SLICE, self._count)

    def _count(self) -> None:
        self.pauses += 1


def tools(count: int) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": f"f{number}"}} for number in range(count)]


LONG_BODIES: dict[str, tuple[type[Request], dict[str, Any]]] = {
    "messages": (ChatCompletionRequest, {"messages": HELLO * 50_000}),
    "messages of another kind": (
        ChatCompletionRequest,
        {"messages": [{"role": "tool", "tool_call_id": "a", "content": "hi"}] * 20_000},
    ),
    "tools": (ChatCompletionRequest, {"messages": HELLO, "tools": tools(20_000)}),
    "words": (ChatCompletionRequest, {"messages": HELLO, "bad_words": ["a"] * 200_000}),
    "biases": (ChatCompletionRequest, {"messages": HELLO, "logit_bias": {str(k): 1 for k in range(50_000)}}),
    "token ids": (CompletionRequest, {"prompt": [1] * 300_000}),
    "token ids as texts": (CompletionRequest, {"prompt": ["1"] * 10, "stop_token_ids": ["1"] * 50_000}),
    "items": (ResponsesRequest, {"input": HELLO * 20_000}),
    "extra": (ChatCompletionRequest, {"messages": HELLO, "kv_transfer_params": {"a": [[1]] * 100_000}}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG_BODIES)
def test_a_long_body_is_decoded_with_pauses(name: str) -> None:
    kind, body = LONG_BODIES[name]
    data, within = json.dumps(body).encode(), Counted()
    assert len(data) > LONG
    decode(data, JSON, kind, within)
    assert within.pauses >= len(data) // 200_000


def test_a_short_body_is_decoded_without_a_pause() -> None:
    within = Counted()
    for _ in range(100):
        decode(json.dumps({"messages": HELLO * 10}).encode(), JSON, ChatCompletionRequest, within)
    assert within.pauses == 0


ONLY_THE_TYPE_REFUSES: list[dict[str, Any]] = [
    *({"seed": 2**63}, {"priority": -(2**63) - 1}, {"stream_interval": 0}, {"cache_salt": ""}),
    *({"stop": ["a"] * 5}, {"truncate_prompt_tokens": -2}),
]
"""By bounds that are written beside it."""


@pytest.mark.parametrize(
    "fields",
    [{"max_tokens": "3"}, {"temperature": -1}, {"n": 0}, {"stop": 5}, {}, *ONLY_THE_TYPE_REFUSES],
)
def test_a_long_body_is_judged_as_a_short_one(fields: dict[str, Any]) -> None:
    """Also by the rules that come later."""

    def judged(body: dict[str, Any]) -> object:
        try:
            request = decode(json.dumps(body).encode(), JSON, ChatCompletionRequest)
            asked = ValidatedRequest(request, "model", LIMITS)
            asked.check_sampling([5])
        except ApiError as error:
            return error.status, error.param, error.message
        return list(asked.max_tokens)

    body = {"messages": HELLO, "unknown": "", **fields}
    assert judged(body) == judged({**body, "unknown": "x" * LONG})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 5000) | st.floats(-2, 2) | st.text(max_size=30),
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(st.text(max_size=4), inside, max_size=3),
    max_leaves=8,
)
TURNS = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool", 5]), "content": st.text(max_size=60) | VALUES}
    ),
    max_size=5,
)
TOOLS = st.lists(
    st.builds(lambda name: {"type": "function", "function": {"name": name}}, st.text()) | VALUES,
    max_size=4,
)


@pytest.mark.slow
@given(
    body=st.fixed_dictionaries(
        {},
        optional={
            "messages": TURNS | VALUES,
            "tools": TOOLS | st.none(),
            "stop": st.lists(st.text(max_size=40), max_size=3) | VALUES,
            "logit_bias": st.dictionaries(st.text("0123456789", min_size=1, max_size=3), st.integers(-1, 1)),
            "max_tokens": st.integers(-1, 5) | VALUES,
            "user": st.text(max_size=200),
            "unknown": VALUES,
        },
    )
)
def test_a_body_in_parts_is_the_same_request(body: dict[str, Any]) -> None:
    """Or refused with the same words."""
    data = json.dumps(body).encode()

    def decoded() -> object:
        try:
            return decode(data, JSON, ChatCompletionRequest)
        except ApiError as error:
            return error.status, error.param, error.message

    whole = decoded()
    with patch.object(decoding, "LONG", 24):
        assert decoded() == whole


def test_many_tools_are_decoded_without_a_dictionary_for_each() -> None:
    """Which would take ten times the bytes of the body."""
    data = json.dumps({"messages": HELLO, "tools": tools(20_000)}).encode()
    with patch.object(long_json, "parse", side_effect=AssertionError("the lax way")):
        request = decode(data, JSON, ChatCompletionRequest)
    assert request.tools is not None and request.tools[-1].function.name == "f19999"


@pytest.mark.parametrize(
    "fields",
    [
        {"logit_bias": {str(number): 1 for number in range(30_000)}},
        {"stop_token_ids": [1, 2] * 200_000},
        {"bad_words": ["a"] * 200_000},
        {"kv_transfer_params": {"a": [[1]] * 30_000}},
        {"structured_outputs": {"json": {"enum": [[1]] * 30_000}}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_long_fields_are_checked_with_pauses(fields: dict[str, Any]) -> None:
    request = decode(json.dumps({"messages": HELLO, **fields}).encode(), JSON, ChatCompletionRequest)
    within = Counted()
    asked = ValidatedRequest(request, "model", ModelLimits(max_model_len=100, vocab_size=40_000), within)
    asked.check_sampling([5])
    asked.check_engine([[1] * 5])
    assert within.pauses


def test_many_prompts_are_checked_with_pauses_and_the_rest_once() -> None:
    body = {"prompt": ["a"], "logit_bias": {str(number): 1 for number in range(3000)}}
    within = Counted()
    asked = ValidatedRequest(
        decode(json.dumps(body).encode(), JSON, CompletionRequest), "model", LIMITS, within
    )
    asked.check_sampling([1000] * 10_000)
    asked.check_engine([[1] * 1000] * 10_000)
    assert 10_000 * 1000 / 16 / SLICE < within.pauses < 10_000 * 3000 / SLICE


def test_the_helpers_say_what_plain_code_says() -> None:
    for values in ([], [1, 2, 2], list(range(50_000)) * 2, ["a"] * 30_000 + [1]):
        within = slices()
        assert list(each(values, within)) == values
        assert distinct(values, within) == set(values)
        assert kinds_of(values, within) == set(map(type, values))
        assert every(lambda value: value != 1, values, within) == (1 not in values)


def test_pieces_are_all_of_a_sequence_and_count_by_their_length() -> None:
    within = Counted()
    assert b"".join(pieces(b"ab" * 30_000, within, 4)) == b"ab" * 30_000
    assert within.pauses == 60_000 // 4 // SLICE
    for _ in range(10_000):
        assert [*pieces([1, 2], within, 1)] == [[1, 2]]
    assert within.pauses == 2


def test_a_long_list_is_emptied_with_pauses() -> None:
    within, values = Counted(), [{} for _ in range(5 * SLICE)]
    release(values, within)
    assert not values and within.pauses >= 4
    release("a text stays", within)


@pytest.mark.parametrize(
    ("value", "most", "long"),
    [
        ([1] * 5, 5, False),
        ([1] * 6, 5, True),
        ({"a": {"b": [1]}}, 3, False),
        ({"a": {"b": [1, 2]}}, 3, True),
        ([{"a": 1}] * 3, 6, False),
        ([{"a": 1}] * 3, 5, True),
        ("a long text holds nothing", 0, False),
    ],
)
def test_a_value_is_long_by_how_many_it_holds(value: object, most: int, long: bool) -> None:
    assert is_long(value, most) is long
