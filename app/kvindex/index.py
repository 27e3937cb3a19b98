"""The index: batches of events in, scores of pods out.

Events become operations on blocks of the index. Consecutive events that differ only in their blocks
become one operation, which costs much less.

An engine's blocks may have any size. A prompt's tokens are cut again into blocks of the index. An
engine's block owns a part of every index block that it overlaps. A block that ends inside an index
block leaves a tail, which the next event continues.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import count, groupby
from typing import TypeAlias, cast

from msgspec import Struct

from app.base import Bounded
from app.base.clock.pause import pause_if_possible
from app.engine.kvcache.events import (
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    KVEvent,
)
from app.engine.kvcache.hashing import Placeholder, low64
from app.engine.kvcache.memo import Memo
from app.kvindex.backend import (
    CPU,
    GPU,
    MOST_TIERS,
    UNALIGNED,
    Backend,
    Clear,
    IndexedEngine,
    Offload,
    Operation,
    Outcome,
    Owned,
    Remove,
    Stamp,
    Store,
    TooManyHolders,
)
from app.kvindex.decoding import PodBatch, field_losses
from app.kvindex.keys import (
    Features,
    PrefixKeyCache,
    RequestKeys,
    fold_features,
    published_features,
    requested_features,
)
from app.kvindex.metrics import IndexMetrics
from app.kvindex.scorer import DEFAULT_WEIGHTS, PodScore, score_prefixes
from config.sections.observability import TRACE

log = logging.getLogger(__name__)


class Index:
    """Index of the blocks of prompts in the caches of pods. Batches of one pod must arrive in
    order.

    `block_size` is the index's, in tokens; engines may differ. `weights`: tier -> weight of a
    block.
    """

    def __init__(
        self,
        backend: Backend,
        block_size: int = 16,
        seed: str = "",
        weights: Mapping[str, float] = DEFAULT_WEIGHTS,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.backend, self.block_size, self._weights = backend, block_size, weights
        self.metrics = IndexMetrics(field_losses())
        self._keys = RequestKeys(block_size, seed)
        self._ingest = Ingest(backend, self._keys)
        self._prefix_keys = PrefixKeyCache(self._keys)
        self._clock = clock

    @property
    def caches(self) -> Mapping[str, Bounded]:
        """Caches beside the backend, by name."""
        return {
            "index tails": self._ingest.tails,
            "index key roots": self._keys.roots,
            "index keys": self._prefix_keys.parts,
        }

    def ingest(
        self,
        source: IndexedEngine,
        batch: PodBatch,
        sequence: int | None = None,
        restart: bool = False,
    ) -> Outcome | None:
        """Applies a batch that an engine has published; long work pauses.

        With a `sequence` number, indexers that share a backend apply the batch once. `restart`
        first removes the engine's blocks. Returns None, and counts a loss, with too many pods.
        After BackendUnavailable the caller applies the batch again later.
        """
        outcome, lost, events, most = (
            Outcome(),
            [*batch.losses],
            batch.events,
            self.backend.events_a_turn,
        )
        try:
            for start in range(0, len(events) or 1, most):
                if start:
                    pause_if_possible()
                stamp = (
                    None if sequence is None else Stamp(sequence, batch.ts, restart and not start)
                )
                operations = self._ingest.operations(source, events[start : start + most], lost)
                outcome.add(self.backend.apply(source, operations, stamp))
        except TooManyHolders:
            self.metrics.skip_message("too_many_pods")
            return None
        # Counted at the end: a batch that is applied again would be counted twice.
        if lost:
            self.metrics.skipped_events.update(lost)
        if outcome.unknown:
            self.metrics.skipped_events["unknown_block"] += outcome.unknown
        self.metrics.added.inc(outcome.added)
        self.metrics.removed.inc(outcome.removed)
        return outcome

    def clear(self, pod: str) -> int:
        """Removes a pod; returns its number of copies of blocks. Long work pauses."""
        removed = self.backend.clear(pod)
        self.metrics.removed.inc(removed)
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
        """Returns the request keys of a prompt's full blocks.

        ValueError for a token id outside 32 bits.
        """
        size = self.block_size
        features = (
            requested_features(len(tokens) // size, size, media, salt) if media or salt else None
        )
        return self._prefix_keys.keys(self._keys.root(lora or model), tokens, features)

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
        """Scores the engines that have the start of a prompt, best first; none for less than a
        block.

        The prompt is given as token ids, or as request keys from `block_keys`. `model` is the base
        model or an adapter's name, `lora` the adapter. `pods` limits the choice; () means all pods.

        Raises:
            ValueError: a token id is outside 32 bits.
            BackendUnavailable: the backend does not answer.
        """
        log.log(TRACE, "score %s: tokens %s", lora or model, tokens)
        began_s, scores = self._clock(), list[PodScore]()
        if keys is None:
            keys = self.block_keys(model, tokens or (), lora=lora, salt=salt, media=media)
        if keys:
            copies, holders, tiers = self.backend.lookup(keys)
            candidates = holders.mask(model, pods)
            scores = score_prefixes(copies, len(keys), candidates, holders, tiers, self._weights)
            log.log(TRACE, "score %s: keys %s, scores %s", model, keys, scores)
        self.metrics.looked_up(self._clock() - began_s, scores[0].matched if scores else 0)
        return scores

    def base_model(self, name: str) -> str:
        """Returns the base model of pods with blocks of the adapter `name`; `name` without such
        pods.
        """
        holders = self.backend.lookup([]).holders
        return next((holder.source.model for _, holder in holders.of(holders.mask(name))), name)


TAILS_BYTES = 64 << 20
"""Most memory of all tails of an index, in bytes."""
TAIL_BYTES, FEATURES_BYTES, NUMBER_BYTES = 450, 160, 40
"""Memory of a tail beside its numbers, of a block's features in it, and of a number in a list, in
bytes.
"""
SCORED_KINDS = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of KV cache groups where a hit needs every block from the prompt's start."""
MOST_BLOCK_TOKENS, MOST_GROUPS = 1 << 14, 64
"""Most tokens of an engine's block, and most KV cache groups of an engine."""
MOST_TIER_LETTERS, MOST_NAME_LETTERS = 64, 512
"""Longest names of tiers and of adapters, in characters."""
LOW_64, MOST_HASH_BYTES = (1 << 64) - 1, 64
"""Mask of an engine key, and longest block hash, in bytes."""

Known: TypeAlias = dict[tuple[int, int], Owned | None]
"""(group, engine key) -> request keys of a block; None for an unknown block."""


class Refused(Exception):
    """An unusable event, or events unusable as a group; the message is a reason for `Losses.event`."""


class NewBlocks(Struct, gc=False):
    """Stores that differ only in their blocks:

    all engine keys in a row, and one parent for each event.
    """

    events: Sequence[BlockStored]
    engine: Sequence[int]
    parents: Sequence[int | None]
    group: int
    tier: str
    adapter: str | None


class Ingest:
    """Converts events to operations. Remembers prompts' tails."""

    def __init__(
        self, backend: Backend, request_keys: RequestKeys, tails_bytes: int = TAILS_BYTES
    ) -> None:
        self._backend, self._request_keys = backend, request_keys
        self._size = request_keys.block_size
        self._tiers = {GPU, CPU}
        self.tails: Memo[tuple[IndexedEngine, int, int], Tail] = Memo(tails_bytes)
        """Latest tails, by engine, KV cache group and the engine key before the tail."""

    def operations(
        self, source: IndexedEngine, events: Sequence[KVEvent], losses: list[str]
    ) -> list[Operation]:
        """Returns the operations of some events of a batch; appends reasons for lost events to
        `losses`.

        The caller applies the operations before the next call. May raise BackendUnavailable.
        """
        try:
            if len(events) > 1:
                groups = [list(alike) for _, alike in groupby(events, self._likeness)]
                return self._operations(source, groups, None)
        except Refused:
            pass  # each event is then an operation, or lost, by itself
        return self._operations(source, [[event] for event in events], losses)

    def _operations(
        self, source: IndexedEngine, groups: Sequence[Sequence[KVEvent]], losses: list[str] | None
    ) -> list[Operation]:
        """Returns an operation for each group; without `losses`, an unusable group raises Refused."""
        parsed: list[NewBlocks | Operation] = []
        for group in groups:
            try:
                parsed.append(self._parsed(group))
            except Refused as refused:
                if losses is None:
                    raise
                losses.append(str(refused))
        wanted = [
            (each.group, parent)
            for each in parsed
            if isinstance(each, NewBlocks)
            for parent in each.parents
            if parent is not None
        ]
        known: Known = (
            dict(zip(wanted, self._backend.owned(source, wanted), strict=True)) if wanted else {}
        )
        operations: list[Operation] = []
        for each in parsed:
            try:
                operations.append(
                    self._store(source, each, known) if isinstance(each, NewBlocks) else each
                )
            except Refused as refused:
                if losses is None:
                    raise
                losses.append(str(refused))
        return operations

    def _likeness(self, event: KVEvent) -> object:
        """Returns what events of one operation have in common; `event` stays alone if nothing."""
        if isinstance(event, BlockStored):
            extra = event.extra_keys
            if event.block_size == self._size and event.token_ids and not (extra and any(extra)):
                kind = event.kv_cache_spec_kind
                return event.medium, event.group_idx, event.lora_name, event.lora_id, kind
        elif isinstance(event, BlockRemoved):
            return event.medium, event.group_idx
        return id(event)

    def _tier(self, medium: str | None) -> str:
        """Returns the tier of a medium.

        Raises Refused for a name too long, and beyond MOST_TIERS.
        """
        tier = medium.lower() if medium else GPU
        if tier not in self._tiers:
            if len(tier) > MOST_TIER_LETTERS:
                raise Refused("bad_medium")
            known = self._tiers.union(self._backend.tiers)
            if tier not in known and len(known) >= MOST_TIERS:
                raise Refused("too_many_tiers")
            self._tiers.add(tier)
        return tier

    def _parsed(self, events: Sequence[KVEvent]) -> NewBlocks | Operation:
        first = events[0]
        if isinstance(first, AllBlocksCleared):
            return Clear()
        hashes = first.block_hashes
        if len(events) > 1:
            hashes = [it for event in events for it in event.block_hashes]
        engine = engine_keys(hashes, "block_hashes")
        group, tier = first.group_idx or 0, self._tier(first.medium)
        if not 0 <= group < MOST_GROUPS:
            raise Refused("bad_group_idx")
        if isinstance(first, BlockRemoved):
            return Remove(group, tier, engine)
        if not first.token_ids:
            return Offload(group, tier, engine)
        if first.lora_name and len(first.lora_name) > MOST_NAME_LETTERS:
            raise Refused("bad_lora_name")
        # vLLM before 0.14 publishes only the number of an adapter.
        adapter = first.lora_name or (str(first.lora_id) if first.lora_id else None)
        stores = cast(Sequence[BlockStored], events)
        return NewBlocks(stores, engine, [*map(parent_of, stores)], group, tier, adapter)

    def _store(self, source: IndexedEngine, new: NewBlocks, known: Known) -> Store:
        """Returns the operation of a group. Later groups of the batch may continue its blocks."""
        kind = new.events[0].kv_cache_spec_kind
        scored = None if kind is None else kind in SCORED_KINDS
        store = Store(new.group, new.tier, new.engine, (), (), scored=scored, adapter=new.adapter)
        try:
            if len(new.events) == 1:
                self._fill(store, source, new, known)
            else:
                store.keys = store.owned = self._keys(source, new, known)
        except ValueError:
            raise Refused("bad_token_ids") from None
        if known:
            known |= {
                (store.group, key): owned
                for key, owned in zip(store.engine, store.owned, strict=True)
            }
        return store

    def _fill(self, store: Store, source: IndexedEngine, new: NewBlocks, known: Known) -> None:
        """Sets the blocks of a single event. ValueError for invalid token ids."""
        [event], [parent], engine = new.events, new.parents, new.engine
        before = self._before(source, new, parent, known)
        size, tokens, extra = event.block_size, event.token_ids, event.extra_keys
        if not 0 < size <= MOST_BLOCK_TOKENS:
            raise Refused("bad_block_size")
        if len(tokens) != len(engine) * size:
            raise Refused("token_count")
        if extra and len(extra) != len(engine):
            raise Refused("extra_keys_count")
        features = published_features(extra, event.lora_name) if extra else None
        if size == self._size and isinstance(before, int):
            store.keys = store.owned = self._request_keys.keys(before, tokens, features)
            return
        tail = Tail(before) if isinstance(before, int) else before
        for key, after in align(self._request_keys, tail, size, store, tokens, features).items():
            numbers = len(after.tokens) + len(after.engine)
            size_bytes = TAIL_BYTES + NUMBER_BYTES * numbers + FEATURES_BYTES * len(after.features)
            self.tails.put((source, new.group, key), after, size_bytes)

    def _keys(self, source: IndexedEngine, new: NewBlocks, known: Known) -> list[int]:
        """Returns the keys of several events with blocks of the index's size.

        ValueError as `_fill`.
        """
        place = dict(zip(new.engine, count(), strict=False))
        root, keys_after = (
            self._request_keys.root(new.adapter or source.model),
            self._request_keys.keys,
        )
        keys: list[int] = []
        for event, parent in zip(new.events, new.parents, strict=True):
            before = root
            if parent is not None:
                at = place.get(parent, len(keys))
                follows = keys[at] if at < len(keys) else self._before(source, new, parent, known)
                if isinstance(follows, Tail):
                    raise Refused
                before = follows
            ids, extra, blocks = event.token_ids, event.extra_keys, len(event.block_hashes)
            if len(ids) != blocks * self._size or extra and len(extra) != blocks:
                raise Refused
            keys += keys_after(before, ids)
        # A block stored twice is a further copy, which only separate operations count.
        if len(place) < len(keys) or len(set(keys)) < len(keys):
            raise Refused
        return keys

    def _before(
        self, source: IndexedEngine, new: NewBlocks, parent: int | None, known: Known
    ) -> int | Tail:
        if parent is None:
            return self._request_keys.root(new.adapter or source.model)
        tail = self.tails.get((source, new.group, parent))
        if tail is not None:
            return tail
        owned = known[new.group, parent]
        if owned is None:
            raise Refused("unknown_parent")
        last = owned if isinstance(owned, int) else owned[-1] if owned else UNALIGNED
        if last == UNALIGNED:
            raise Refused("unaligned_parent")
        return last


def engine_keys(values: Sequence[BlockHash], field: str) -> Sequence[int]:
    """Converts the hashes of a field to engine keys, their low 64 bits.

    Refused for an invalid hash.
    """
    try:
        if not values or min(values) >= 0:  # type: ignore[operator]
            return values  # type: ignore[return-value]
    except TypeError:
        pass  # some are bytes
    keys = []
    for value in values:
        if isinstance(value, int):
            keys.append(value & LOW_64)
        elif 0 < len(value) <= MOST_HASH_BYTES:
            keys.append(low64(value))
        else:
            raise Refused(f"bad_{field}")
    return keys


def parent_of(event: BlockStored) -> int | None:
    """Returns the engine key of the block before the event; some engines write 0 for none."""
    parent = event.parent_block_hash
    if parent is None or parent.__class__ is int:
        return parent and int(parent) & LOW_64 or None
    [key] = engine_keys([parent], "parent_block_hash")
    return key or None


class Tail(Struct, frozen=True):
    """A prompt's tokens behind its last full index block, whose key is `parent`.

    `engine` has the engine keys of the blocks that overlap these tokens. `features` pairs the place
    of a block's first token in `tokens` with the block's features.
    """

    parent: int
    tokens: Sequence[int] = ()
    engine: tuple[int, ...] = ()
    features: tuple[tuple[int, Features], ...] = ()


def align(
    request_keys: RequestKeys,
    tail: Tail,
    block_size: int,
    store: Store,
    tokens: Sequence[int],
    features: Sequence[Features] | None,
) -> dict[int, Tail]:
    """Cuts the `tokens` of engine blocks of `block_size`, behind `tail`, into blocks of the index.

    Sets `keys`, `owned` and `joined` of `store`. Returns engine key -> tail for the engine blocks
    that end inside an index block. Raises ValueError as `RequestKeys.keys`.
    """
    size, everything, parent = request_keys.block_size, [*tail.tokens, *tokens], tail.parent
    full, starts = len(everything) // size, range(len(tail.tokens), len(everything), block_size)
    own_features = features or [None] * len(starts)
    placed = [
        *tail.features,
        *((at, own) for at, own in zip(starts, own_features, strict=True) if own),
    ]
    folded = fold_features(placed, full, size) if placed else None
    keys = request_keys.keys(parent, everything[: full * size], folded)
    overlapping, owned, tails = tail.engine, list[Owned](), dict[int, Tail]()
    for key, start in zip(store.engine, starts, strict=True):
        end = start + block_size
        last, rest = divmod(end, size)
        done = last * size  # the first token behind the last full index block
        overlapping = (key,) if done >= start else (*overlapping, key)
        own = tuple(keys[start // size : -(-end // size)])
        if rest:
            own = (*own, UNALIGNED)
            here = tuple((at - done, each) for at, each in placed if done <= at < end)
            before = keys[last - 1] if last else parent
            tails[key] = Tail(before, everything[done:end], overlapping, here)
        owned.append(own)
    store.keys, store.owned = keys, owned
    store.joined = [(key, keys[0]) for key in tail.engine] if keys else ()
    return tails
