"""Items in the cache of an encoder: who holds them, and which ones are evicted."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.shared.step_policies.encoder_cache import EncoderCache

CAPACITY = 10
ACTIONS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.sampled_from(["encode", "release"])),
    max_size=30,
)
"""Sequence, item, and what it does with the item."""


def encode(cache: EncoderCache[str], sequence: str, number: int, name: str, size: int) -> str:
    if cache.hold(sequence, number, name):
        return "cached"
    if not cache.make_room(size):
        return "no room"
    cache.store(sequence, number, name=name, size=size)
    return "encoded"


def test_equal_items_of_two_sequences_are_encoded_once() -> None:
    cache: EncoderCache[str] = EncoderCache(CAPACITY)
    assert encode(cache, "a", 0, name="cat", size=6) == "encoded"
    assert encode(cache, "b", 3, name="cat", size=6) == "cached"
    cache.release_all("a")
    assert encode(cache, "c", 0, name="dog", size=6) == "no room"
    cache.release_all("b")
    assert encode(cache, "c", 0, name="dog", size=6) == "encoded"
    assert encode(cache, "d", 0, name="cat", size=6) == "no room"


def test_item_that_was_unused_for_the_longest_time_is_evicted() -> None:
    cache: EncoderCache[str] = EncoderCache(CAPACITY)
    for name in ("cat", "dog"):
        encode(cache, name, 0, name=name, size=5)
    for name in ("dog", "cat"):
        cache.release_all(name)
    assert encode(cache, "a", 0, name="cow", size=2) == "encoded"
    assert encode(cache, "a", 1, name="cat", size=5) == "cached"
    assert encode(cache, "a", 2, name="dog", size=5) == "no room"


@pytest.mark.parametrize(("keeps", "later"), [(True, "no room"), (False, "encoded")])
def test_repeated_item_is_held_to_its_last_place(keeps: bool, later: str) -> None:
    cache: EncoderCache[str] = EncoderCache(CAPACITY, keeps_repeated_items=keeps)
    encode(cache, "a", 0, name="cat", size=6)
    encode(cache, "a", 1, name="cat", size=6)
    cache.release("a", 0)
    assert cache.held("a") == [1]
    assert encode(cache, "b", 0, name="dog", size=6) == later


@given(ACTIONS)
def test_items_never_exceed_the_capacity_and_all_room_returns(
    actions: Sequence[tuple[str, int, str]],
) -> None:
    cache: EncoderCache[str] = EncoderCache(CAPACITY)
    for sequence, number, action in actions:
        if action == "release":
            cache.release_all(sequence)
        else:
            encode(cache, sequence, number, name=str(number), size=2 + number)
        held = {number for holder in "ab" for number in cache.held(holder)}
        assert sum([2 + number for number in held]) <= CAPACITY
    for sequence in "ab":
        cache.release_all(sequence)
        assert not cache.held(sequence)
    assert cache.make_room(CAPACITY)
    assert not cache.make_room(CAPACITY + 1)
