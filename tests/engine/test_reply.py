"""Replies that are cut off, and put together."""

from __future__ import annotations

import pytest

from app.engine.outputs import Part
from app.engine.reply import LENGTH, STOP, Reply, joined

THOUGHT, CALL = Part("reasoning"), Part("call")
REPLY = Reply("abcde", range(5), STOP, [(2, THOUGHT), (5, None)])


@pytest.mark.parametrize(
    ("most", "text", "spans"),
    [
        (4, "abcd", [(2, THOUGHT), (4, None)]),
        (2, "ab", [(2, THOUGHT)]),
        (1, "a", [(1, THOUGHT)]),
        (0, "", []),
    ],
)
def test_a_reply_that_is_cut_ends_for_its_length_and_has_no_empty_part(
    most: int, text: str, spans: list[tuple[int, Part | None]]
) -> None:
    cut = REPLY.cut(most)
    assert (cut.texts, list(cut.ids), cut.finish, cut.spans) == (text, list(range(most)), LENGTH, spans)


def test_two_replies_are_one_that_ends_as_the_second_does() -> None:
    both = joined(REPLY, Reply("xy", [8, 9], LENGTH))
    assert (both.texts, both.ids, both.finish) == ([*"abcdexy"], [0, 1, 2, 3, 4, 8, 9], LENGTH)
    assert both.spans == [(2, THOUGHT), (5, None), (7, None)]
