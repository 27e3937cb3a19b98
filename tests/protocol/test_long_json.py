"""Long JSON is parsed as the library does it, errors included."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.clock.pause import Slices
from app.protocol import long_json
from app.protocol.long_json import CHARS, parse
from app.protocol.slicing import SLICE, slices

TEXTS = st.text(max_size=12) | st.sampled_from(
    ['q"u\\o', "[{,]}", "ä\u2028", "\ud800", "x" * 50, "\U0001f600" * 9, '\\"' * 20]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=40,
)
SEPARATORS = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")])
EDITS = st.lists(st.tuples(st.floats(0, 1), st.sampled_from(["", *'[]{},:"\\ 0x.-\n\x01'])), max_size=3)


def outcome(parsed: Callable[[], object]) -> object:
    """The value, or what is wrong and where."""
    try:
        return repr(parsed())
    except json.JSONDecodeError as error:
        return error.msg, error.pos
    except (ValueError, RecursionError) as error:
        return type(error)


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [1, 8, 40])
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=VALUES, separators=SEPARATORS, plain=st.booleans(), edits=EDITS)
def test_any_text_is_parsed_as_by_the_library(
    monkeypatch: pytest.MonkeyPatch,
    at_once: int,
    value: object,
    separators: tuple[str, str],
    plain: bool,
    edits: list[tuple[float, str]],
) -> None:
    """Also one in which a character was removed, or another one came in."""
    monkeypatch.setattr(long_json, "AT_ONCE", at_once)
    text = json.dumps(value, separators=separators, ensure_ascii=plain)
    for where, sign in edits:
        at = int(where * len(text))
        text = text[:at] + sign + text[at + (not sign) :]
    body = text.encode("utf-8", "surrogatepass")
    assert outcome(lambda: parse(body, slices())) == outcome(lambda: json.loads(body))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"[1 2]",
        b"[1,]",
        b'{"a":1,}',
        b"[1, ]",
        b'{"a":1 , \n }',
        b"[,1]",
        b"{,}",
        b'{"a"}',
        b"[[1],[2]",
        b"[1]]",
        b'["\x01"]',
        b"[NaN,-Infinity]",
        b'{"a":1,"b":2,"a":3}',
        b"\xef\xbb\xbf[1]",
        "[1,2]".encode("utf-16"),
        b'["\xff"]',
        b"[" + b"1" * 5000 + b"]",
        b"[" * 200_000,  # deeper than any Python reads
    ],
)
def test_what_is_special_is_as_in_the_library(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_json, "AT_ONCE", 4)
    assert outcome(lambda: parse(body, slices())) == outcome(lambda: json.loads(body))


@pytest.mark.slow
@pytest.mark.parametrize(
    "value",
    [
        [1] * 300_000,
        ["word"] * 100_000,
        {str(number): 1.5 for number in range(50_000)},
        [{"role": "user", "content": "hi"}] * 30_000,
        [{"a": {"b": [{"c": [1, 2]}]}}] * 20_000,
        [[[[[1]]]]] * 50_000,
    ],
    ids=["numbers", "texts", "members", "objects", "nested objects", "nested lists"],
)
def test_others_have_their_turn_meanwhile(value: object) -> None:
    pauses: list[None] = []
    body = json.dumps(value, separators=(",", ":")).encode()
    assert parse(body, Slices(4_000, lambda: pauses.append(None))) == value
    assert len(pauses) >= len(body) // 64_000


def test_what_is_nested_deep_is_parsed_where_it_is_short() -> None:
    chain = "[" * 800 + "]" * 800
    body = f"[{','.join([chain] * 40)}]".encode()
    assert parse(body, slices()) == json.loads(body)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(["\n" * 10_000] * 60),
        json.dumps({"\n" * (10_000 + k): 1 for k in range(60)}),
        f"[{' ' * 1_200_000}1]",
        f"{' ' * 1_200_000}[1]",
    ],
    ids=["long texts", "long keys", "blanks within", "blanks before"],
)
def test_however_long_its_parts_are_others_have_their_turn_in_between(text: str) -> None:
    """After 100,000 characters or so, which take 2 ms."""
    turns: list[None] = []
    assert parse(text.encode(), Slices(SLICE, lambda: turns.append(None))) == json.loads(text)
    assert len(turns) >= len(text) // (2 * CHARS * SLICE)
