"""Events of an engine turned into operations on the index.

Engines announce blocks one by one, and to use a few of them at once costs much less than one after the other:
events in a row that differ only in their blocks are a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import cast

from app.kvcache.events import BlockHash, BlockRemoved, BlockStored, KVEvent
from app.kvindex.alignment import BlockAligner, Refused, StoreGroup, engine_keys_of, parent_of
from app.kvindex.backend import (
    GPU,
    MOST_TIERS,
    Backend,
    Clear,
    Offload,
    Operation,
    Owned,
    Remove,
)
from app.kvindex.decoding import Batch
from app.kvindex.holders import Source
from app.kvindex.keys import RequestKeys

MOST_TIER_LETTERS, MOST_NAME_LETTERS = 64, 512
MOST_MEDIA = 256
"""Spellings of tiers that are remembered."""
MOST_GROUPS = 64
"""KV cache groups of one engine."""
TOKENS_SHIFT = 4
"""In slices 16 tokens count as much as a block."""


class Ingest:
    """Turns events into operations. What cannot be used is lost with a reason, event by event."""

    def __init__(self, backend: Backend, request_keys: RequestKeys) -> None:
        self._backend = backend
        self._media: dict[str | None, str] = {}
        self.block_size = request_keys.block_size
        self.slice_blocks = request_keys.slice_blocks
        self.stores = BlockAligner(request_keys)

    def operations(self, source: Source, events: Sequence[KVEvent], losses: list[str]) -> list[Operation]:
        """What some events of a batch, those of one slice, do; reasons why some are lost go to `losses`.

        They are to be done before the next slice is asked for. May raise BackendUnavailable.
        """
        batch = _Batch(self, source)
        operations = batch.operations(events)
        losses += batch.losses
        return operations

    def slices(self, batch: Batch) -> Iterable[Sequence[KVEvent]]:
        """The events in their order, at a time so many as are applied in a few milliseconds."""
        events, most = batch.events, self.slice_blocks
        # A block and a token take a byte or more each.
        if 0 < batch.size_bytes <= most << TOKENS_SHIFT or sum(map(_work, events)) <= most:
            return (events,)
        return self._slices(events, most)

    def _slices(self, events: Sequence[KVEvent], most: int) -> Iterator[Sequence[KVEvent]]:
        part: list[KVEvent] = []
        room = most
        for event in chain.from_iterable(_pieces(event, most) for event in events):
            work = _work(event)
            if work > room and part:
                yield part
                part, room = [], most
            part.append(event)
            room -= work
        yield part

    def tier(self, medium: str | None) -> str:
        """The tier of a medium. Refused for a name too long, and for one tier too many."""
        if medium in self._media:
            return self._media[medium]
        if medium and len(medium) > MOST_TIER_LETTERS:
            raise Refused("bad_medium")
        tier = medium.lower() if medium else GPU
        known = {*self._media.values(), *self._backend.tiers}
        if tier not in known and len(known) >= MOST_TIERS:
            raise Refused("too_many_tiers")
        if len(self._media) < MOST_MEDIA:
            self._media[medium] = tier
        return tier

    def known(self, source: Source, engine: Sequence[tuple[int, int]]) -> list[Owned | None]:
        """The request keys of (group, engine key)."""
        return self._backend.owned(source, engine) if engine else []


class _Batch:
    """Some events on their way: what they say themselves of blocks comes before what the index knows.

    Events in a row that are refused as one are tried one by one; those that are refused alone are lost.
    """

    def __init__(self, ingest: Ingest, source: Source) -> None:
        self._ingest, self._source = ingest, source
        self._known: dict[tuple[int, int], Owned | None] = {}
        self._fresh: dict[int, dict[int, Owned]] = {}
        self.losses: list[str] = []

    def operations(self, events: Sequence[KVEvent]) -> list[Operation]:
        parsed = list(chain.from_iterable(map(self._parsed, runs(events, self._ingest.block_size))))
        self._look_up([each for each in parsed if isinstance(each, StoreGroup)])
        return list(chain.from_iterable(map(self._operations, parsed)))

    def _parsed(self, events: Sequence[KVEvent]) -> list[StoreGroup | Operation]:
        """A run of events, as one if possible."""
        try:
            match events[0]:
                case BlockStored():
                    return [self._stored(cast(Sequence[BlockStored], events))]
                case BlockRemoved():
                    return [self._removed(cast(Sequence[BlockRemoved], events))]
            return [Clear()]
        except Refused as refused:
            if len(events) == 1:
                self.losses.append(str(refused))
                return []
            return list(chain.from_iterable(self._parsed([event]) for event in events))

    def _stored(self, events: Sequence[BlockStored]) -> StoreGroup | Offload:
        first = events[0]
        if first.lora_name and len(first.lora_name) > MOST_NAME_LETTERS:
            raise Refused("bad_lora_name")
        run = StoreGroup(
            events,
            engine_keys_of("block_hashes", _hashes(events)),
            [parent_of(event) for event in events],
            _group_of(first.group_idx),
            self._ingest.tier(first.medium),
            # Engines of before vLLM 0.14 tell only the number of an adapter.
            first.lora_name or (str(first.lora_id) if first.lora_id else None),
        )
        return run if first.token_ids else Offload(run.group, run.tier, run.engine)

    def _removed(self, events: Sequence[BlockRemoved]) -> Remove:
        engine = engine_keys_of("block_hashes", _hashes(events))
        return Remove(_group_of(events[0].group_idx), self._ingest.tier(events[0].medium), engine)

    def _look_up(self, stored: Sequence[StoreGroup]) -> None:
        """Ask the index for all blocks that these events continue, at once."""
        wanted = [(run.group, parent) for run in stored for parent in run.parents if parent is not None]
        self._known = dict(zip(wanted, self._ingest.known(self._source, wanted), strict=True))

    def _operations(self, parsed: StoreGroup | Operation) -> list[Operation]:
        if not isinstance(parsed, StoreGroup):
            return [parsed]
        try:
            known = partial(self._owned, parsed.group)
            store = self._ingest.stores.operation(self._source, parsed, known)
        except Refused as refused:
            if len(parsed.events) == 1:
                self.losses.append(str(refused))
                return []
            return list(chain.from_iterable(map(self._operations, parsed.apart())))
        if self._known:
            fresh = self._fresh.setdefault(parsed.group, {})
            fresh.update(zip(store.engine, store.owned, strict=True))
            fresh.update(store.remapped)
        return [store]

    def _owned(self, group: int, engine: int) -> Owned | None:
        fresh = self._fresh.get(group, {})
        return fresh[engine] if engine in fresh else self._known[group, engine]


def runs(events: Iterable[KVEvent], block_size: int) -> Iterator[list[KVEvent]]:
    """The events in their order, those together that one operation can stand for.

    Those are removals from one medium and group, and stores of one medium, group and adapter whose blocks
    have `block_size` tokens and no extra keys.
    """
    run: list[KVEvent] = []
    before: tuple[object, ...] | None = None
    for event in events:
        likeness = _likeness(event, block_size)
        if run and (likeness is None or likeness != before):
            yield run
            run = []
        before = likeness
        run.append(event)
    if run:
        yield run


def _likeness(event: KVEvent, block_size: int) -> tuple[object, ...] | None:
    """What events have in common that can be used together; None for one that has to be used alone."""
    if isinstance(event, BlockStored):
        extra = event.extra_keys
        if event.block_size != block_size or not event.token_ids or extra and any(extra):
            return None
        return event.medium, event.group_idx, event.lora_name, event.lora_id, event.kv_cache_spec_kind
    return (event.medium, event.group_idx) if isinstance(event, BlockRemoved) else None


def _hashes(events: Sequence[BlockStored] | Sequence[BlockRemoved]) -> Sequence[BlockHash]:
    """The names of all blocks, in a row."""
    if len(events) == 1:
        return events[0].block_hashes
    return [name for event in events for name in event.block_hashes]


def _group_of(group: int | None) -> int:
    if group is not None and not 0 <= group < MOST_GROUPS:
        raise Refused("bad_group_idx")
    return group or 0


def _work(event: KVEvent) -> int:
    """What an event counts in a slice: about its blocks."""
    if isinstance(event, BlockStored):
        return 1 + len(event.block_hashes) + (len(event.token_ids) >> TOKENS_SHIFT)
    return 1 + len(event.block_hashes) if isinstance(event, BlockRemoved) else 1


def _pieces(event: KVEvent, most: int) -> Iterator[KVEvent]:
    """An event as several of `most` blocks each, where it can be: later ones continue earlier ones."""
    blocks = 0 if not isinstance(event, BlockStored | BlockRemoved) else len(event.block_hashes)
    if _work(event) <= most or blocks < 2:
        yield event
    elif isinstance(event, BlockRemoved):
        for start in range(0, blocks, most):
            yield BlockRemoved(event.block_hashes[start : start + most], event.medium, event.group_idx)
    elif isinstance(event, BlockStored):
        yield from _store_pieces(event, most)


def _not_each(keys: Sequence[object] | None, hashes: Sequence[object]) -> bool:
    return bool(keys) and len(keys or ()) != len(hashes)


def _store_pieces(event: BlockStored, most: int) -> Iterator[BlockStored]:
    hashes, tokens, keys = event.block_hashes, event.token_ids, event.extra_keys
    size = len(tokens) // len(hashes)
    if len(tokens) != len(hashes) * size or size and size != event.block_size or _not_each(keys, hashes):
        yield event  # which is refused
        return
    count = max(1, most // (1 + (size >> TOKENS_SHIFT)) - 1)
    for start in range(0, len(hashes), count):
        end = start + count
        yield BlockStored(
            hashes[start:end],
            hashes[start - 1] if start else event.parent_block_hash,
            tokens[start * size : end * size],
            event.block_size,
            event.lora_id,
            event.medium,
            event.lora_name,
            keys[start:end] if keys else keys,
            event.group_idx,
            event.kv_cache_spec_kind,
        )
