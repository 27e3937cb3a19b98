"""SubscribeKvEvents: what happens to blocks of the KV cache, as a stream of batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from app.api.grpc.information import ServerFacts
from app.api.grpc.messages import SERVICE, common, read
from app.api.grpc.standard import unimplemented
from app.http.context import RequestContext
from app.http.errors import ApiError
from app.http.response import StreamingBody
from app.http.rpc import RpcMethod, RpcOutcome, RpcResponse, framed
from app.http.stream import StreamTransport
from app.kvcache.event_sender import EventSender
from app.kvcache.events import BlockRemoved, BlockStored, EventBatch, KVEvent
from app.kvcache.hashing import low64

MOST_WAITING = 1000
MOST_WAITING_BYTES = 16 << 20
"""So many batches, and bytes of them, may a subscriber be behind; then its stream ends."""
MOST_SUBSCRIBERS = 32
"""At a time: each of them costs its own message of every batch."""
NO_EVENTS = "There are no KV events: the server has no prefix cache of its own, or --enable-kvcache is off."


def events_method(publisher: EventSender | None, facts: ServerFacts) -> RpcMethod:
    """The method; without a publisher there is nothing to tell."""
    path = f"/{SERVICE}/SubscribeKvEvents"
    if publisher is None:
        return unimplemented(path, NO_EVENTS)

    subscribers: set[EventBatches] = set()

    def subscribe(context: RequestContext) -> RpcResponse:
        """Every batch from now on, numbered as on the ZMQ socket. Older ones are not kept here."""
        asked = read(context, common.SubscribeKvEventsRequest)
        if len(subscribers) >= MOST_SUBSCRIBERS:
            raise ApiError(429, "RateLimitError", f"There are {MOST_SUBSCRIBERS} subscribers already.")
        following = publisher.next_sequence
        if asked.start_sequence_number not in (0, following):
            text = f"Batch {asked.start_sequence_number} is not kept; the next one is {following}."
            raise ApiError(412, "PreconditionFailed", text, "start_sequence_number")
        outcome = RpcOutcome()
        batches = EventBatches(publisher, outcome)
        subscribers.add(batches)
        response = RpcResponse(batches, None, outcome)
        response.on_close(lambda: subscribers.discard(batches))
        return response

    return RpcMethod(path, subscribe)


class EventBatches(StreamingBody):
    """The batches of `publisher`, from the moment on that somebody takes them."""

    __slots__ = ("_is_too_slow", "_outcome", "_publisher", "_transport", "_waiting", "_waiting_bytes")
    endless = True

    def __init__(self, publisher: EventSender, outcome: RpcOutcome) -> None:
        super().__init__()
        self._publisher, self._outcome = publisher, outcome
        self._transport: StreamTransport | None = None
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._is_too_slow = False

    def attach(self, transport: StreamTransport) -> None:
        """Tell them from now on."""
        self._transport = transport
        transport.start(self)
        self._publisher.listen(self._take)

    def _take(self, topic: str, sequence: int, batch: EventBatch) -> None:
        transport = self._transport
        if transport is None or self._is_too_slow:
            return
        data = framed(batch_message(sequence, batch).SerializeToString())
        if not transport.lags:
            transport.write(data)
            return
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if len(self._waiting) > MOST_WAITING or self._waiting_bytes > MOST_WAITING_BYTES:
            self._is_too_slow = True
            self._waiting.clear()
            self._outcome.fail(ApiError(429, "RateLimitError", "The subscriber is too slow."))

    def next_slice(self) -> tuple[bytes, bool, bool]:
        """The batch that has waited longest; see `StreamSource`."""
        if self._is_too_slow:
            return b"", False, True
        data = self._waiting.popleft() if self._waiting else b""
        self._waiting_bytes -= len(data)
        self.bytes_sent += len(data)
        return data, bool(self._waiting), False

    def leave(self) -> None:
        """Nobody listens any more."""
        self.close()

    def __iter__(self) -> Iterator[bytes]:
        raise NotImplementedError

    def close(self) -> None:
        """The call is over."""
        if self._transport is not None:
            self._transport = None
            self._publisher.forget(self._take)


def batch_message(sequence: int, batch: EventBatch) -> Any:
    """A `KvEventBatch`; hashes are the low 64 bits, with their sign."""
    told = common.KvEventBatch(sequence_number=sequence, timestamp=batch.ts, dp_rank=batch.data_parallel_rank)
    for number, event in enumerate(batch.events):
        told.events.append(_event(number, event))
    return told


def _event(number: int, event: KVEvent) -> Any:
    told = common.KvCacheEvent(event_id=number)
    match event:
        case BlockStored():
            _stored(told.stored, event)
        case BlockRemoved():
            removed = told.removed
            removed.block_hashes.extend(_signed(event.block_hashes))
            _place(removed, event.medium, event.group_idx)
        case _:
            told.cleared.SetInParent()
    return told


def _stored(told: Any, event: BlockStored) -> None:
    size = event.block_size
    for number, name in enumerate(_signed(event.block_hashes)):
        tokens = event.token_ids[number * size : (number + 1) * size]
        block = told.blocks.add(block_hash=name, token_ids=tokens, block_size=size, lora_id=event.lora_id)
        keys = event.extra_keys[number] if event.extra_keys else None
        for key in keys or ():
            _add_key(block, key)
    if event.parent_block_hash is not None:
        told.parent_block_hash = _signed([event.parent_block_hash])[0]
    _place(told, event.medium, event.group_idx)
    if event.kv_cache_spec_kind is not None:
        told.kv_cache_spec_kind = event.kv_cache_spec_kind
    if event.lora_name is not None:
        told.lora_name = event.lora_name


def _add_key(block: Any, key: object) -> None:
    made = block.extra_keys.add()
    if isinstance(key, str):
        made.text = key
    elif isinstance(key, bytes):
        made.blob = key
    elif isinstance(key, int):
        made.number = key
    elif isinstance(key, Sequence) and len(key) == 2:
        made.multimodal.identifier, made.multimodal.offset = key


def _place(told: Any, medium: str | None, group: int | None) -> None:
    if medium is not None:
        told.medium, told.tier = medium, common.KV_CACHE_TIER_DEVICE
    if group is not None:
        told.group_idx = group


def _signed(names: Sequence[int | bytes]) -> list[int]:
    numbers = (name if isinstance(name, int) else low64(name) for name in names)
    return [number - (1 << 64) if number >= 1 << 63 else number for number in numbers]
