"""Traces in AIPerf's form of Mooncake's: sessions, delays, and prompts as texts."""

from pathlib import Path
from typing import Any

import pytest

from config import ConfigError
from tests.workbench.runs.test_trace_spellings import load_of, tokens_of


def turn(session: str, tokens: int, reply: int, **fields: Any) -> dict[str, Any]:
    """A turn of a session, with its new tokens."""
    return {"session_id": session, "input_length": tokens, "output_length": reply, **fields}


def test_turns_of_a_session_repeat_the_conversation_and_wait(tmp_path: Path) -> None:
    load = load_of(
        tmp_path,
        [
            turn("a", 300, 40, timestamp=1000),
            turn("b", 50, 10, timestamp=500),
            turn("a", 150, 20, delay=2000),
            turn("a", 5, 3),
        ],
    )
    assert tokens_of(load) == [(50, 10), (300, 40), (490, 20), (515, 3)]
    assert list(load.arrival_s) == [0.0, 0.5, 0.5, 0.5]
    assert list(load.session) == [0, 1, 1, 1]
    assert list(load.think_s) == [0.0, 0.0, 2.0, 0.0]


def test_later_turns_share_the_blocks_of_their_session(tmp_path: Path) -> None:
    load = load_of(
        tmp_path,
        [
            turn("a", 600, 40, hash_ids=[1, 2]),
            turn("b", 600, 10, hash_ids=[1, 3]),
            turn("a", 5, 3, hash_ids=[9]),
        ],
    )
    assert list(load.session) == [0, 0, 1]
    assert load.path(0) == load.path(1)
    assert load.path(0)[0] == load.path(2)[0]
    assert list(load.prefix_tokens) == [600, 600, 600]


@pytest.mark.parametrize("count", [40, 40_000])
def test_agentic_traces_of_lmcache_have_the_whole_conversation_in_each_row(
    tmp_path: Path, count: int
) -> None:
    first = {"role": "user", "content": "x" * count}
    later = {"role": "tool", "content": "y" * 20}
    rows = [
        {"session_id": "a", "input": [first], "pre_gap": 0.0, "output_length": 7},
        {"session_id": "a", "input": [first, later], "pre_gap": 1.5, "output_length": 8},
    ]
    load = load_of(tmp_path, rows)
    assert tokens_of(load) == [(count // 4, 7), (count // 4 + 5, 8)]
    assert list(load.think_s) == [0.0, 1.5]


def test_texts_count_a_token_for_four_characters(tmp_path: Path) -> None:
    content = [{"type": "text", "text": "12345678"}]
    rows = [
        {"text_input": "123456789", "output_length": 4, "timestamp": 0},
        {"messages": [{"role": "user", "content": content}], "output_length": 5, "timestamp": 1},
        {"text_input": "", "output_length": 5, "timestamp": 1},
    ]
    load = load_of(tmp_path, rows)
    assert tokens_of(load) == [(3, 4), (2, 5)]
    assert load.left_out == 1
    assert not load.session


def test_turn_without_a_length_is_left_out_and_the_session_goes_on(tmp_path: Path) -> None:
    rows = [turn("a", 10, 5), {"session_id": "a", "input_length": 7}, turn("a", 1, 1, delay=9)]
    load = load_of(tmp_path, rows)
    assert tokens_of(load) == [(10, 5), (16, 1)]
    assert load.left_out == 1
    assert list(load.think_s) == pytest.approx([0.0, 0.009])


@pytest.mark.parametrize(
    ("row", "flaw"),
    [
        (turn("a", 10, 5, delay=-1), "line 2: delay '-1' must be a time from 0"),
        (turn("a", 10, 5, timestamp="soon"), "line 2: timestamp 'soon'"),
        (turn("a", 10, 5, hash_ids=3), "line 2: hash_ids must be a list"),
        ({**turn("a", 10, 5), "session_id": []}, "line 2: session_id must be a text"),
    ],
)
def test_wrong_values_are_rejected_with_their_line(
    tmp_path: Path, row: dict[str, Any], flaw: str
) -> None:
    with pytest.raises(ConfigError) as error:
        load_of(tmp_path, [turn("b", 1, 1), row])
    assert flaw in str(error.value)


def test_session_that_begins_after_rows_without_sessions_is_rejected(tmp_path: Path) -> None:
    rows = [{"timestamp": 0, "input_length": 10, "output_length": 5}, turn("a", 1, 1, timestamp=1)]
    with pytest.raises(ConfigError, match="line 2: session_id must also be"):
        load_of(tmp_path, rows)
