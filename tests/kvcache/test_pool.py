"""Blocks and their hashes, without sequences."""

from __future__ import annotations

import pytest

from app.kvcache.block_pool import BlockPool

HASH = b"h" * 32


def pool(blocks: int = 4) -> tuple[BlockPool, list[bytes]]:
    """A pool of so many usable blocks, and the hashes that it evicts."""
    evicted: list[bytes] = []
    return BlockPool(blocks + 1, evicted.extend), evicted


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
