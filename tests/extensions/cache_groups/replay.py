"""Replays a recorded example of vLLM's KV cache manager against `GroupedCache`."""

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from app.core.base.metrics.recorder import Recorder
from app.core.engine.kvcache.cached_sequence import CachedSequence
from app.core.engine.kvcache.events import AllBlocksCleared, BlockStored, KVEvent
from app.core.engine.kvcache.hashing import BlockHasher
from app.core.engine.lora import Adapter
from app.extensions.cache_groups.cache import GroupedCache
from app.extensions.cache_groups.layers import group_layers
from app.extensions.cache_groups.options import CacheOptions
from vllm_facts.model_shape import ModelShape

RECORDED = Path(__file__).parent / "recorded"


def read_example(name: str) -> dict[str, Any]:
    """Returns the recorded example `name`."""
    example: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text("utf-8"))
    return example


class PlayedSequence(CachedSequence):
    """A sequence with the reply tokens that the example names."""

    def __init__(self, prompt_tokens: int) -> None:
        super().__init__(prompt_tokens)
        self.ids: list[int] = []

    def reply_ids(self, start: int, stop: int) -> Sequence[int]:
        """See `CachedSequence`."""
        return self.ids[start:stop]


class Replay:
    """A cache with the groups of an example, and the results of its operations."""

    def __init__(self, example: dict[str, Any]) -> None:
        model = example["model"]
        layers = ModelShape(
            layer_types=model["layer_types"], sliding_window=model["sliding_window"] or 0
        )
        block_size = model["block_size"]
        interval = example["retention_interval"]
        options = CacheOptions(
            groups=group_layers(layers),
            # None keeps everything, as an interval of one block does.
            retention_blocks=1 if interval is None else interval // block_size,
            max_batched_tokens=example["max_num_batched_tokens"],
            max_model_len=example["max_model_len"],
            max_prompt_tokens=example["max_num_batched_tokens"],
        )
        self.events: list[KVEvent] = []
        self.cache = GroupedCache(
            example["num_blocks"],
            BlockHasher("sha256_cbor", block_size, "0", Random(1)),
            Recorder("m", example["max_model_len"], {}),
            options=options,
            adapter_of=lambda name: Adapter(name, name),
            publish=self.events.extend,
        )
        self.sequences: dict[str, PlayedSequence] = {}

    def result(self, operation: dict[str, Any]) -> dict[str, Any]:
        """Applies an operation; returns its result in the form of the recording."""
        result = self.apply(operation)
        result["events"] = [event_fields(event) for event in self.take_events()]
        result["free"] = self.cache.pool.free
        return result

    def apply(self, operation: dict[str, Any]) -> dict[str, Any]:
        """Applies an operation; returns its own results."""
        result: dict[str, Any] = getattr(self, operation["do"])(operation)
        self.cache.publish()
        return result

    def take_events(self) -> list[KVEvent]:
        """Returns the events since the last call."""
        events = self.events.copy()
        self.events.clear()
        return events

    def admit(self, operation: dict[str, Any]) -> dict[str, Any]:
        """Computes a prompt, as a sequence that runs alone."""
        tokens: list[int] = []
        for first, count in operation["prompt"]:
            tokens += range(first, first + count)
        sequence = PlayedSequence(len(tokens))
        sequence.prompt = self.cache.make_prompt(tokens, salt=operation.get("salt"))
        hit = self.cache.find(sequence, len(tokens))
        result = {"hit": hit * self.cache.block_size, "fits": True}
        if not self.cache.fits(sequence, len(tokens), hit):
            return result | {"fits": False}
        self.cache.allocate(sequence)
        self.cache.step_over([(sequence, 1)])
        self.sequences[operation["request"]] = sequence
        return result

    def decode(self, operation: dict[str, Any]) -> dict[str, Any]:
        """Computes reply tokens step by step, as the scheduler does."""
        sequence = self.sequences[operation["request"]]
        first = operation["first"]
        for token in range(first, first + operation["count"]):
            sequence.ids.append(token)
            held = len(sequence.blocks) * self.cache.block_size
            if sequence.prompt_tokens + sequence.reply_tokens > held:
                self.cache.grow(sequence, 1)
            sequence.computed = sequence.prompt_tokens + sequence.reply_tokens
            self.cache.step_over([(sequence, 1)])
            self.cache.trim(sequence, step=0, under_way=0)
        return {}

    def free(self, operation: dict[str, Any]) -> dict[str, Any]:
        """Ends a request."""
        sequence = self.sequences.pop(operation["request"], None)
        if sequence is not None:
            self.cache.release(sequence)
        return {}

    def reset(self, operation: dict[str, Any]) -> dict[str, Any]:
        """Empties the cache."""
        return {"done": self.cache.reset()}


def event_fields(event: KVEvent) -> dict[str, Any]:
    """Returns the recorded fields of an event."""
    fields: dict[str, Any] = {"type": type(event).__name__}
    if isinstance(event, AllBlocksCleared):
        return fields
    fields |= {
        "block_hashes": event.block_hashes,
        "medium": event.medium,
        "group_idx": event.group_idx,
    }
    if isinstance(event, BlockStored):
        extra_keys = event.extra_keys
        fields |= {
            "parent_block_hash": event.parent_block_hash,
            "first_token": event.token_ids[0],
            "token_count": len(event.token_ids),
            "block_size": event.block_size,
            "extra_keys": extra_keys if extra_keys and any(extra_keys) else None,
            "kv_cache_spec_kind": event.kv_cache_spec_kind,
            "kv_cache_spec_sliding_window": event.kv_cache_spec_sliding_window,
        }
    return fields
