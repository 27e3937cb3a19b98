"""Blocks and their hashes, without sequences."""

from __future__ import annotations

import pytest

from app.kvcache.block_pool import BlockPool

HASH = b"h" * 32


def pool(blocks: int = 4) -> tuple[BlockPool, list[bytes]]:
    """A pool of so many usable blocks, and the hashes that it evicts."""
    evicted: list[bytes] = []
    return BlockPool(blocks + 1, evicted.extend), evicted


def test_of_equal_blocks_the_one_cached_first_is_found() -> None:
    ours, evicted = pool(3)
    blocks = ours.take(3)
    for block in blocks:
        ours.cache(block, HASH)
    assert ours.longest_prefix([HASH]) == [blocks[0]]
    for gone, found in ((0, 1), (1, 2)):
        ours.release([blocks[gone]])
        assert ours.take(1) == [blocks[gone]]
        assert ours.longest_prefix([HASH]) == [blocks[found]]
    ours.release([blocks[2]])
    ours.take(1)
    assert ours.longest_prefix([HASH]) == []
    assert evicted == [HASH] * 3


def test_a_prefix_ends_where_a_block_is_missing() -> None:
    ours, _ = pool(3)
    first, third = ours.take(2)
    ours.cache(first, b"1")
    ours.cache(third, b"3")
    assert ours.longest_prefix([b"1", b"2", b"3"]) == [first]


def test_a_null_block_is_never_handed_out() -> None:
    ours, _ = pool(2)
    assert [block.number for block in ours.take(2)] == [1, 2]
    assert (ours.capacity, ours.free) == (2, 0)


def test_memory_is_taken_by_blocks_that_were_used_and_by_those_only() -> None:
    ours, _ = pool(4)
    one = ours.limit_bytes // 4
    assert ours.size_bytes == 0
    blocks = ours.take(3)
    assert ours.size_bytes == 3 * one
    ours.release(blocks)
    ours.take(3)
    assert ours.size_bytes == 3 * one
    ours.take(1)
    assert ours.size_bytes == ours.limit_bytes


def test_the_check_finds_broken_books() -> None:
    for damage in range(5):
        ours, _ = pool(4)
        mine, other = ours.take(2), ours.take(1)
        ours.cache(mine[0], HASH)
        ours.release(other)
        ours.check_integrity([mine])
        sequences = [mine]
        match damage:
            case 0:
                mine[0].references = 2
            case 1:
                mine[0].hash = b"other"
            case 2:
                ours.queue.give_back([mine[1]])
            case 3:
                sequences = []
            case 4:
                mine[1].number = mine[0].number
        with pytest.raises(RuntimeError):
            ours.check_integrity(sequences)
