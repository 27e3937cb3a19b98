"""Who has which bit, and what masks of bits say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kvindex.holders import (
    Copies,
    Holders,
    anywhere,
    bits,
    count_copies,
    with_holder,
    without_holder,
)
from tests.kvindex.held import source

A, B, C = map(source, "abc")
masks = st.integers(0, 1 << 70)


def members(copies: Copies) -> set[tuple[int, int]]:
    """Tier and bit of every copy."""
    return {(tier, number) for tier, mask in enumerate(copies) for number in range(80) if mask >> number & 1}


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 5)), max_size=30))
def test_copies_are_a_set_of_holders_in_tiers(changes: list[tuple[bool, int, int]]) -> None:
    copies: Copies = ()
    known: set[tuple[int, int]] = set()
    for is_there, tier, number in changes:
        before = copies
        if is_there:
            copies, known = with_holder(copies, tier, 1 << number), known | {(tier, number)}
        else:
            copies, known = without_holder(copies, tier, 1 << number), known - {(tier, number)}
        assert members(copies) == known
        assert (copies is before) == (members(before) == known)
        assert not copies or copies[-1]
        assert count_copies(copies) == len(known)
        assert set(bits(anywhere(copies))) == {number for _, number in known}
    for number in range(6):
        copies = without_holder(copies, None, 1 << number)
        assert number not in bits(anywhere(copies))
    assert copies == ()


def test_adapters_are_known_by_the_holders_that_have_blocks_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.kvindex.holders.MOST_ADAPTERS", 3)
    holders = Holders(3)
    for each in (A, B):
        holders.number(each, 0)
    for name, number in (("a", 0), ("b", 0), ("a", 1), ("c", 1), ("a", 1), ("d", 1)):
        holders.serves(name, number)
    assert [holders.mask(name) for name in "abcd"] == [0b11, 0, 0b10, 0b10]  # b was used longest ago
    for number, left in ((1, [0b01, 0, 0, 0]), (0, [0] * 4)):
        holders.release(number)
        assert [holders.mask(name) for name in "abcd"] == left
    assert len(holders._adapters) == 0


@given(masks)
def test_bits_are_those_that_are_set_lowest_first(mask: int) -> None:
    assert bits(mask) == [number for number in range(80) if mask >> number & 1]
