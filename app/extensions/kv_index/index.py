"""The index: takes batches of events, and scores pods for a prompt."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence

from app.core.base import Bounded
from app.core.base.clock.pause import pause_if_possible
from app.core.engine.kvcache.hashing import Placeholder
from app.extensions.kv_index.backend import Backend, Clear, Operation, Outcome, Stamp, Store
from app.extensions.kv_index.decoding import PodBatch, field_losses
from app.extensions.kv_index.features import requested_features
from app.extensions.kv_index.holders import HolderLimitError, IndexedEngine
from app.extensions.kv_index.ingest import TAILS_LIMIT_BYTES, Ingest
from app.extensions.kv_index.keys import PrefixKeyCache, RequestKeys
from app.extensions.kv_index.metrics import IndexMetrics
from app.extensions.kv_index.scorer import DEFAULT_WEIGHTS, PodScore, score_prefixes
from app.extensions.kv_index.speculation import Speculation
from config.sections.observability import TRACE

log = logging.getLogger(__name__)


class Index:
    """Index of the blocks of prompts in the caches of pods.

    Batches of one pod must arrive in order. `block_size` is the index's, in tokens; engines may
    differ. `weights`: tier -> weight of a block.
    """

    def __init__(
        self,
        backend: Backend,
        block_size: int = 16,
        seed: str = "",
        weights: Mapping[str, float] = DEFAULT_WEIGHTS,
        speculation: Speculation | None = None,
        *,
        tails_bytes: int = TAILS_LIMIT_BYTES,
    ) -> None:
        """Without a `speculation`, only events count."""
        self.backend = backend
        self.block_size = block_size
        self.metrics = IndexMetrics(field_losses())
        self._weights = weights
        self._keys = RequestKeys(block_size, seed)
        self._ingest = Ingest(backend, self._keys, tails_bytes)
        self._prefix_keys = PrefixKeyCache(self._keys)
        if speculation is None:
            speculation = Speculation(0.0)
        self.speculation = speculation

    @property
    def caches(self) -> Mapping[str, Bounded]:
        """Caches beside the backend, by name."""
        return {
            "index tails": self._ingest.tails,
            "index key roots": self._keys.roots,
            "index keys": self._prefix_keys.parts,
            "index routed prompts": self.speculation,
        }

    def ingest(
        self,
        source: IndexedEngine,
        batch: PodBatch,
        sequence: int | None = None,
        restart: bool = False,
    ) -> Outcome | None:
        """Applies a batch that an engine has published; pauses during long work.

        With a `sequence` number, indexers that share a backend apply the batch once. `restart`
        first removes the engine's blocks. Returns None, and counts a loss, with too many pods.

        Raises:
            BackendUnavailableError: the caller applies the batch again later.
        """
        outcome = Outcome()
        losses = [*batch.losses]
        is_transactional = self.backend.is_transactional
        batch_operations: list[Operation] = []
        try:
            parts = self._ingest.operations(
                source, batch.events, losses, applies_parts=not is_transactional
            )
            for number, operations in enumerate(parts):
                if number:
                    pause_if_possible()
                if is_transactional:
                    batch_operations += operations
                    continue
                stamp = _stamp(batch, sequence, is_restart=restart and not number)
                outcome.merge(self._apply(source, operations, stamp))
            if is_transactional:
                stamp = _stamp(batch, sequence, is_restart=restart)
                outcome.merge(self._apply(source, batch_operations, stamp))
        except HolderLimitError:
            self.metrics.skip_message("too_many_pods")
            return None
        # Counted at the end: a batch that is applied again would be counted twice.
        if losses:
            self.metrics.skipped_events.update(losses)
        if outcome.unknown:
            self.metrics.skipped_events["unknown_block"] += outcome.unknown
        self.metrics.added.inc(outcome.added)
        self.metrics.removed.inc(outcome.removed)
        return outcome

    def clear(self, pod: str) -> int:
        """Removes a pod; returns its number of copies of blocks. Pauses during long work."""
        self.speculation.drop(pod)
        removed = self.backend.clear(pod)
        self.metrics.removed.inc(removed)
        return removed

    def _apply(
        self, source: IndexedEngine, operations: Sequence[Operation], stamp: Stamp | None
    ) -> Outcome:
        """Applies operations, and forgets routed prompts that they have confirmed or removed."""
        outcome = self.backend.apply(source, operations, stamp)
        if not self.speculation.prompts:
            return outcome
        is_cleared = stamp is not None and stamp.restart
        for operation in operations:
            if isinstance(operation, Store):
                self.speculation.confirm(source, operation.request_keys)
            elif isinstance(operation, Clear):
                is_cleared = True
        if is_cleared:
            self.speculation.drop(source.pod, source.rank)
        return outcome

    def add_routed(self, model: str, keys: Sequence[int], *, pod: str, rank: int = 0) -> None:
        """Counts blocks as cached on a pod that has just received their prompt.

        Without effect if the pod has them all, because no event would confirm them.

        Raises:
            BackendUnavailableError: the backend does not answer.
        """
        lookup = self.backend.lookup(keys)
        candidates = lookup.holders.candidates(model, [pod])
        scores = score_prefixes(
            lookup, blocks=len(keys), candidates=candidates, weights=self._weights
        )
        if not any(score.rank == rank and score.matched == len(keys) for score in scores):
            self.speculation.add(pod, rank, keys)

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

        Raises:
            ValueError: a token id is outside 32 bits.
        """
        features = None
        if media or salt:
            block_count = len(tokens) // self.block_size
            features = requested_features(block_count, self.block_size, media, salt)
        return self._prefix_keys.keys(self._keys.root(lora or model), tokens, features)

    def score(
        self,
        model: str,
        tokens: Sequence[int],
        *,
        pods: Collection[str] = (),
        lora: str | None = None,
        salt: str | None = None,
        media: Sequence[Placeholder] = (),
    ) -> list[PodScore]:
        """Scores the engines that have the start of a prompt of token ids, best first.

        A prompt of less than a block scores no engine. `model` is the base model or an adapter's
        name, `lora` the adapter. `pods` limits the choice; () means all pods.

        Raises:
            ValueError: a token id is outside 32 bits.
            BackendUnavailableError: the backend does not answer.
        """
        log.log(TRACE, "score %s: tokens %s", lora or model, tokens)
        started_s = time.perf_counter()
        keys = self.block_keys(model, tokens, lora=lora, salt=salt, media=media)
        scores: list[PodScore] = []
        if keys:
            lookup = self.backend.lookup(keys)
            candidates = lookup.holders.candidates(model, pods)
            scores = score_prefixes(
                lookup, blocks=len(keys), candidates=candidates, weights=self._weights
            )
            if self.speculation.prompts:
                scores = self.speculation.complete(scores, keys, pods)
            log.log(TRACE, "score %s: keys %s, scores %s", model, keys, scores)
        matched = scores[0].matched if scores else 0
        self.metrics.record_lookup(time.perf_counter() - started_s, matched)
        return scores

    def base_model(self, name: str) -> str:
        """Returns the base model of pods with blocks of the adapter `name`.

        Returns `name` if there are no such pods.
        """
        holders = self.backend.lookup([]).holders
        for _, holder in holders.members(holders.candidates(name)):
            return holder.source.model
        return name


def _stamp(batch: PodBatch, sequence: int | None, *, is_restart: bool) -> Stamp | None:
    """Returns the stamp of a batch; None for a batch without a number."""
    if sequence is None:
        return None
    return Stamp(sequence, batch.ts, is_restart)
