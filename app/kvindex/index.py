"""The index: batches of events in, scores of pods out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec import Struct

from app.base.clock.pause import pause_if_possible
from app.engine.kvcache.hashing import Placeholder
from app.engine.kvcache.memo import Bounded
from app.kvindex.backend import Backend, IndexedEngine, IndexSize, Outcome, Stamp, TooManyHolders
from app.kvindex.decoding import PodBatch, field_losses
from app.kvindex.ingest import Ingest
from app.kvindex.keys import (
    PrefixKeyCache,
    RequestKeys,
    requested_features,
)
from app.kvindex.metrics import IndexMetrics, Losses
from app.kvindex.scorer import PodScore, TierWeights, score_prefixes
from config.sections.observability import TRACE

log = logging.getLogger(__name__)

DEFAULT_BLOCK_SIZE = 16
EVENTS_A_TURN = 1024
"""Events applied in one go, in about 3 ms, before other greenlets run."""


class IndexSettings(Struct, frozen=True):
    """`block_size` is the index's, in tokens; engines may differ."""

    block_size: int = DEFAULT_BLOCK_SIZE
    seed: str = ""
    weights: TierWeights = TierWeights()


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
        self._keys = RequestKeys(settings.block_size, settings.seed)
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
        self, source: IndexedEngine, batch: PodBatch, sequence: int | None = None, restart: bool = False
    ) -> Outcome | None:
        """Applies a batch that an engine has published; long work pauses.

        With a `sequence` number, indexers that share a backend apply the batch once. `restart` first removes
        the engine's blocks. Returns None, and counts a loss, with too many pods. After BackendUnavailable the
        caller applies the batch again later.
        """
        total, lost, events = Outcome(), [*batch.losses], batch.events
        try:
            for part, start in enumerate(range(0, len(events) or 1, EVENTS_A_TURN)):
                if part:
                    pause_if_possible()
                some = events if len(events) <= EVENTS_A_TURN else events[start : start + EVENTS_A_TURN]
                stamp = None
                if sequence is not None:
                    stamp = Stamp(sequence, batch.ts, restart and not part, part)
                operations = self._ingest.operations(source, some, lost)
                outcome = self.backend.apply(source, operations, stamp)
                if part:
                    total.add(outcome)
                else:
                    total = outcome
        except TooManyHolders:
            self.losses.message("too_many_pods")
            return None
        # Counted at the end: a batch that is applied again would be counted twice.
        if lost or total.unknown:
            self.losses.count(lost, total.unknown)
        self.metrics.added.inc(total.added)
        self.metrics.removed.inc(total.removed)
        return total

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
        """Returns the request keys of a prompt's full blocks. ValueError for a token id outside 32 bits."""
        size = self.settings.block_size
        features = requested_features(len(tokens) // size, size, media, salt) if media or salt else None
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
        """Scores the engines that have the start of a prompt, best first; none for less than a block.

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
            scores = score_prefixes(copies, len(keys), candidates, holders, tiers, self.settings.weights)
            log.log(TRACE, "score %s: keys %s, scores %s", model, keys, scores)
        self.metrics.looked_up(self._clock() - began_s, scores[0].matched if scores else 0)
        return scores

    def base_model(self, name: str) -> str:
        """Returns the base model of pods with blocks of the adapter `name`; `name` without such pods."""
        holders = self.backend.lookup([]).holders
        return next((holder.source.model for _, holder in holders.of(holders.mask(name))), name)

    def size(self) -> IndexSize:
        return self.backend.size()

    def close(self) -> None:
        self.backend.close()
