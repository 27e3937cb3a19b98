"""Events of an engine turned into operations on the index.

Engines announce blocks one by one, and to apply a few of them together costs much less than one after
another: events in a row that differ only in their blocks are one group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TypeAlias, cast

from app.kvcache.events import BlockHash, BlockRemoved, BlockStored, KVEvent
from app.kvindex.alignment import BlockAligner, Refused, StoreGroup, engine_keys_of, parent_of
from app.kvindex.backend import GPU, MOST_TIERS, Backend, Clear, Offload, Operation, Owned, Remove, Store
from app.kvindex.holders import Source
from app.kvindex.keys import RequestKeys

MOST_TIER_LETTERS, MOST_NAME_LETTERS = 64, 512
MOST_MEDIA = 256
"""Spellings of tiers that are remembered."""
MOST_GROUPS = 64
"""KV cache groups of one engine."""

Known: TypeAlias = dict[tuple[int, int], Owned | None]
"""Group and engine key -> the request keys of a block; None where the block is not known."""


class Ingest:
    """Turns events into operations. An event that cannot be used is lost with a reason.

    A group of events that is refused is tried event by event; an event that is refused alone is lost.
    """

    def __init__(self, backend: Backend, request_keys: RequestKeys) -> None:
        self._backend = backend
        self._media: dict[str | None, str] = {}
        self._block_size = request_keys.block_size
        self.stores = BlockAligner(request_keys)

    def operations(self, source: Source, events: Sequence[KVEvent], losses: list[str]) -> list[Operation]:
        """Returns what some events of a batch do; the reasons why events are lost go to `losses`.

        The operations are to be applied before the next events are given. May raise BackendUnavailable.
        """
        parsed = []
        for group in event_groups(events, self._block_size):
            parsed += self._parsed(group, losses)
        stored = [each for each in parsed if isinstance(each, StoreGroup)]
        wanted = [(run.group, parent) for run in stored for parent in run.parents if parent is not None]
        found = self._backend.owned(source, wanted) if wanted else ()
        known: Known = dict(zip(wanted, found, strict=True))
        operations: list[Operation] = []
        for number, each in enumerate(parsed, 1):
            made = self._stores(source, each, known, losses) if isinstance(each, StoreGroup) else [each]
            if number < len(parsed):
                _learn(known, made)
            operations += made
        return operations

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

    def _parsed(self, events: Sequence[KVEvent], losses: list[str]) -> list[StoreGroup | Operation]:
        """A group of events, as one if possible."""
        try:
            match events[0]:
                case BlockStored():
                    return [self._stored(cast(Sequence[BlockStored], events))]
                case BlockRemoved():
                    return [self._removed(cast(Sequence[BlockRemoved], events))]
            return [Clear()]
        except Refused as refused:
            if len(events) == 1:
                losses.append(str(refused))
                return []
            return list(chain.from_iterable(self._parsed([event], losses) for event in events))

    def _stored(self, events: Sequence[BlockStored]) -> StoreGroup | Offload:
        first = events[0]
        if first.lora_name and len(first.lora_name) > MOST_NAME_LETTERS:
            raise Refused("bad_lora_name")
        run = StoreGroup(
            events,
            engine_keys_of("block_hashes", _hashes(events)),
            [parent_of(event) for event in events],
            _group_of(first.group_idx),
            self.tier(first.medium),
            # Engines of before vLLM 0.14 publish only the number of an adapter.
            first.lora_name or (str(first.lora_id) if first.lora_id else None),
        )
        return run if first.token_ids else Offload(run.group, run.tier, run.engine)

    def _removed(self, events: Sequence[BlockRemoved]) -> Remove:
        engine = engine_keys_of("block_hashes", _hashes(events))
        return Remove(_group_of(events[0].group_idx), self.tier(events[0].medium), engine)

    def _stores(self, source: Source, run: StoreGroup, known: Known, losses: list[str]) -> list[Operation]:
        """Returns the operations of a group of stores."""
        try:
            return [self.stores.operation(source, run, known)]
        except Refused as refused:
            if len(run.events) == 1:
                losses.append(str(refused))
                return []
        operations: list[Operation] = []
        for each in run.apart():
            made = self._stores(source, each, known, losses)
            _learn(known, made)
            operations += made
        return operations


def _learn(known: Known, made: Sequence[Operation]) -> None:
    """Notes the blocks of operations, which later events of the batch may continue."""
    for store in made if known else ():
        if isinstance(store, Store):
            for key, owned in chain(zip(store.engine, store.owned, strict=True), store.remapped):
                known[store.group, key] = owned


def event_groups(events: Iterable[KVEvent], block_size: int) -> Iterator[list[KVEvent]]:
    """Splits events, in their order, into groups that one operation can stand for.

    Such are removals from one medium and group, and stores of one medium, group and adapter whose blocks
    have `block_size` tokens and no extra keys.
    """
    group: list[KVEvent] = []
    before: tuple[object, ...] | None = None
    for event in events:
        likeness = _likeness(event, block_size)
        if group and (likeness is None or likeness != before):
            yield group
            group = []
        before = likeness
        group.append(event)
    if group:
        yield group


def _likeness(event: KVEvent, block_size: int) -> tuple[object, ...] | None:
    """What events of one group have in common; None for an event that has to be used alone."""
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
