"""What may be thought before a text of a form, by its prompt."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from app.api.sampling import MOST_LOOKED_AT, ThoughtTokens
from app.engine.wire import Thoughts

BEGIN, END, BLANK, WORD = 1, 2, 3, 4
TEXTS = {BEGIN: "<think>", END: "</think>", BLANK: "\n\n", WORD: "word"}
BEGUN, POSSIBLE = Thoughts(end_id=END), Thoughts(end_id=END, begin_id=BEGIN)


def text_of(ids: Sequence[int]) -> str:
    return "".join(TEXTS[it] for it in ids)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ([WORD, BEGIN], BEGUN),
        ([WORD, BEGIN, BLANK], BEGUN),
        ([WORD, BEGIN, WORD, WORD], BEGUN),
        ([BEGIN, WORD, END, WORD, BEGIN], BEGUN),
        ([WORD, BEGIN, BLANK, END, BLANK], None),
        ([WORD, BEGIN, END], None),
        ([BEGIN, WORD, END, WORD, BLANK], POSSIBLE),
        ([WORD], POSSIBLE),
        ([], POSSIBLE),
        ([BEGIN] + [WORD] * MOST_LOOKED_AT, POSSIBLE),
    ],
)
def test_a_prompt_says_whether_thoughts_come(prompt: list[int], expected: Thoughts | None) -> None:
    assert ThoughtTokens(BEGIN, END, text_of).after(prompt) == expected
