"""The index in memory: its bound, its table of blocks, and that what it counts is what it holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kvindex.backend import Offload, Remove
from app.kvindex.memory import REPEAT_BYTES, SHARE_BYTES, MemoryBackend, weigh_bytes, weigh_copies
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
    for number in range(0, 3_000, 10):
        keys = range(number, number + 10)
        backend.apply(A, [store(keys, keys)])
    assert backend.size().copies == 100
    assert len(backend._maps[0].owned) < 100 * 5 / 4 + 64 + 20


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
