"""Who has which bit, and what masks of bits say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kvindex.holders import (
    HOLDER_BYTES,
    MOST_ADAPTERS,
    AdapterMasks,
    Copies,
    Holder,
    Holders,
    Source,
    TooManyHolders,
    anywhere,
    bits,
    count_copies,
    with_holder,
    without_holder,
)

A, B, C = (Source(pod, "m") for pod in "abc")
masks = st.integers(0, 1 << 70)


def members(copies: Copies) -> set[tuple[int, int]]:
    """Tier and bit of every copy."""
    return {(tier, number) for tier, mask in enumerate(copies) for number in range(80) if mask >> number & 1}


@given(masks)
def test_bits_are_those_that_are_set_lowest_first(mask: int) -> None:
    assert bits(mask) == [number for number in range(80) if mask >> number & 1]


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


def test_the_lowest_bit_that_nobody_has_is_given_and_no_more_than_there_may_be() -> None:
    holders = Holders(3)
    assert [holders.number(source, 0) for source in (A, B, C)] == [0, 1, 2]
    assert holders.number(B, 0) == 1
    with pytest.raises(TooManyHolders):
        holders.number(A, 1)
    holders.release(1)
    holders.release(0)
    holders.release(0)
    assert len(holders) == 1 and [holder.source for holder in holders] == [C]
    assert [holders.number(B, 0), holders.number(A, 0)] == [0, 1]


def test_bits_that_somebody_else_gave_are_known_and_those_between_are_free() -> None:
    holders = Holders(4)
    holders.assign(2, Holder(A))
    assert (len(holders), holders[2], holders[1], holders[3], holders[9]) == (1, Holder(A), None, None, None)
    assert holders.seats() == [None, None, Holder(A)]
    holders.assign(2, Holder(B))
    assert (holders.find(A, 0), holders.find(B, 0), set(holders.pods)) == (None, 2, {"b"})
    assert [holders.number(source, 1) for source in (A, B, C)] == [0, 1, 3]
    with pytest.raises(TooManyHolders):
        holders.number(C, 2)
    assert not holders.one_group_each and holders.groups(B) == {0: 2, 1: 1}


def test_what_is_scored_of_a_model_and_of_pods() -> None:
    holders = Holders(9)
    for source, group in ((A, 0), (A, 1), (B, 0), (Source("b", "other"), 0)):
        holders.number(source, group)
    assert [holders[number] for number in (0, 1)] == [Holder(A), Holder(A, 1, scored=False)]
    assert (holders.mask("m"), holders.mask("other"), holders.mask("none")) == (0b0101, 0b1000, 0)
    assert (holders.mask("m", ["a"]), holders.mask("m", ["b", "c"]), holders.mask("m", ["c"])) == (1, 4, 0)
    assert holders.number(A, 1, scored=True) == 1 and holders.mask("m") == 0b0111
    assert holders.number(A, 1) == 1 and holders.mask("m") == 0b0111
    assert [number for number, _ in holders.of(0b1010)] == [1, 3]
    assert holders.sources("a") == [A] and holders.sources("c") == []
    holders.release(0)
    holders.release(1)
    assert (holders.mask("m"), set(holders.pods), holders.sources("a")) == (0b0100, {"b"}, [])


def test_holders_take_memory_and_give_it_back() -> None:
    holders = Holders(3)
    assert holders.size_bytes == 0
    holders.number(A, 0)
    holders.number(B, 0)
    assert holders.size_bytes == 2 * HOLDER_BYTES
    holders.serves("alice", 1)
    assert 2 * HOLDER_BYTES + 300 < holders.size_bytes < 3 * HOLDER_BYTES
    assert holders.mask("alice") == 0b10
    assert holders.limit_bytes == 3 * HOLDER_BYTES + AdapterMasks().limit_bytes
    holders.release(1)
    assert (holders.size_bytes, holders.mask("alice")) == (HOLDER_BYTES, 0)


def test_the_adapters_that_were_told_last_are_known() -> None:
    adapters = AdapterMasks(limit_bytes=3 * 400)
    for name in ("a", "b"):
        adapters.add(name, 0)
    adapters.add("a", 1)
    adapters.add("a", 1)
    for name in ("c", "d"):
        adapters.add(name, 1)
        assert adapters.size_bytes <= adapters.limit_bytes
    assert [adapters.mask(name) for name in "abcd"] == [0b11, 0, 0b10, 0b10]
    adapters.add("b", 0)
    assert [adapters.mask(name) for name in "abcd"] == [0, 0b01, 0b10, 0b10]
    for number in (0, 1):
        adapters.release(number)
    assert ([adapters.mask(name) for name in "abcd"], adapters.size_bytes) == ([0] * 4, 0)


def test_of_one_holder_only_so_many_adapters_are_known() -> None:
    adapters = AdapterMasks()
    for number in range(MOST_ADAPTERS + 1):
        adapters.add(f"a{number}", 0)
    assert [adapters.mask(f"a{number}") for number in (0, MOST_ADAPTERS - 1, MOST_ADAPTERS)] == [1, 1, 0]
    adapters.add(f"a{MOST_ADAPTERS}", 1)
    adapters.add("a0", 0)
    assert (adapters.mask(f"a{MOST_ADAPTERS}"), adapters.mask("a0")) == (0b10, 1)
