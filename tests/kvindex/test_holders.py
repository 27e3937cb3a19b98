"""Who has which bit, and what masks of bits say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kvindex.holders import (
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
from tests.kvindex.held import source

A, B, C = map(source, "abc")
masks = st.integers(0, 1 << 70)


def first(engine: Source) -> Holder:
    """The group of an engine that gives points."""
    return Holder(engine, 0, True)


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
    assert [holders.number(each, 0) for each in (A, B, C)] == [0, 1, 2]
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
    holders.assign(2, first(A))
    assert (len(holders), holders[2], holders[1], holders[3], holders[9]) == (1, first(A), None, None, None)
    assert holders.seats() == [None, None, first(A)]
    holders.assign(2, first(B))
    assert (holders.find(A, 0), holders.find(B, 0), set(holders.pods)) == (None, 2, {"b"})
    assert [holders.number(each, 1) for each in (A, B, C)] == [0, 1, 3]
    with pytest.raises(TooManyHolders):
        holders.number(C, 2)
    assert not holders.one_group_each and holders.groups(B) == {0: 2, 1: 1}


def test_what_is_scored_of_a_model_and_of_pods() -> None:
    holders = Holders(9)
    for each, group in ((A, 0), (A, 1), (B, 0), (source("b", "other"), 0)):
        holders.number(each, group)
    assert [holders[number] for number in (0, 1)] == [first(A), Holder(A, 1, False)]
    assert (holders.mask("m"), holders.mask("other"), holders.mask("none")) == (0b0101, 0b1000, 0)
    assert (holders.mask("m", ["a"]), holders.mask("m", ["b", "c"]), holders.mask("m", ["c"])) == (1, 4, 0)
    assert holders.number(A, 1, scored=True) == 1 and holders.mask("m") == 0b0111
    assert holders.number(A, 1) == 1 and holders.mask("m") == 0b0111
    assert [number for number, _ in holders.of(0b1010)] == [1, 3]
    assert holders.sources("a") == [A] and holders.sources("c") == []
    holders.release(0)
    holders.release(1)
    assert (holders.mask("m"), set(holders.pods), holders.sources("a")) == (0b0100, {"b"}, [])


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


Step = tuple[str, int, int, int]
steps = st.tuples(
    st.sampled_from(["number", "number", "number", "scored", "assign", "release"]),
    st.integers(0, 7),
    st.integers(0, 1),
    st.integers(0, 5),
)


class Seats:
    """Who has which bit, as a list of six."""

    def __init__(self) -> None:
        self.seats: list[Holder | None] = [None] * 6

    def taken(self) -> dict[int, Holder]:
        return {number: holder for number, holder in enumerate(self.seats) if holder is not None}

    def find(self, source: Source, group: int) -> int | None:
        same = (number for number, it in self.taken().items() if (it.source, it.group) == (source, group))
        return next(same, None)

    def sit(self, source: Source, group: int, scored: bool | None) -> int | None:
        """The bit of a group, None when all are taken."""
        number = self.find(source, group)
        if number is not None and scored is not None:
            self.seats[number] = Holder(source, group, scored)
        if number is not None or None not in self.seats:
            return number
        number = self.seats.index(None)
        self.seats[number] = Holder(source, group, group == 0 if scored is None else scored)
        return number

    def mask(self, model: str, pods: str) -> int:
        return sum(
            1 << number
            for number, it in self.taken().items()
            if it.scored and it.source.model == model and (it.source.pod in pods or not pods)
        )


@given(st.lists(steps, max_size=25))
def test_holders_know_what_a_list_of_seats_says(history: list[Step]) -> None:
    holders, model = Holders(6), Seats()
    for what, engine, group, number in history:
        who = source("ab"[engine & 1], "mn"[engine >> 1 & 1], engine >> 2)
        match what:
            case "number" | "scored":
                scored = None if what == "number" else number % 2 == 0
                expected = model.sit(who, group, scored)
                if expected is None:
                    with pytest.raises(TooManyHolders):
                        holders.number(who, group, scored)
                else:
                    assert holders.number(who, group, scored) == expected
            case "assign" if model.find(who, group) in (None, number):
                holders.assign(number, Holder(who, group, True))
                model.seats[number] = Holder(who, group, True)
            case "release":
                holders.release(number)
                model.seats[number] = None
        agree(holders, model)


def agree(holders: Holders, model: Seats) -> None:
    taken = model.taken()
    assert [holders[number] for number in range(9)] == [*model.seats, None, None, None]
    assert dict(enumerate(holders.seats())).items() >= taken.items() and list(holders) == list(taken.values())
    assert len(holders) == len(taken)
    sources = {holder.source for holder in taken.values()}
    assert set(holders.pods) == {each.pod for each in sources}
    assert holders.one_group_each == (len(sources) == len(taken))
    for pod in "ab":
        assert set(holders.sources(pod)) == {each for each in sources if each.pod == pod}
    for name in "mno":
        assert [holders.mask(name, pods) for pods in ("", "a", "b", "ab", "c")] == [
            model.mask(name, pods) for pods in ("", "a", "b", "ab", "c")
        ]
    for who in sources:
        groups = {it.group: number for number, it in taken.items() if it.source == who}
        assert holders.groups(who) == groups
        assert [holders.find(who, group) for group in (0, 1)] == [groups.get(group) for group in (0, 1)]
