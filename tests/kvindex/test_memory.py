"""The index in memory: its bound, and that what it counts is what it holds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kvindex.backend import Offload, Remove, Store
from app.kvindex.holders import count_copies
from app.kvindex.memory import BLOCK_BYTES, COPY_BYTES, MemoryBackend, weigh_bytes
from app.kvindex.tables import MAP_ENTRIES
from tests.kvindex.held import content, source, store

A, B = source("a"), source("b")


def test_beyond_its_bound_the_block_that_was_not_used_for_longest_goes() -> None:
    backend = MemoryBackend(2)
    backend.apply(A, [store([1], [11]), store([2], [12])])
    backend.lookup([11])
    backend.apply(A, [store([3], [13])])
    assert set(content(backend, [11, 12, 13])) == {11, 13}
    backend.apply(A, [store([1], [11])])  # stored again: in use
    backend.apply(B, [store([4], [14])])
    assert set(content(backend, [11, 13, 14])) == {11, 14}
    assert backend.size().evicted == 2


def test_the_bound_counts_holders_and_tiers() -> None:
    backend = MemoryBackend(3)
    backend.apply(A, [store([1], [11]), Offload(0, "cpu", [1])])
    backend.apply(B, [store([1], [11])])
    assert (backend.size().copies, backend.size().blocks) == (3, 1)
    backend.apply(B, [store([2], [12])])
    assert content(backend, [11, 12]) == {12: {("b", "gpu")}}


def test_a_block_that_made_room_can_come_back_and_be_removed() -> None:
    backend = MemoryBackend(2)
    backend.apply(A, [store([1, 2, 3], [11, 12, 13])])
    assert set(content(backend, [11, 12, 13])) == {12, 13}
    backend.apply(A, [Offload(0, "gpu", [1])])
    assert 11 in content(backend, [11])
    assert backend.apply(A, [Remove(0, "gpu", [1, 2, 3])]).unknown == 0
    assert backend.size().copies == 0


def test_maps_forget_the_blocks_that_made_room() -> None:
    backend = MemoryBackend(100)
    for number in range(0, 10_000, 10):
        keys = range(number, number + 10)
        backend.apply(A, [store(keys, keys)])
    assert backend.size().copies == 100
    assert sum(map(len, backend._maps.values())) < 100 * 5 / 4 + 64 + 20


def test_a_block_is_known_again_however_many_others_came_since() -> None:
    backend = MemoryBackend(1_000_000)
    backend.apply(A, [store([1], [11])])
    for first in range(1_000, 1_000 + 2 * MAP_ENTRIES, 1_000):
        others = range(first, first + 1_000)
        backend.apply(A, [store(others, others)])
    assert backend.apply(A, [store([1], [12])]).removed == 1  # its tokens are others now
    assert content(backend, [11, 12]) == {12: {("a", "gpu")}}


def test_what_a_key_has_come_to_mean_is_known_when_others_have_made_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.kvindex.tables.MAP_ENTRIES", 10)
    backend = MemoryBackend(100)
    backend.apply(A, [store([1], [11]), *(store([key], [key]) for key in range(100, 120)), store([1], [12])])
    for key in range(1_000, 2_000):
        backend.apply(A, [store([key], [key])])
        backend.lookup([12])  # in use
    assert set(content(backend, [11, 12])) == {12}
    assert backend.apply(A, [Remove(0, "gpu", [1])]).removed == 1
    assert content(backend, [11, 12]) == {}


def test_a_budget_of_one_block_and_a_half_keeps_the_last_of_three() -> None:
    one = weigh_bytes((1,))
    backend = MemoryBackend(one * 3 // 2, weigh_bytes)
    for number in (1, 2, 3):
        backend.apply(A, [store([number], [10 + number])])
    assert set(content(backend, [11, 12, 13])) == {13}
    assert backend.size().weight == one


@given(st.lists(st.tuples(st.sampled_from("srox"), *[st.integers(0, 9)] * 2), max_size=60), st.booleans())
def test_its_weight_is_the_sum_of_what_its_blocks_weigh(history: list[Any], bounded: bool) -> None:
    for weigh in (count_copies, weigh_bytes):
        backend = MemoryBackend((5 if weigh is count_copies else 3_000) if bounded else 1 << 40, weigh)
        for what, key, pod in history:
            tier = "cpu" if key % 3 else "gpu"
            match what:
                case "s":
                    operation: Any = store([key], [key + 10], tier)
                case "r":
                    operation = Remove(0, tier, [key])
                case "o":
                    operation = Offload(0, tier, [key])
                case _:
                    operation = Store(0, tier, [key], [(key + 10, key + 11)], [key + 10, key + 11])
            backend.apply(source(f"pod{pod}"), [operation])
        size, held = backend.size(), [copies for _, copies in backend.table]
        assert size.weight == sum(map(weigh, held)) <= (size.bound or 0)
        assert size.copies == sum(map(count_copies, held))
        assert all(held)


def test_repeats_can_be_reports_of_what_is_known() -> None:
    backend = MemoryBackend(count_repeats=False)
    backend.apply(A, [store([1], [11]), store([1], [11])])
    backend.apply(A, [Remove(0, "gpu", [1])])
    assert content(backend, [11]) == {}


def test_blocks_of_one_prompt_share_their_masks() -> None:
    backend = MemoryBackend()
    keys = range(1000)
    for pod in range(50):
        backend.apply(source(f"pod{pod}"), [store(keys, keys)])
    assert len({id(copies) for _, copies in backend.table}) == 1


def test_a_block_weighs_its_entry_and_one_for_each_copy() -> None:
    assert weigh_bytes(()) == 0
    one, two = weigh_bytes((1,)), weigh_bytes((3,))
    assert two - one == COPY_BYTES and one > BLOCK_BYTES + COPY_BYTES
