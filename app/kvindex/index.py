"""The index: batches of events in, scores of pods out.

Engines announce blocks one by one. Applying several blocks together costs much less, so consecutive events
that differ only in their blocks form one group.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TypeAlias, cast

from msgspec import Struct

from app.base.clock.pause import pause_if_possible
from app.engine.kvcache.events import BlockHash, BlockRemoved, BlockStored, EventBatch, KVEvent
from app.engine.kvcache.memo import Bounded
from app.engine.kvcache.prompt import Placeholder
from app.kvindex.alignment import BlockAligner, Refused, StoreGroup, engine_keys_of, parent_of
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
    Size,
    Stamp,
    Store,
)
from app.kvindex.decoding import Batch, field_losses
from app.kvindex.holders import Engine, TooManyHolders
from app.kvindex.keys import (
    DEFAULT_GENERATION,
    Generation,
    PrefixKeyCache,
    RequestKeys,
    granularities,
    request_keys,
    requested_features,
)
from app.kvindex.metrics import IndexMetrics, Losses
from app.kvindex.scorer import PodScore, Weights, score_prefixes
from config.sections.observability import TRACE

log = logging.getLogger(__name__)

MOST_TIER_LETTERS, MOST_NAME_LETTERS = 64, 512
"""Longest names of tiers and of adapters, in characters."""
MOST_MEDIA = 256
"""Most spellings of tiers that are remembered."""
MOST_GROUPS = 64
"""Most KV cache groups of one engine."""

Known: TypeAlias = dict[tuple[int, int], Owned | None]
"""(group, engine key) -> request keys of a block; None for an unknown block."""


class Ingest:
    """Converts events to operations. An unusable event is lost with a reason.

    A refused group is tried event by event; a single refused event is lost.
    """

    def __init__(self, backend: Backend, request_keys: RequestKeys) -> None:
        self._backend = backend
        self._media: dict[str | None, str] = {}
        self._block_size = request_keys.block_size
        self.stores = BlockAligner(request_keys)

    def operations(self, source: Engine, events: Sequence[KVEvent], losses: list[str]) -> list[Operation]:
        """Returns the operations of some events of a batch; appends reasons for lost events to `losses`.

        The caller applies the operations before the next call. May raise BackendUnavailable.
        """
        groups = [events] if len(events) == 1 else event_groups(events, self._block_size)
        parsed = list(chain.from_iterable(self._parsed(group, losses) for group in groups))
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
        """Returns the tier of a medium. Raises Refused for a name too long, and beyond MOST_TIERS."""
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
        """Converts a group of events, as one if possible."""
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
            # vLLM before 0.14 publishes only the number of an adapter.
            first.lora_name or (str(first.lora_id) if first.lora_id else None),
        )
        return run if first.token_ids else Offload(run.group, run.tier, run.engine)

    def _removed(self, events: Sequence[BlockRemoved]) -> Remove:
        engine = engine_keys_of("block_hashes", _hashes(events))
        return Remove(_group_of(events[0].group_idx), self.tier(events[0].medium), engine)

    def _stores(self, source: Engine, run: StoreGroup, known: Known, losses: list[str]) -> list[Operation]:
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
    """Adds the blocks of operations to `known`; later events of the batch may continue them."""
    for store in made if known else ():
        if isinstance(store, Store):
            for key, owned in chain(zip(store.engine, store.owned, strict=True), store.remapped):
                known[store.group, key] = owned


def event_groups(events: Iterable[KVEvent], block_size: int) -> Iterator[list[KVEvent]]:
    """Splits events, in their order, into groups for one operation each.

    A group has removals of one medium and cache group, or stores of one medium, cache group and adapter. The
    blocks of such stores have `block_size` tokens and no extra keys.
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
    """Returns the properties that events of one group share; None for an event that stays alone."""
    if isinstance(event, BlockStored):
        extra = event.extra_keys
        if event.block_size != block_size or not event.token_ids or extra and any(extra):
            return None
        return event.medium, event.group_idx, event.lora_name, event.lora_id, event.kv_cache_spec_kind
    return (event.medium, event.group_idx) if isinstance(event, BlockRemoved) else None


def _hashes(events: Sequence[BlockStored] | Sequence[BlockRemoved]) -> Sequence[BlockHash]:
    """Returns the block hashes of all events, in order."""
    if len(events) == 1:
        return events[0].block_hashes
    return [name for event in events for name in event.block_hashes]


def _group_of(group: int | None) -> int:
    if group is not None and not 0 <= group < MOST_GROUPS:
        raise Refused("bad_group_idx")
    return group or 0


DEFAULT_BLOCK_SIZE = 16
EVENTS_A_TURN = 1024
"""Events applied in one go, in about 3 ms, before other greenlets run."""


class IndexSettings(Struct, frozen=True, kw_only=True):
    """`block_size` is the index's, in tokens; engines may differ. `generation` selects the hash."""

    block_size: int = DEFAULT_BLOCK_SIZE
    generation: Generation = DEFAULT_GENERATION
    seed: str = ""
    weights: Weights = Weights()


class Index:
    """Index of the blocks of prompts in the caches of pods, stored in a backend.

    `clock` gives seconds, to measure lookups. Threads may share an index. Batches of one pod must arrive in
    order.
    """

    def __init__(
        self,
        backend: Backend,
        settings: IndexSettings = IndexSettings(),  # noqa: B008 (immutable)
        losses: Losses | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.backend = backend
        self.settings = settings
        self.losses = losses or Losses()
        self.metrics = IndexMetrics(reasons=field_losses())
        self._keys = request_keys(settings.generation, settings.block_size, settings.seed)
        self._ingest = Ingest(backend, self._keys)
        self._prefix_keys = PrefixKeyCache(self._keys)
        self._clock = clock

    @property
    def caches(self) -> Mapping[str, Bounded]:
        """Caches beside the backend, by name."""
        return {
            "index tails": self._ingest.stores.tails,
            "index key roots": self._keys.roots,
            "index keys": self._prefix_keys.parts,
        }

    def ingest(
        self,
        batch: Batch | EventBatch,
        pod: str,
        model: str,
        sequence: int | None = None,
        restart: bool = False,
    ) -> Outcome | None:
        """Applies a batch that a pod has published; long work pauses.

        With a `sequence` number, indexers that share a backend apply the batch once. `restart` first removes
        the engine's blocks. Returns None, and counts a loss, with too many pods. After BackendUnavailable the
        caller applies the batch again later.
        """
        if isinstance(batch, EventBatch):
            batch = Batch(batch.ts, batch.data_parallel_rank or 0, batch.events)
        source, total, lost = Engine(pod, model, batch.rank), Outcome(), [*batch.losses]
        try:
            for part, start in enumerate(range(0, len(batch.events) or 1, EVENTS_A_TURN)):
                if part:
                    pause_if_possible()
                events = batch.events[start : start + EVENTS_A_TURN]
                stamp = None
                if sequence is not None:
                    stamp = Stamp(sequence, batch.ts, restart and not part, part)
                operations = self._ingest.operations(source, events, lost)
                outcome = self.backend.apply(source, operations, stamp)
                total = total.plus(outcome) if part else outcome
        except TooManyHolders:
            self.losses.message("too_many_pods")
            return None
        # Counted at the end: a batch that is applied again would be counted twice.
        if lost or total.unknown:
            self.losses.count(lost, total.unknown)
        self.metrics.changed(total.added, total.removed)
        return total

    def clear(self, pod: str) -> int:
        """Removes a pod; returns its number of copies of blocks. Long work pauses."""
        removed = self.backend.clear(pod)
        self.metrics.changed(0, removed)
        return removed

    def block_keys(
        self,
        model: str,
        tokens: Sequence[int],
        *,
        lora: str | None = None,
        salt: str | None = None,
        media: Sequence[Placeholder] = (),
    ) -> list[int]:
        """Returns the request keys of a prompt's full blocks. ValueError for a token id outside 32 bits."""
        return self._chain(model, tokens, lora, salt, media, self.settings.block_size)

    def score(
        self,
        model: str,
        tokens: Sequence[int] | None = None,
        keys: Sequence[int] | None = None,
        *,
        pods: Collection[str] = (),
        lora: str | None = None,
        salt: str | None = None,
        media: Sequence[Placeholder] = (),
    ) -> list[PodScore]:
        """Scores the engines that have the start of a prompt, best first; none for less than a block.

        The prompt is given as token ids, or as request keys from `block_keys`. `model` is the base
        model or an adapter's name, `lora` the adapter. `pods` limits the choice; () means all pods.

        Raises:
            ValueError: a token id is outside 32 bits.
            BackendUnavailable: the backend does not answer.
        """
        log.log(TRACE, "score %s: tokens %s", lora or model, tokens)
        began_s = self._clock()
        if keys is not None:
            best = self._score_keys(model, keys, pods)
        elif media or salt:
            best = self._score_featured(model, tokens or (), pods, lora, salt, media)
        else:
            best = self._score_keys(model, self.block_keys(model, tokens or (), lora=lora), pods)
        self.metrics.looked_up(self._clock() - began_s, best[0].matched if best else 0)
        return best

    def base_model(self, name: str) -> str:
        """Returns the base model of pods with blocks of the adapter `name`; `name` without such pods."""
        holders = self.backend.lookup([]).holders
        return next((holder.source.model for _, holder in holders.of(holders.mask(name))), name)

    def size(self) -> Size:
        return self.backend.size()

    def close(self) -> None:
        self.backend.close()

    def _chain(
        self,
        model: str,
        tokens: Sequence[int],
        lora: str | None,
        salt: str | None,
        media: Sequence[Placeholder],
        granularity: int,
    ) -> list[int]:
        full = len(tokens) // self.settings.block_size
        features = requested_features(full, self.settings.block_size, media, salt, granularity)
        return self._prefix_keys.keys(self._keys.root(lora or model), tokens, features)

    def _score_keys(self, model: str, keys: Sequence[int], pods: Collection[str]) -> list[PodScore]:
        if not keys:
            return []
        copies, holders, tiers = self.backend.lookup(keys)
        candidates = holders.mask(model, pods)
        scores = score_prefixes(copies, len(keys), candidates, holders, tiers, self.settings.weights)
        log.log(TRACE, "score %s: keys %s, scores %s", model, keys, scores)
        return scores

    def _score_featured(
        self,
        model: str,
        tokens: Sequence[int],
        pods: Collection[str],
        lora: str | None,
        salt: str | None,
        media: Sequence[Placeholder],
    ) -> list[PodScore]:
        """Scores a prompt with features, for each block size of engines; an engine's best score counts."""
        sizes = granularities(self._ingest.stores.block_sizes.get(model, ()), self.settings.block_size)
        best: dict[tuple[str, int], PodScore] = {}
        for size in sizes:
            keys = self._chain(model, tokens, lora, salt, media, size)
            for score in self._score_keys(model, keys, pods):
                known = best.get((score.pod, score.rank))
                if known is None or score.score > known.score:
                    best[score.pod, score.rank] = score
        return sorted(best.values(), key=lambda score: -score.score)
