"""What the index of KV blocks is compared with, and the events that both are given."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from random import Random

import cbor2

from app.core.engine.kvcache.events import BlockHash, BlockStored
from app.core.engine.kvcache.hashing import low64

MODEL = "m"
BLOCK = 16
VOCABULARY = 128_000


def chain(tokens: Sequence[int], parent: bytes, size: int) -> Iterator[bytes]:
    """The hash of every full block of `size` tokens, each over the one before it."""
    for start in range(0, len(tokens) - size + 1, size):
        block = (parent, tuple(tokens[start : start + size]), None)
        parent = hashlib.sha256(cbor2.dumps(block, canonical=True)).digest()
        yield parent


class Naive:
    """The index as one writes it first: (model, hash) -> {(pod, tier)}, and engine key -> key."""

    def __init__(self) -> None:
        self.blocks: dict[tuple[str, int], set[tuple[str, str]]] = {}
        self.engine: dict[tuple[str, int], int] = {}
        self.root = hashlib.sha256(cbor2.dumps("")).digest()

    def keys(self, tokens: Sequence[int], parent: bytes) -> Iterator[int]:
        return map(low64, chain(tokens, parent, BLOCK))

    def score(self, tokens: Sequence[int]) -> dict[str, float]:
        scores: dict[str, float] = {}
        active: set[str] | None = None
        for key in self.keys(tokens, self.root):
            weights = {pod: 1.0 for pod, _ in self.blocks.get((MODEL, key), ())}
            active = set(weights) if active is None else active & set(weights)
            if not active:
                break
            for pod in active:
                scores[pod] = scores.get(pod, 0.0) + weights[pod]
        return scores

    def store(self, pod: str, event: BlockStored) -> None:
        for engine, key in zip(
            event.block_hashes, self.keys(event.token_ids, self.root), strict=True
        ):
            self.blocks.setdefault((MODEL, key), set()).add((pod, "gpu"))
            self.engine[MODEL, engine] = key  # type: ignore[index]


class Fleet:
    """Events of pods that hold prompts, from a seed."""

    def __init__(self, seed: int = 1) -> None:
        self._rng = Random(seed)

    def tokens(self, blocks: int) -> list[int]:
        return [self._rng.randrange(VOCABULARY) for _ in range(blocks * BLOCK)]

    def event(self, tokens: Sequence[int]) -> BlockStored:
        """A store as vLLM 0.32 publishes it."""
        hashes: list[BlockHash] = [self._rng.getrandbits(64) for _ in range(len(tokens) // BLOCK)]
        return BlockStored(
            hashes,
            None,
            token_ids=list(tokens),
            block_size=BLOCK,
            lora_id=None,
            extra_keys=[None] * len(hashes),
            group_idx=0,
            kv_cache_spec_kind="full_attention",
        )
