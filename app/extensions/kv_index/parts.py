"""Parts of a batch that are short enough for one turn of the event loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.core.engine.kvcache.events import BlockStored, KVEvent

PART_COST = 1024
"""Maximum cost of a part, and of an operation: a unit takes 2 to 15 us.

Undivided, a message with 60,000 blocks of one token, or with 3,500 events that continue each other,
held the event loop for half a second.
"""
UNALIGNED_COST = 6
"""Further cost of an event whose blocks differ in size from the index's."""


def cost_of(event: KVEvent, block_size: int) -> int:
    """Returns the cost of an event, with `block_size` tokens in a block of the index."""
    cost = 1 + len(event.block_hashes)
    if isinstance(event, BlockStored):
        if event.block_size != block_size:
            cost += UNALIGNED_COST + len(event.token_ids) // block_size
        if event.extra_keys:
            cost += sum([len(keys) for keys in event.extra_keys if keys])
    return cost


def split_batch(events: Sequence[KVEvent], block_size: int) -> Iterator[Sequence[KVEvent]]:
    """Splits a batch into parts that cost at most `PART_COST`.

    An event that costs more is a part by itself. An empty batch has one empty part.
    """
    start = 0
    part_cost = 0
    for position, event in enumerate(events):
        cost = cost_of(event, block_size)
        if part_cost + cost > PART_COST and position > start:
            yield events[start:position]
            start = position
            part_cost = 0
        part_cost += cost
    yield events[start:]
