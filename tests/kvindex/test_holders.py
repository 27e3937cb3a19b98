"""Who has which bit, and what masks of bits say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kvindex.holders import (
    Copies,
    Engine,
    EngineGroup,
    Holders,
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


def first(engine: Engine) -> EngineGroup:
    """The group of an engine that gives points."""
    return EngineGroup(engine, 0, True)


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
        self.seats: list[EngineGroup | None] = [None] * 6

    def taken(self) -> dict[int, EngineGroup]:
        return {number: holder for number, holder in enumerate(self.seats) if holder is not None}

    def find(self, source: Engine, group: int) -> int | None:
        same = (number for number, it in self.taken().items() if (it.source, it.group) == (source, group))
        return next(same, None)

    def sit(self, source: Engine, group: int, scored: bool | None) -> int | None:
        """The bit of a group, None when all are taken."""
        number = self.find(source, group)
        if number is not None and scored is not None:
            self.seats[number] = EngineGroup(source, group, scored)
        if number is not None or None not in self.seats:
            return number
        number = self.seats.index(None)
        self.seats[number] = EngineGroup(source, group, group == 0 if scored is None else scored)
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
                holders.assign(number, EngineGroup(who, group, True))
                model.seats[number] = EngineGroup(who, group, True)
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


@given(masks)
def test_bits_are_those_that_are_set_lowest_first(mask: int) -> None:
    assert bits(mask) == [number for number in range(80) if mask >> number & 1]
