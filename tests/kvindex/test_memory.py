"""The index in memory: its bound, its table of blocks, and that what it counts is what it holds."""

from __future__ import annotations

from sys import getsizeof
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kvindex.backend import Offload, Remove, Store
from app.kvindex.holders import Copies, count_copies
from app.kvindex.memory import (
    BLOCK_BYTES,
    COPY_BYTES,
    REPEAT_BYTES,
    SHARE_BYTES,
    MemoryBackend,
    weigh_bytes,
    weigh_copies,
)
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
    assert len(backend._maps[0].owned) < 100 * 5 / 4 + 64 + 20


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
    assert weigh_bytes((1 << 999,)) - one == getsizeof(1 << 999) - getsizeof(1)


@pytest.mark.parametrize(
    ("copies", "weight"),
    [
        ((), 0),
        ((0b101,), 2),
        ((0b1, 0b11), 3),
        ((1 << 4094,), 1),
        ((1 << 4095,), 2),
        ((1 << 8191, 1 << 4095), 5),
    ],
)
def test_a_copy_counts_once_more_for_each_half_of_its_share_that_a_mask_takes(
    copies: Copies, weight: int
) -> None:
    assert weigh_copies(copies) == weight


@given(st.lists(st.lists(st.integers(0, 65_535), min_size=1, max_size=3), min_size=1, max_size=3))
def test_no_copy_takes_more_than_its_share(numbers: list[list[int]]) -> None:
    copies = tuple(sum(1 << number for number in set(some)) for some in numbers)
    assert weigh_bytes(copies) <= SHARE_BYTES * weigh_copies(copies)


def test_beyond_what_repeats_may_take_blocks_are_held_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.kvindex.memory.REPEATS_BYTES", 2 * REPEAT_BYTES)
    backend, keys = MemoryBackend(), [1, 2, 3]
    backend.apply(A, [store(keys, keys), store(keys, keys), Remove(0, "gpu", keys)])
    assert set(content(backend, keys)) == {1, 2}
    backend.apply(A, [Remove(0, "gpu", [1]), store([2], [2]), store([3], [3]), store([3], [3])])
    backend.apply(A, [Remove(0, "gpu", keys)])
    assert set(content(backend, keys)) == {2, 3}


def test_a_map_is_swept_when_a_quarter_and_some_more_of_its_entries_lead_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.kvindex.memory.SPARE", 2)
    backend, lengths = MemoryBackend(8), []
    for key in range(1, 15):
        backend.apply(A, [store([key], [key])])
        lengths.append(len(backend._maps[0].owned))
    assert lengths == [*range(1, 14), 8]  # 6 of 14 are more than a quarter and 2
    backend.apply(A, [Remove(0, "gpu", [1])])
    assert (backend._maps[0].stale, backend.size().evicted) == (0, 6)


@pytest.mark.parametrize(("blocks", "pauses"), [(1, 0), (4, 0), (5, 1), (12, 2)])
def test_engines_are_cleared_a_slice_at_a_time(
    blocks: int, pauses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.kvindex.memory.SLICE", 4)
    backend = MemoryBackend()
    backend.apply(A, [store(range(blocks), range(blocks))])
    turns: list[None] = []
    monkeypatch.setattr("app.kvindex.memory.pause_if_possible", lambda: turns.append(None))
    assert backend.clear("a") == blocks and len(turns) == pauses
    assert (backend.size().copies, backend.pods()) == (0, [])


def test_maps_are_swept_a_slice_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.kvindex.memory.SLICE", 4)
    monkeypatch.setattr("app.kvindex.memory.SPARE", 0)
    backend = MemoryBackend(8)
    backend.apply(A, [store([key], [key]) for key in range(8)])
    turns: list[None] = []
    monkeypatch.setattr("app.kvindex.memory.pause_if_possible", lambda: turns.append(None))
    backend.apply(A, [store([key], [key]) for key in range(8, 18)])
    assert len(turns) == 5
    assert len(backend._maps[0].owned) == 8
