"""A known beginning and a new end are joined only where both say the same for long enough."""

from array import array
from collections.abc import Sequence

import pytest

from app.kvindex.chunks import Beginning, Chunk
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


def words_of(size: int, tokens: int = 24) -> Beginning:
    """Known tokens in words of `size`."""
    return Beginning(list(range(tokens)), [(end, end) for end in range(0, tokens + 1, size)])


@pytest.mark.parametrize(
    ("size", "same", "joins"),
    [
        (3, 12, True),
        (3, 11, False),
        (4, 12, True),
        (6, 12, False),
        (6, 18, True),
        (2, 12, True),
        (2, 11, False),
    ],
)
def test_four_cuts_and_twelve_tokens_have_to_agree(size: int, same: int, joins: bool) -> None:
    known = words_of(size)
    again = [99] * (24 - same) + known.ids[24 - same :]
    joined = known.join(CutText([*again, 5, 6], [*known.cuts[1:], (25, 25)]))
    assert joined == (CutText([*known.ids, 5, 6], [(25, 25)]) if joins else None)


def chunk(ids: Sequence[int], cuts: Sequence[int], characters: int) -> Chunk:
    return Chunk(b"", array("I", ids), array("I", cuts), array("I", [characters + cut for cut in cuts]))


@pytest.mark.parametrize(
    ("size", "first"),
    [(1, 16), (2, 14), (3, 12), (4, 10), (5, 5), (6, None)],
)
def test_a_text_is_encoded_anew_from_two_words_before_those_that_have_to_agree(
    size: int, first: int | None
) -> None:
    """Of thirty known tokens, that are in two chunks; with four cuts and twelve tokens to agree."""
    ends = [end for end in range(30, 0, -size)][::-1]
    chunks = [
        chunk(range(100, 120), [end for end in ends if end <= 20], 1000),
        chunk(range(120, 130), [end - 20 for end in ends if end > 20], 1020),
    ]
    found = Beginning.of(chunks)
    if first is None:
        assert found is None
    else:
        cuts = [(end, 1000 + end) for end in ends if end >= first]
        assert found == Beginning(list(range(100, 130)), cuts)


@pytest.mark.parametrize("tokens", [0, 12, 17])
def test_a_few_known_tokens_are_of_no_use(tokens: int) -> None:
    assert Beginning.of([chunk(range(tokens), range(4, tokens + 1), 0)]) is None
    assert Beginning.of([]) is None
