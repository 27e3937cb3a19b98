"""Conversations out of files, and the questions in them."""

import io
import json
from typing import Any

import pytest

from app.dataset.command import conversations, pairs
from app.dataset.tokens import DatasetError


def turns(*said: tuple[str, Any]) -> dict[str, Any]:
    return {"id": "1", "conversations": [{"from": speaker, "value": text} for speaker, text in said]}


def test_items_come_one_by_one() -> None:
    items = [turns(("human", "Grüße")), {"conversations": [1.5]}, 3]
    for text in (
        json.dumps(items),
        json.dumps(items, indent=2, ensure_ascii=False),
        "\ufeff \n" + json.dumps(items),
    ):
        assert list(conversations(io.BytesIO(text.encode()))) == items


def test_what_is_good_before_a_break_comes_first() -> None:
    found = conversations(io.BytesIO(b'[{"id": 1}, {"id": 2}, {"i'))
    assert next(found) == {"id": 1}
    assert next(found) == {"id": 2}
    with pytest.raises(DatasetError, match="it is not JSON: .*EOF"):
        next(found)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"id": []}', b"null", b"text", b"\x00\x01", b"\x1f\x8b\x08"]
)
def test_what_is_no_array_is_told(content: bytes) -> None:
    with pytest.raises(DatasetError, match="not a JSON array"):
        list(conversations(io.BytesIO(content)))


@pytest.mark.parametrize("content", [b"[1 2]", b"[1] x", b'["\xff"]', b"[", b"[1,]"])
def test_what_is_no_json_is_told_in_one_line(content: bytes) -> None:
    with pytest.raises(DatasetError, match="it is not JSON: [^\n]+$"):
        list(conversations(io.BytesIO(content)))


def test_each_question_comes_with_all_that_was_said_before() -> None:
    first, second = pairs(turns(("human", "q1"), ("gpt", "a1"), ("human", "q2"), ("gpt", "a2")))
    assert first == ("q1", [{"role": "user", "content": "q1"}], "a1")
    assert (second.question, second.reply) == ("q2", "a2")
    assert [(each["role"], each["content"]) for each in second.messages] == [
        ("user", "q1"),
        ("assistant", "a1"),
        ("user", "q2"),
    ]


@pytest.mark.parametrize(
    "said",
    [
        [("human", "q1"), ("gpt", "a1"), ("human", "q2")],
        [("human", "q1"), ("gpt", "a1"), ("system", "x"), ("gpt", "a2"), ("human", "q3"), ("gpt", "a3")],
        [("human", "q1"), ("gpt", "a1"), ("human", "q2"), ("human", "q3")],
        [("human", "q1"), ("gpt", "a1"), ("human", None), ("gpt", "a2")],
        [("human", "q1"), ("gpt", "a1"), ("human", "q2"), ("gpt", ["a2"])],
    ],
)
def test_a_conversation_ends_at_the_first_turn_of_the_wrong_one(said: list[tuple[str, Any]]) -> None:
    assert [pair.question for pair in pairs(turns(*said))] == ["q1"]


@pytest.mark.parametrize(
    "item",
    [
        None,
        3,
        [],
        "x",
        {},
        {"conversations": None},
        {"conversations": [1, 2]},
        turns(("gpt", "a"), ("human", "q")),
    ],
)
def test_what_is_no_conversation_has_no_questions(item: Any) -> None:
    assert list(pairs(item)) == []
