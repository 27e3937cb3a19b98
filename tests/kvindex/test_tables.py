"""What one holder calls blocks: the latest word counts, however the map is swept meanwhile."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kvindex.backend import Owned
from app.kvindex.tables import EngineMap

keys = st.integers(0, 9)
steps = st.lists(
    st.tuples(st.sampled_from(["know", "forget", "sweep"]), keys, st.integers(1, 9)), max_size=60
)


def is_held(owned: Owned) -> bool:
    return isinstance(owned, int) and owned % 2 == 0


def sweep_all(known: EngineMap) -> int:
    """Look at everything once, after what is being looked at; how many repeats were forgotten."""
    repeats = 0
    for _ in range(2):
        repeats += known.sweep(is_held, 3)
        while known.sweeping:
            repeats += known.sweep(is_held, 3)
    return repeats


@given(steps)
def test_the_latest_word_counts_and_sweeps_forget_what_is_not_held(
    history: list[tuple[str, int, int]],
) -> None:
    known, said = EngineMap(), dict[int, int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.kvindex.tables.MAP_ENTRIES", 3)
        for what, key, value in history:
            match what:
                case "know":
                    known.update([(key, value)])
                    said[key] = value
                case "forget":
                    known.forget(key)
                    said.pop(key, None)
                case _:
                    known.sweep(is_held, value)
            for each in range(10):
                found = known.get(each)
                assert found == said.get(each) or (found is None and not is_held(said.get(each, 1)))
                assert known.has_any([each, 99]) == (found is not None)
        sweep_all(known)
    left = {key: value for key, value in said.items() if is_held(value)}
    assert {key: known.get(key) for key in range(10) if known.get(key) is not None} == left
    assert len(known) == len(left) and known.stale == 0


@given(st.integers(0, 20), st.integers(1, 5))
def test_a_map_is_emptied_some_entries_at_a_time(count: int, most: int) -> None:
    known = EngineMap()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.kvindex.tables.MAP_ENTRIES", 4)
        for key in range(count):
            known.update([(key, 100 + key)])
    assert all(len(each) <= 4 for each in known._all())
    taken: list[Owned] = []
    while len(known):
        some = known.take(most)
        assert len(some) == min(most, count - len(taken))
        taken += some
    assert sorted(taken) == [100 + key for key in range(count)] and known.take(most) == []  # type: ignore[type-var]


def test_a_sweep_looks_at_as_many_entries_as_it_may() -> None:
    known = EngineMap()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.kvindex.tables.MAP_ENTRIES", 3)
        for value in (10, 20):
            known.update([(key, value) for key in range(3)])
        assert len(known) == 6
        known.sweep(is_held, 2)
        assert len(known) == 4 and known.sweeping
        known.sweep(is_held, 2)
        assert len(known) == 3 and known.sweeping
        known.sweep(is_held, 2)
    assert [known.get(key) for key in range(3)] == [20] * 3


def test_repeats_are_counted_by_tier_and_go_with_their_block() -> None:
    known = EngineMap()
    known.update([(1, 11), (2, 13), (3, 12)])
    assert [known.repeat(0, 1), known.repeat(0, 1), known.repeat(0, 1, -1)] == [True, False, False]
    assert [known.repeat(15, 1), known.repeat(15, 1, -1), known.repeat(15, 1), known.repeat(2, 2)] == [
        True
    ] * 4
    assert known.repeat(0, 3)
    assert (known.forget(1), known.forget(1), known.forget(9)) == (2, 0, 0)
    assert sweep_all(known) == 1
    assert dict(known.repeats) == {(0, 3): 1} and known.get(3) == 12
