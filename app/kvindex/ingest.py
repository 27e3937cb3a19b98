"""Events of an engine turned into operations on the index."""

from __future__ import annotations

from collections.abc import Sequence

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
from app.kvindex.decoding import LOW_64, hashes
from app.kvindex.features import published
from app.kvindex.holders import Source
from app.kvindex.joining import joined
from app.kvindex.keys import RequestKeys
from app.kvindex.losses import Losses

SCORED_KINDS = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of KV cache groups of which a hit needs every block from the start of the prompt on."""


MOST_TIER_LETTERS, MOST_MEDIA = 64, 256
MOST_MODELS, MOST_SIZES = 1024, 8
"""Models whose block sizes are remembered, and how many for each."""


class Refused(Exception):
    """An event cannot be used; the message is the reason as `Losses.event` takes it."""


class Parsed(Struct, gc=False):
    """A `BlockStored` with its engine keys as numbers; `adapter` is None for the base model."""

    event: BlockStored
    engine: list[int]
    parent: int | None
    group: int
    tier: str
    adapter: str | None


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
        self._media: dict[str | None, str] = {}
        self.block_sizes: dict[str, set[int]] = {}
        """Model -> sizes of the blocks of its engines."""

    def apply(self, source: Source, events: Sequence[KVEvent], stamp: Stamp | None = None) -> Outcome:
        """Apply a batch. BackendUnavailable leaves everything as it was: apply the batch again later.

        TooManyHolders when the source is one too many.
        """
        losses: list[str] = []
        batch = _Batch(self, source, losses)
        operations = joined(batch.operations(events))
        outcome = self._backend.apply(source, operations, stamp)
        # Counted only now: a batch that has to be applied again would be counted again.
        for reason in losses:
            self._losses.event(reason)
        if outcome.unknown:
            self._losses.event("unknown_block", outcome.unknown)
        return outcome

    def parsed(self, event: BlockStored) -> Parsed:
        parent = event.parent_block_hash
        if parent.__class__ is not int and parent is not None:
            parent = whole("parent_block_hash", [parent])[0]
        return Parsed(
            event,
            whole("block_hashes", event.block_hashes),
            int(parent) & LOW_64 if parent else None,  # some engines write 0 for none
            group_of(event.group_idx) if event.group_idx else 0,
            self._media.get(event.medium) or self.tier(event.medium),
            # Engines of before vLLM 0.14 tell only the number of an adapter.
            event.lora_name or (str(event.lora_id) if event.lora_id else None),
        )

    def tier(self, medium: str | None) -> str:
        """The tier of a medium. Refused for a name too long, and for one tier too many."""
        tier = medium.lower() if medium else GPU
        known = {*self._media.values(), *self._backend.tiers}
        if len(tier) > MOST_TIER_LETTERS:
            raise Refused("bad_medium")
        if tier not in known and len(known) >= MOST_TIERS:
            raise Refused("too_many_tiers")
        if len(self._media) < MOST_MEDIA:
            self._media[medium] = tier
        return tier

    def before(self, source: Source, parsed: Parsed, owned: Owned | None) -> int | Tail:
        """What the blocks of an event follow: a request key, or a tail.

        `owned` is what the index knows of the block before them.
        """
        if parsed.parent is None:
            return self._request_keys.root(parsed.adapter or source.model)
        if len(self._tails):
            tail = self._tails.get((source, parsed.group), parsed.parent)
            if tail is not None:
                return tail
        if owned is None:
            raise Refused("unknown_parent")
        last = owned if isinstance(owned, int) else owned[-1] if owned else UNALIGNED
        if last == UNALIGNED:
            raise Refused("unaligned_parent")
        return last

    def store(self, source: Source, parsed: Parsed, before: int | Tail) -> Store:
        """The operation of an event whose blocks follow a request key, or a tail."""
        event, engine, adapter = parsed.event, parsed.engine, parsed.adapter
        size = event.block_size
        if size < 1:
            raise Refused("bad_block_size")
        if len(event.token_ids) != len(engine) * size:
            raise Refused("token_count")
        if event.extra_keys and len(event.extra_keys) != len(engine):
            raise Refused("extra_keys_count")
        features = published(event.extra_keys, event.lora_name) if event.extra_keys else None
        scored = None if event.kv_cache_spec_kind is None else event.kv_cache_spec_kind in SCORED_KINDS
        if len(engine) > 1:  # a single one may be the partial block at the end of a hybrid model's prompt
            self._note_size(source.model, size)
        try:
            if size == self._size and isinstance(before, int):
                keys = self._request_keys.keys(before, event.token_ids, features)
                return Store(parsed.group, parsed.tier, engine, keys, keys, (), scored, adapter)
            tail = Tail(before) if isinstance(before, int) else before
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
            if len(self.block_sizes) >= MOST_MODELS:
                return
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
                    tier = self._ingest.tier(event.medium)
                    return Remove(group_of(event.group_idx), tier, engine)
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
            held = known[parsed.group, parsed.parent]
            owned = self._fresh.get(parsed.group, {}).get(parsed.parent, held)
        before = self._ingest.before(self._source, parsed, owned)
        store = self._ingest.store(self._source, parsed, before)
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
