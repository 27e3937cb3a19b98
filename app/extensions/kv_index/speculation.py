"""Prompts that a router has just sent to pods, whose events have not arrived yet.

The blocks of such a prompt count as cached on its pod until an event stores its last full block, or
until their lifetime ends.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from app.core.base.clock.pause import pause_if_possible
from app.extensions.kv_index.holders import IndexedEngine
from app.extensions.kv_index.scorer import PodScore

SPECULATIVE = "speculative"
"""Tier of blocks that no event has confirmed yet."""
LIMIT_BYTES = 64 << 20
PAUSE_EVERY = 1_000
"""Prompts that are compared between two pauses."""
KEY_BYTES = 44
"""Memory of a key and its place in a list, in bytes."""
PROMPT_BYTES = 600
"""Memory of a prompt besides its keys, in bytes."""

PromptId = tuple[str, int, int]
"""Pod, rank, and the key of the prompt's last full block, which stands for all blocks."""


class RoutedPrompt(Struct, frozen=True, gc=False):
    """The keys of a prompt's full blocks, and the end of their lifetime."""

    keys: Sequence[int]
    expires_s: float


class Speculation:
    """The routed prompts of all pods. Above `LIMIT_BYTES`, the oldest are dropped."""

    def __init__(
        self,
        lifetime_s: float,
        weight: float = 1.0,
        now: Callable[[], float] = time.monotonic,
        limit_bytes: int = LIMIT_BYTES,
    ) -> None:
        """`weight` is the score of a block; with a lifetime of 0, nothing is kept."""
        self.lifetime_s = lifetime_s
        self._weight = weight
        self._now = now
        self.prompts: OrderedDict[PromptId, RoutedPrompt] = OrderedDict()
        """All prompts, the one that expires first at the beginning."""
        self._by_first_key: dict[int, dict[PromptId, None]] = {}
        self.size_bytes = 0
        """Estimated memory in use, in bytes."""
        self.limit_bytes = limit_bytes
        """Most memory, in bytes."""

    def __len__(self) -> int:
        return len(self.prompts)

    def add(self, pod: str, rank: int, keys: Sequence[int]) -> None:
        """Counts the blocks of a prompt as cached; a repeated prompt starts its lifetime again."""
        if not keys or not self.lifetime_s:
            return
        prompt_id = (pod, rank, keys[-1])
        self._discard(prompt_id)
        self.prompts[prompt_id] = RoutedPrompt(keys, self._now() + self.lifetime_s)
        self._by_first_key.setdefault(keys[0], {})[prompt_id] = None
        self.size_bytes += _prompt_bytes(keys)
        while self.size_bytes > self.limit_bytes:
            self._discard(next(iter(self.prompts)))

    def confirm(self, source: IndexedEngine, keys: Iterable[int]) -> None:
        """Forgets prompts of an engine whose last block has been stored by an event."""
        if self.prompts:
            for key in keys:
                self._discard((source.pod, source.rank, key))

    def drop(self, pod: str, rank: int | None = None) -> None:
        """Forgets all prompts of a pod, or of one of its ranks."""
        for prompt_id in list(self.prompts):
            if prompt_id[0] == pod and rank in (None, prompt_id[1]):
                self._discard(prompt_id)

    def complete(
        self, scores: list[PodScore], keys: Sequence[int], pods: Collection[str]
    ) -> list[PodScore]:
        """Returns the scores with the blocks of routed prompts, best first.

        `keys` has the keys of all full blocks of the prompt. `pods` limits the choice; () means all
        pods.
        """
        lengths = self._prefix_lengths(keys, pods)
        if not lengths:
            return scores
        completed = []
        for score in scores:
            length = lengths.pop((score.pod, score.rank), 0)
            completed.append(self._extended(score, length, len(keys)))
        for (pod, rank), length in lengths.items():
            score = PodScore(pod=pod, score=0.0, matched=0, match_ratio=0.0, tiers={}, rank=rank)
            completed.append(self._extended(score, length, len(keys)))
        completed.sort(key=_score_of, reverse=True)
        return completed

    def _extended(self, score: PodScore, length: int, blocks: int) -> PodScore:
        """Returns a score with speculative blocks up to `length`."""
        added = length - score.matched
        if added <= 0:
            return score
        return replace(
            score,
            score=score.score + added * self._weight,
            matched=length,
            match_ratio=length / blocks,
            tiers={**score.tiers, SPECULATIVE: added},
        )

    def _prefix_lengths(
        self, keys: Sequence[int], pods: Collection[str]
    ) -> dict[tuple[str, int], int]:
        """Returns (pod, rank) -> the blocks of the prompt that its routed prompts begin with."""
        self._expire()
        lengths: dict[tuple[str, int], int] = {}
        # Prompts that begin with the same system prompt may be many; some end during a pause.
        for number, prompt_id in enumerate(list(self._by_first_key.get(keys[0], ())), 1):
            if number % PAUSE_EVERY == 0:
                pause_if_possible()
            pod, rank, _ = prompt_id
            prompt = self.prompts.get(prompt_id)
            if prompt is None or (pods and pod not in pods):
                continue
            length = common_prefix(prompt.keys, keys)
            lengths[pod, rank] = max(length, lengths.get((pod, rank), 0))
        return lengths

    def _expire(self) -> None:
        now_s = self._now()
        while self.prompts:
            prompt_id = next(iter(self.prompts))
            if self.prompts[prompt_id].expires_s > now_s:
                return
            self._discard(prompt_id)

    def _discard(self, prompt_id: PromptId) -> None:
        prompt = self.prompts.pop(prompt_id, None)
        if prompt is None:
            return
        self.size_bytes -= _prompt_bytes(prompt.keys)
        siblings = self._by_first_key[prompt.keys[0]]
        del siblings[prompt_id]
        if not siblings:
            del self._by_first_key[prompt.keys[0]]


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Returns the number of equal keys at the beginning of two prompts.

    A key covers all blocks before it, so equal keys at one place mean equal keys before it.
    """
    low = 0
    high = min(len(first), len(second))
    while low < high:
        middle = (low + high) // 2
        if first[middle] == second[middle]:
            low = middle + 1
        else:
            high = middle
    return low


def _prompt_bytes(keys: Sequence[int]) -> int:
    return PROMPT_BYTES + KEY_BYTES * len(keys)


def _score_of(score: PodScore) -> float:
    return score.score
