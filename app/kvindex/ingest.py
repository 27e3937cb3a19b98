"""Events of an engine turned into operations on the index."""

from __future__ import annotations

from collections.abc import Sequence

from cachetools import LRUCache
from msgspec import Struct

from app.kvcache.events import BlockHash, BlockRemoved, BlockStored, KVEvent
from app.kvindex.alignment import MOST_TAILS, Tail, Tails, align
from app.kvindex.backend import (
    GPU,
    MOST_TIERS,
    UNALIGNED,
    Backend,
    Clear,
    Offload,
    Operation,
    Outcome,
    Owned,
    Remove,
    Stamp,
    Store,
)
from app.kvindex.decoding import hashes
from app.kvindex.features import published
from app.kvindex.holders import Source
from app.kvindex.keys import RequestKeys
from app.kvindex.losses import Losses

SCORED_KINDS = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of KV cache groups of which a hit needs every block from the start of the prompt on."""


MOST_TIER_LETTERS = 64
MOST_MODELS, MOST_SIZES = 1024, 8
"""Models whose block sizes are remembered, and how many for each."""


class Refused(Exception):
    """An event cannot be used; the message is the reason as `Losses.event` takes it."""


class Parsed(Struct, gc=False):
    """A `BlockStored` with its engine keys as numbers."""

    event: BlockStored
    engine: list[int]
    parent: int | None
    group: int
    tier: str


class Ingest:
    """Applies batches to a backend. What cannot be used is counted in `losses`, event by event."""

    def __init__(
        self, backend: Backend, request_keys: RequestKeys, losses: Losses, most_tails: int = MOST_TAILS
    ) -> None:
        self._backend = backend
        self._request_keys = request_keys
        self._size = request_keys.block_size
        self._losses = losses
        self._tails = Tails(most_tails)
        self._tiers: set[str] = set()
        self.block_sizes: LRUCache[str, set[int]] = LRUCache(MOST_MODELS)
        """Model -> sizes of the blocks of its engines."""

    def apply(self, source: Source, events: Sequence[KVEvent], stamp: Stamp | None = None) -> Outcome:
        """Apply a batch. BackendUnavailable leaves everything as it was: apply the batch again later.

        TooManyHolders when the source is one too many.
        """
        losses: list[str] = []
        batch = _Batch(self, source, losses)
        operations = batch.operations(events)
        outcome = self._backend.apply(source, operations, stamp)
        # Counted only now: a batch that has to be applied again would be counted again.
        for reason in losses:
            self._losses.event(reason)
        if outcome.unknown:
            self._losses.event("unknown_block", outcome.unknown)
        return outcome

    def parsed(self, event: BlockStored) -> Parsed:
        parent = event.parent_block_hash
        number = None if parent is None else whole("parent_block_hash", [parent])[0]
        return Parsed(
            event=event,
            engine=whole("block_hashes", event.block_hashes),
            parent=number or None,  # some engines write 0 for none
            group=group_of(event.group_idx),
            tier=self.tier(event.medium),
        )

    def tier(self, medium: str | None) -> str:
        tier = medium.lower() if medium else GPU
        if tier not in self._tiers:
            self._tiers.update(self._backend.tiers)
            if len(tier) > MOST_TIER_LETTERS:
                raise Refused("bad_medium")
            if tier not in self._tiers and len(self._tiers) >= MOST_TIERS:
                raise Refused("too_many_tiers")
            self._tiers.add(tier)
        return tier

    def tail(self, source: Source, parsed: Parsed, owned: Owned | None) -> Tail:
        """What the blocks of an event follow. `owned` is what the index knows of the block before them."""
        if parsed.parent is None:
            return Tail(self._request_keys.root(_name(source, parsed.event)))
        if len(self._tails):
            tail = self._tails.get((source, parsed.group), parsed.parent)
            if tail is not None:
                return tail
        if owned is None:
            raise Refused("unknown_parent")
        last = owned if isinstance(owned, int) else owned[-1] if owned else UNALIGNED
        if last == UNALIGNED:
            raise Refused("unaligned_parent")
        return Tail(last)

    def store(self, source: Source, parsed: Parsed, tail: Tail) -> Store:
        """The operation of an event whose blocks follow `tail`."""
        event, engine = parsed.event, parsed.engine
        size = event.block_size
        if size < 1:
            raise Refused("bad_block_size")
        if len(event.token_ids) != len(engine) * size:
            raise Refused("token_count")
        if event.extra_keys and len(event.extra_keys) != len(engine):
            raise Refused("extra_keys_count")
        features = published(event.extra_keys, event.lora_name)
        scored = None if event.kv_cache_spec_kind is None else event.kv_cache_spec_kind in SCORED_KINDS
        adapter = _adapter(event)
        if len(engine) > 1:  # a single one may be the partial block at the end of a hybrid model's prompt
            self._note_size(source.model, size)
        try:
            if size == self._size and not tail.tokens:
                keys = self._request_keys.keys(tail.parent, event.token_ids, features)
                return Store(parsed.group, parsed.tier, engine, keys, keys, (), scored, adapter)
            aligned = align(self._request_keys, tail, engine, size, event.token_ids, features)
        except ValueError:
            raise Refused("bad_token_ids") from None
        except KeyError:
            raise Refused("unknown_parent") from None
        self._tails.put((source, parsed.group), aligned.tails)
        return Store(
            parsed.group, parsed.tier, engine, aligned.owned, aligned.keys, aligned.remapped, scored, adapter
        )

    def known(self, source: Source, engine: Sequence[tuple[int, int]]) -> list[Owned | None]:
        return self._backend.owned(source, engine) if engine else []

    def _note_size(self, model: str, size: int) -> None:
        sizes = self.block_sizes.get(model)
        if sizes is None:
            sizes = self.block_sizes[model] = set()
        if len(sizes) < MOST_SIZES:
            sizes.add(size)


class _Batch:
    """One batch on its way: what its own events say of blocks comes before what the index knows."""

    def __init__(self, ingest: Ingest, source: Source, losses: list[str]) -> None:
        self._ingest, self._source, self._losses = ingest, source, losses
        self._fresh: dict[int, dict[int, Owned]] = {}

    def operations(self, events: Sequence[KVEvent]) -> list[Operation]:
        parsed = [self._parsed(event) for event in events]
        known = self._parents(parsed)
        operations = []
        for event in parsed:
            try:
                operation = self._store(event, known) if isinstance(event, Parsed) else event
            except Refused as refused:
                self._losses.append(str(refused))
                continue
            if operation is not None:
                operations.append(operation)
        return operations

    def _parsed(self, event: KVEvent) -> Parsed | Operation | None:
        try:
            match event:
                case BlockStored():
                    parsed = self._ingest.parsed(event)
                    if event.token_ids or not parsed.engine:
                        return parsed if parsed.engine else None
                    return Offload(parsed.group, parsed.tier, parsed.engine)
                case BlockRemoved():
                    engine = whole("block_hashes", event.block_hashes)
                    return Remove(group_of(event.group_idx), self._ingest.tier(event.medium), engine)
            return Clear()
        except Refused as refused:
            self._losses.append(str(refused))
            return None

    def _parents(self, parsed: Sequence[Parsed | Operation | None]) -> dict[tuple[int, int], Owned | None]:
        """What the index knows of the blocks that events of this batch continue, in one question."""
        wanted = [
            (event.group, event.parent)
            for event in parsed
            if isinstance(event, Parsed) and event.parent is not None
        ]
        return dict(zip(wanted, self._ingest.known(self._source, wanted), strict=True))

    def _store(self, parsed: Parsed, known: dict[tuple[int, int], Owned | None]) -> Store:
        owned: Owned | None = None
        if parsed.parent is not None:
            before = known[parsed.group, parsed.parent]
            owned = self._fresh.get(parsed.group, {}).get(parsed.parent, before)
        store = self._ingest.store(self._source, parsed, self._ingest.tail(self._source, parsed, owned))
        if known:
            fresh = self._fresh.setdefault(parsed.group, {})
            fresh.update(zip(store.engine, store.owned, strict=True))
            fresh.update(store.remapped)
        return store


def whole(field: str, values: Sequence[BlockHash]) -> list[int]:
    """Block hashes as engine keys. Refused for hashes that are none."""
    try:
        return hashes(values)
    except ValueError:
        raise Refused(f"bad_{field}") from None


def group_of(group: int | None) -> int:
    if group is not None and group < 0:
        raise Refused("bad_group_idx")
    return group or 0


def _adapter(event: BlockStored) -> str | None:
    """The adapter of an event; engines of before vLLM 0.14 tell only its number."""
    return event.lora_name or (str(event.lora_id) if event.lora_id else None)


def _name(source: Source, event: BlockStored) -> str:
    return _adapter(event) or source.model
