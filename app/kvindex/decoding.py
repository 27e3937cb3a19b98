"""Events off the wire: maps and arrays of every vLLM and SGLang, any width of integer.

Events that are well-formed are decoded together in one step into typed ones. Others are taken apart, so that
only those are lost that cannot be used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, get_type_hints

import msgspec
from msgspec import DecodeError, Struct, ValidationError
from msgspec.msgpack import Decoder

from app.kvcache.events import (
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    EventBatch,
    KVEvent,
    PublishedKeys,
)
from app.kvcache.hashing import low64
from app.kvindex.metrics import EventLoss
from app.kvindex.scanning import Data, array_of, skip

LOW_64 = (1 << 64) - 1
MOST_HASH_BYTES = 64
BROKEN = DecodeError, RecursionError, UnicodeDecodeError
"""What msgspec raises for bytes that are no msgpack, nested too deeply, or text that is none."""

AS_MSGPACK = (bytes,)
"""Text is never taken for bytes in base64."""


class Part(NamedTuple):
    """Some events of a batch that can be used, in order, and why others could not: reason -> how many.

    There are at most `most_tokens` token ids in all of them; None is where nobody has counted.
    """

    events: Sequence[KVEvent]
    losses: Mapping[str, int] = {}
    most_tokens: int | None = None


class ArrayStored(Struct, gc=False, array_like=True, tag="BlockStored"):
    """`BlockStored` as vLLM up to 0.23 and SGLang write it: trailing items may be missing."""

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: list[int] | None
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: PublishedKeys | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None

    def event(self) -> BlockStored:
        return BlockStored(
            self.block_hashes,
            self.parent_block_hash,
            self.token_ids or [],
            self.block_size,
            self.lora_id,
            self.medium,
            self.lora_name,
            self.extra_keys,
            self.group_idx,
            self.kv_cache_spec_kind,
            self.kv_cache_spec_sliding_window,
        )


class ArrayRemoved(Struct, gc=False, array_like=True, tag="BlockRemoved"):
    """`BlockRemoved` as an array."""

    block_hashes: list[BlockHash]
    medium: str | None = None
    group_idx: int | None = None

    def event(self) -> BlockRemoved:
        return BlockRemoved(self.block_hashes, self.medium, self.group_idx)


class ArrayCleared(Struct, gc=False, array_like=True, tag="AllBlocksCleared"):
    """`AllBlocksCleared` as an array."""

    def event(self) -> AllBlocksCleared:
        return AllBlocksCleared()


class ArrayBatch(Struct, gc=False, array_like=True):
    """A batch of arrays, with or without a rank."""

    ts: float
    events: list[ArrayStored | ArrayRemoved | ArrayCleared]
    data_parallel_rank: int | None = None


_MAP_BATCH: Decoder[EventBatch] = Decoder(EventBatch)
_ARRAY_BATCH: Decoder[ArrayBatch] = Decoder(ArrayBatch)
_MAPS: Decoder[list[KVEvent]] = Decoder(list[KVEvent])
_ARRAYS: Decoder[list[ArrayStored | ArrayRemoved | ArrayCleared]] = Decoder(
    list[ArrayStored | ArrayRemoved | ArrayCleared]
)
_ARRAY_EVENT: Decoder[ArrayStored | ArrayRemoved | ArrayCleared] = Decoder(
    ArrayStored | ArrayRemoved | ArrayCleared
)
_MAP_EVENT: Decoder[KVEvent] = Decoder(BlockStored | BlockRemoved | AllBlocksCleared)

FIELDS: Mapping[str, Mapping[str, object]] = {
    "BlockStored": get_type_hints(ArrayStored),
    "BlockRemoved": get_type_hints(ArrayRemoved),
    "AllBlocksCleared": {},
}
"""Name of an event -> field -> type, in the order of arrays."""
OPTIONAL = {"parent_block_hash", *ArrayStored.__struct_fields__[4:], *ArrayRemoved.__struct_fields__[1:]}


def field_losses() -> list[str]:
    """Every `bad_<field>` that there can be."""
    return sorted({"bad_ts"} | {f"bad_{field}" for fields in FIELDS.values() for field in fields})


def decode_batch(payload: bytes | memoryview) -> EventBatch | None:
    """A batch whose events are all well-formed, maps or arrays; None for anything else."""
    try:
        return _MAP_BATCH.decode(payload)
    except BROKEN:
        pass
    try:
        batch = _ARRAY_BATCH.decode(payload)
        return EventBatch(batch.ts, [event.event() for event in batch.events], batch.data_parallel_rank)
    except BROKEN:
        return None


def decode_events(count: int, items: Data) -> Part:
    """The events of an array that is msgpack, whatever is in it."""
    packed = array_of(count, items)
    try:
        return Part(_MAPS.decode(packed))
    except BROKEN:
        pass
    try:
        return Part([event.event() for event in _ARRAYS.decode(packed)])
    except BROKEN:
        pass
    events: list[KVEvent] = []
    losses: Counter[str] = Counter()
    end = 0
    for _ in range(count):
        start, (end, _) = end, skip(items, end, 1, len(items))
        found = _event(items[start:end])
        if isinstance(found, str):
            losses[found] += 1
        else:
            events.append(found)
    return Part(events, losses)


def engine_keys(values: Sequence[BlockHash]) -> list[int]:
    """Block hashes as engine keys: the low 64 bits. ValueError for no bytes, or too many."""
    try:
        if min(values, default=0) >= 0:  # type: ignore[operator]
            return values  # type: ignore[return-value]
    except TypeError:
        pass  # some are bytes
    return [value & LOW_64 if isinstance(value, int) else _low64(value) for value in values]


def _low64(value: bytes) -> int:
    if not 0 < len(value) <= MOST_HASH_BYTES:
        raise ValueError(f"a block hash of {len(value)} bytes")
    return low64(value)


def _event(raw: Data) -> KVEvent | str:
    """One event, or why there is none."""
    for read in (_MAP_EVENT.decode, lambda data: _ARRAY_EVENT.decode(data).event()):
        try:
            event: KVEvent = read(raw)
            return event
        except BROKEN:
            continue
    try:
        value: object = msgspec.msgpack.decode(raw)
    except BROKEN:
        return _malformed()
    if isinstance(value, bytes):  # packed by itself, as llm-d's storage publishers do
        return _event(value) if value[:1] not in (b"\xc4", b"\xc5", b"\xc6") else _malformed()
    return _explained(value)


def _malformed() -> EventLoss:
    return "malformed_event"


def _explained(value: object) -> KVEvent | str:
    """An event that is not of one of the usual forms, or the first field that makes it unusable."""
    name, fields = _named(value)
    if not isinstance(name, str):
        return _malformed()
    types = FIELDS.get(name)
    if types is None:
        return "unknown_event"
    known: dict[str, object] = {}
    for field, kind in types.items():
        if field not in fields and field not in OPTIONAL:
            return f"bad_{field}"
        try:
            known[field] = msgspec.convert(fields.get(field), kind, builtin_types=AS_MSGPACK)
        except ValidationError:
            return f"bad_{field}"
    return event_of(name, known)


def _named(value: object) -> tuple[object, Mapping[str, object]]:
    match value:
        case dict():
            return value.get("type"), value
        case [str() as name, *items]:
            return name, dict(zip(FIELDS.get(name, ()), items, strict=False))
    return None, {}


def event_of(name: str, fields: Mapping[str, object]) -> KVEvent:
    """The event of a name, of fields that have their types."""
    everything = {"type": name, "lora_id": None, **fields, "token_ids": fields.get("token_ids") or []}
    kinds = BlockStored | BlockRemoved | AllBlocksCleared
    event: KVEvent = msgspec.convert(everything, kinds, builtin_types=AS_MSGPACK)
    return event
