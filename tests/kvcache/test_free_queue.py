"""In which order free blocks are used again."""

from __future__ import annotations

from app.kvcache.block_pool import Block, FreeQueue


def held(number: int, adapter: str | None = None) -> Block:
    return Block(number, hash=bytes([number]), adapter=adapter)


def drained(queue: FreeQueue) -> list[int]:
    return [queue.take().number for _ in range(queue.free)]


def test_there_may_be_more_blocks_than_memory_for_them() -> None:
    queue = FreeQueue(1, 10**15)
    assert queue.free == 10**15 - 1
    assert queue.take().number == 1


def test_blocks_of_unloaded_adapters_go_between_empty_and_other_cached_ones() -> None:
    queue = FreeQueue(1, 1)
    queue.give_back([held(1), held(2, "a")])
    queue.give_back([held(3, "b"), Block(4)])
    queue.unload("a")
    queue.unload("b")
    queue.give_back([held(5), held(6, "a")])
    assert [block.number for block in queue] == [4, 2, 3, 6, 1, 5]
    queue.load("b")
    assert drained(queue) == [4, 2, 6, 1, 3, 5]


def test_blocks_that_are_emptied_keep_their_order() -> None:
    queue = FreeQueue(1, 1)
    queue.give_back([held(1), held(2, "a")])
    queue.unload("a")
    for block in queue:
        block.hash = None
    queue.empty_all()
    queue.give_back([held(3), Block(4)])
    assert drained(queue) == [4, 2, 1, 3]
