"""Events in a row that differ only in their blocks.

Engines announce blocks one by one, and to use a few of them at once costs much less than one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from app.kvcache.events import BlockHash, BlockRemoved, BlockStored, KVEvent
from app.kvindex.decoding import LOW_64, hashes


class Refused(Exception):
    """An event cannot be used; the message is the reason as `Losses.event` takes it."""


class Run(Struct, gc=False):
    """Stores that differ only in their blocks, with engine keys as numbers.

    `engine` are those of all blocks in a row, `parents` has one for each event. `adapter` is None for the
    base model.
    """

    events: Sequence[BlockStored]
    engine: Sequence[int]
    parents: Sequence[int | None]
    group: int
    tier: str
    adapter: str | None

    def apart(self) -> Iterator[Run]:
        """Every event as a run of its own."""
        at = 0
        for event, parent in zip(self.events, self.parents, strict=True):
            end = at + len(event.block_hashes)
            yield Run([event], self.engine[at:end], [parent], self.group, self.tier, self.adapter)
            at = end


def runs(events: Iterable[KVEvent], block_size: int) -> Iterator[list[KVEvent]]:
    """The events in their order, those together that one operation can stand for.

    Those are removals from one medium and group, and stores of one medium, group and adapter whose blocks
    have `block_size` tokens and no extra keys.
    """
    run: list[KVEvent] = []
    may_go_on = False
    for event in events:
        if run and not (may_go_on and _alike(run[0], event)):
            yield run
            run = []
        if not run:
            may_go_on = isinstance(event, BlockRemoved) or _is_plain(event, block_size)
        run.append(event)
    if run:
        yield run


def _is_plain(event: KVEvent, block_size: int) -> bool:
    """Whether a store has tokens for blocks of this size, and nothing else tells the blocks apart."""
    return (
        isinstance(event, BlockStored)
        and event.block_size == block_size
        and bool(event.token_ids)
        and not (event.extra_keys and any(event.extra_keys))
    )


def _alike(first: KVEvent, event: KVEvent) -> bool:
    """Whether an event differs only in its blocks from one that is plain, or a removal."""
    if isinstance(event, BlockStored):
        return (
            isinstance(first, BlockStored)
            and event.medium == first.medium
            and event.lora_name == first.lora_name
            and event.lora_id == first.lora_id
            and event.group_idx == first.group_idx
            and event.kv_cache_spec_kind == first.kv_cache_spec_kind
            and _is_plain(event, first.block_size)
        )
    return (
        isinstance(event, BlockRemoved)
        and isinstance(first, BlockRemoved)
        and event.medium == first.medium
        and event.group_idx == first.group_idx
    )


def whole(field: str, values: Sequence[BlockHash]) -> list[int]:
    """Block hashes as engine keys. Refused for hashes that are none."""
    try:
        return hashes(values)
    except ValueError:
        raise Refused(f"bad_{field}") from None


def parent_of(event: BlockStored) -> int | None:
    """The engine key of the block before the first one; some engines write 0 for none."""
    parent = event.parent_block_hash
    if parent is None or parent.__class__ is int:
        return parent and int(parent) & LOW_64 or None
    return whole("parent_block_hash", [parent])[0] or None


def group_of(group: int | None) -> int:
    if group is not None and group < 0:
        raise Refused("bad_group_idx")
    return group or 0
