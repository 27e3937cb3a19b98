"""Streams of KV events: batches of the cache's events as messages of gRPC."""

from collections.abc import Iterator, Sequence

from gevent.queue import Queue

from app.core.engine.kvcache.events import BlockRemoved, BlockStored, EventBatch, KVEvent
from app.core.server.http.errors import ApiError
from app.core.server.http.rpc import RpcOutcome
from app.extensions.grpc.messages import common, framed_message
from app.shared.event_hashes import signed64

MAX_LAG_BATCHES = 1024
"""Batches that a subscriber may lag behind; then its stream ends. All subscribers share them."""


class Subscription:
    """A subscriber's stream of batches; `outcome` is an error once the subscriber is too slow."""

    def __init__(self) -> None:
        self.outcome = RpcOutcome()
        self._queue: Queue[tuple[int, EventBatch]] = Queue()

    def publish(self, topic: str, sequence: int, batch: EventBatch) -> None:
        """Queues a batch, unless the subscriber lags too far behind."""
        if self._queue.qsize() <= MAX_LAG_BATCHES:
            self._queue.put((sequence, batch))

    def messages(self) -> Iterator[bytes]:
        """Yields a `KvEventBatch` for each batch as it comes."""
        while self._queue.qsize() <= MAX_LAG_BATCHES:
            sequence, batch = self._queue.get()
            events = [
                {"event_id": event_id, **event_fields(event)}
                for event_id, event in enumerate(batch.events)
            ]
            message = common.KvEventBatch(
                sequence_number=sequence,
                timestamp=batch.ts,
                dp_rank=batch.data_parallel_rank,
                events=events,
            )
            yield framed_message(message)
        self.outcome.fail(ApiError(429, "RateLimitError", "The subscriber is too slow."))


def event_fields(event: KVEvent) -> dict[str, object]:
    """Returns the fields of a `KvCacheEvent`; None leaves a field out.

    Hashes are the low 64 bits, signed.
    """
    if not isinstance(event, BlockStored | BlockRemoved):
        return {"cleared": {}}
    block_hashes = list(map(signed64, event.block_hashes))
    place = {
        "medium": event.medium,
        "tier": None if event.medium is None else common.KV_CACHE_TIER_DEVICE,
        "group_idx": event.group_idx,
    }
    if isinstance(event, BlockRemoved):
        return {"removed": {"block_hashes": block_hashes, **place}}
    size = event.block_size
    blocks = []
    for number, block_hash in enumerate(block_hashes):
        extra_keys = None
        if event.extra_keys:
            extra_keys = event.extra_keys[number]
        block = {
            "block_hash": block_hash,
            "token_ids": event.token_ids[number * size : (number + 1) * size],
            "block_size": size,
            "lora_id": event.lora_id,
            "extra_keys": list(map(_extra_key, extra_keys or ())),
        }
        blocks.append(block)
    parent = event.parent_block_hash
    stored = {
        "blocks": blocks,
        "parent_block_hash": None if parent is None else signed64(parent),
        **place,
        "kv_cache_spec_kind": event.kv_cache_spec_kind,
        "lora_name": event.lora_name,
    }
    return {"stored": stored}


def _extra_key(key: object) -> dict[str, object]:
    """Returns the fields of an extra key of a block; empty for a key of unknown form."""
    if isinstance(key, Sequence) and not isinstance(key, str | bytes):
        if len(key) != 2:
            return {}
        return {"multimodal": {"identifier": key[0], "offset": key[1]}}
    kinds = {str: "text", bytes: "blob", int: "number"}
    if type(key) in kinds:
        return {kinds[type(key)]: key}
    return {}
