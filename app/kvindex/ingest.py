"""Events of an engine turned into operations on the index."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import cast

from app.kvcache.events import BlockRemoved, BlockStored, KVEvent
from app.kvindex.backend import (
    GPU,
    MOST_TIERS,
    Backend,
    Clear,
    Offload,
    Operation,
    Outcome,
    Owned,
    Remove,
    Stamp,
)
from app.kvindex.holders import Source
from app.kvindex.keys import RequestKeys
from app.kvindex.losses import Losses
from app.kvindex.runs import Refused, Run, group_of, parent_of, runs, whole
from app.kvindex.stores import Stores

MOST_TIER_LETTERS, MOST_MEDIA = 64, 256


class Ingest:
    """Applies batches to a backend. What cannot be used is counted in `losses`, event by event."""

    def __init__(self, backend: Backend, request_keys: RequestKeys, losses: Losses) -> None:
        self._backend = backend
        self._losses = losses
        self._media: dict[str | None, str] = {}
        self.block_size = request_keys.block_size
        self.stores = Stores(request_keys)

    def apply(self, source: Source, events: Sequence[KVEvent], stamp: Stamp | None = None) -> Outcome:
        """Apply a batch. BackendUnavailable leaves everything as it was: apply the batch again later.

        TooManyHolders when the source is one too many.
        """
        batch = _Batch(self, source)
        outcome = self._backend.apply(source, batch.operations(events), stamp)
        # Counted only now: a batch that has to be applied again would be counted again.
        for reason in batch.losses:
            self._losses.event(reason)
        if outcome.unknown:
            self._losses.event("unknown_block", outcome.unknown)
        return outcome

    def tier(self, medium: str | None) -> str:
        """The tier of a medium. Refused for a name too long, and for one tier too many."""
        if medium in self._media:
            return self._media[medium]
        tier = medium.lower() if medium else GPU
        known = {*self._media.values(), *self._backend.tiers}
        if len(tier) > MOST_TIER_LETTERS:
            raise Refused("bad_medium")
        if tier not in known and len(known) >= MOST_TIERS:
            raise Refused("too_many_tiers")
        if len(self._media) < MOST_MEDIA:
            self._media[medium] = tier
        return tier

    def known(self, source: Source, engine: Sequence[tuple[int, int]]) -> list[Owned | None]:
        """The request keys of (group, engine key)."""
        return self._backend.owned(source, engine) if engine else []


class _Batch:
    """One batch on its way: what its own events say of blocks comes before what the index knows.

    Events in a row that are refused as one are tried one by one; those that are refused alone are lost.
    """

    def __init__(self, ingest: Ingest, source: Source) -> None:
        self._ingest, self._source = ingest, source
        self._known: dict[tuple[int, int], Owned | None] = {}
        self._fresh: dict[int, dict[int, Owned]] = {}
        self.losses: list[str] = []

    def operations(self, events: Sequence[KVEvent]) -> list[Operation]:
        parsed = list(chain.from_iterable(map(self._parsed, runs(events, self._ingest.block_size))))
        self._look_up([each for each in parsed if isinstance(each, Run)])
        return list(chain.from_iterable(map(self._operations, parsed)))

    def _parsed(self, events: Sequence[KVEvent]) -> list[Run | Operation]:
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

    def _stored(self, events: Sequence[BlockStored]) -> Run | Offload:
        first = events[0]
        run = Run(
            events,
            whole("block_hashes", [key for event in events for key in event.block_hashes]),
            [parent_of(event) for event in events],
            group_of(first.group_idx),
            self._ingest.tier(first.medium),
            # Engines of before vLLM 0.14 tell only the number of an adapter.
            first.lora_name or (str(first.lora_id) if first.lora_id else None),
        )
        return run if first.token_ids else Offload(run.group, run.tier, run.engine)

    def _removed(self, events: Sequence[BlockRemoved]) -> Remove:
        engine = whole("block_hashes", [key for event in events for key in event.block_hashes])
        return Remove(group_of(events[0].group_idx), self._ingest.tier(events[0].medium), engine)

    def _look_up(self, stored: Sequence[Run]) -> None:
        """Ask the index for all blocks that events of this batch continue, at once."""
        wanted = [(run.group, parent) for run in stored for parent in run.parents if parent is not None]
        self._known = dict(zip(wanted, self._ingest.known(self._source, wanted), strict=True))

    def _operations(self, parsed: Run | Operation) -> list[Operation]:
        if not isinstance(parsed, Run):
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
