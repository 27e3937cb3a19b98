"""Blocks without sequences: which are free, in which order they are used again, what they take."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.kvcache.block_pool import BLOCK_BYTES, Block, BlockPool, CountedBlocks


def pool(blocks: int = 4) -> tuple[BlockPool, list[bytes]]:
    """A pool of so many usable blocks, and the hashes that it evicts."""
    evicted: list[bytes] = []
    return BlockPool(blocks + 1, evicted.extend), evicted


def cached(ours: BlockPool, *adapters: str | None) -> list[Block]:
    """New blocks, each cached for tokens of an adapter."""
    blocks = ours.take(len(adapters))
    for block, adapter in zip(blocks, adapters, strict=True):
        ours.cache(block, bytes([block.number]), adapter)
    return blocks


def order(ours: BlockPool) -> list[int]:
    return [block.number for block in ours.free_blocks()]


def test_there_may_be_more_blocks_than_memory_for_them() -> None:
    ours, _ = pool(10**15)
    assert (ours.free, ours.take(1)[0].number, ours.size_bytes) == (10**15, 1, BLOCK_BYTES)
    with pytest.raises(IndexError):
        pool(1)[0].take(2)


def test_blocks_of_unloaded_adapters_go_between_empty_and_other_cached_ones_and_keep_their_order() -> None:
    ours, evicted = pool(6)
    first, second, third = cached(ours, "a", None), cached(ours, "b"), cached(ours, "a", None)
    [fourth] = ours.take(1)
    ours.release(first)
    ours.release([fourth, *second])
    ours.unload_adapter("a")
    ours.unload_adapter("b")
    ours.release(third)
    assert order(ours) == [6, 1, 3, 4, 2, 5]
    ours.load_adapter("b")
    assert order(ours) == [6, 1, 4, 2, 3, 5]
    ours.clear()
    assert order(ours) == [6, 1, 4, 2, 3, 5] == [block.number for block in ours.take(6)]
    assert evicted == []


SIZE = 16


class NumberedBlocks:
    """Blocks with numbers, in the order in which they became free; the first is taken next."""

    def __init__(self, count: int) -> None:
        self.free = list(range(count))
        self.left: dict[str, list[int]] = {}

    def take(self, count: int) -> list[int]:
        taken, self.free = self.free[:count], self.free[count:]
        for name, blocks in self.left.items():
            gone = [place for place, block in enumerate(blocks) if block in taken]
            self.left[name] = blocks[: min(gone, default=len(blocks))]
        return taken

    def leave(self, name: str, blocks: Sequence[int], findable: int) -> None:
        self.free += reversed(blocks)
        self.left[name] = list(blocks[:findable])

    def come_back(self, name: str, found: int, count: int) -> list[int]:
        again = self.left.pop(name, [])[:found]
        self.free = [block for block in self.free if block not in again]
        return again + self.take(count)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 6), st.integers(0, 6)), max_size=40))
def test_what_others_have_taken_meanwhile_is_found_no_more(actions: list[tuple[str, int, int]]) -> None:
    counted, numbered = CountedBlocks(13, SIZE), NumberedBlocks(12)
    held: dict[str, list[int]] = {}
    for name, count, findable in actions:
        if name in held:
            blocks = held.pop(name)
            findable = min(findable, len(blocks))
            counted.release(name, len(blocks), findable)
            numbered.leave(name, blocks, findable)
            continue
        tokens = count * SIZE + 1
        found = counted.find(name, tokens)
        assert found == min(len(numbered.left.get(name, [])), count)
        if count <= counted.free:
            counted.begin(name, found, count - found)
            held[name] = numbered.come_back(name, found, count - found)
        assert counted.free == len(numbered.free)
