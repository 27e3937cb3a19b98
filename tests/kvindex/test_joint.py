"""A known beginning and a new end are joined only where both say the same for long enough."""

import pytest

from app.kvindex.chunks import Beginning
from app.kvindex.cuts import CutText

KNOWN = Beginning(ids=list(range(100, 128)), cuts=[(tokens, 10 * tokens) for tokens in range(10, 29, 3)])
"""28 tokens of ten characters, in words of three; the text is encoded anew from the tenth on."""


def tail(ids: list[int], shift: int = 0) -> CutText:
    return CutText(ids, [(tokens, 10 * tokens + shift) for tokens in range(3, len(ids), 3)])


def test_words_that_come_out_again_join() -> None:
    again = [*range(110, 128), 7, 8, 9, 7]
    joined = KNOWN.join(tail(again))
    assert joined == CutText([*range(100, 128), 7, 8, 9, 7], [(31, 310)])


def test_the_first_words_may_come_out_otherwise() -> None:
    joined = KNOWN.join(tail([1, 2, 3, *range(113, 128), 7]))
    assert joined is not None
    assert joined.ids == [*range(100, 128), 7]


@pytest.mark.parametrize(
    "again",
    [
        tail([*range(110, 124), 0, 125, 126, 127, 7]),  # another token
        tail([1, 2, 3, 4, 5, 6, 7, *range(117, 128), 7]),  # the same too late
        tail([*range(110, 128), 7], shift=1),  # the same at another place
        tail(list(range(110, 126))),  # it ends before
        CutText([*range(110, 128), 7], [(18, 180)]),  # no words there
        CutText([], []),
    ],
)
def test_all_else_does_not(again: CutText) -> None:
    assert KNOWN.join(again) is None
