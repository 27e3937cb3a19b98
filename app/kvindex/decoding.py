"""Batches of events off the wire: maps and arrays of every vLLM and SGLang, any width of integer.

A batch that is well-formed is decoded in one step into typed events. Any other is taken apart, so that only
the events that cannot be used are lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, nan
from typing import Any, get_type_hints

import msgspec
from msgspec import DecodeError, Raw, Struct, ValidationError
from msgspec.msgpack import Decoder

from app.kvcache.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, EventBatch, KVEvent
from app.kvcache.hashing import low64
from app.kvindex.losses import EventLoss

LOW_64 = (1 << 64) - 1
MOST_HASH_BYTES = 64


class Batch(Struct, frozen=True):
    """The events that can be used, in order, and why others cannot."""

    ts: float
    rank: int
    events: Sequence[KVEvent]
    losses: Sequence[str] = ()


class Unreadable(Exception):
    """The payload is no batch at all."""


class ArrayStored(Struct, gc=False, array_like=True, tag="BlockStored"):
    """`BlockStored` as vLLM up to 0.23 and SGLang write it: trailing items may be missing."""

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: list[int] | None
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
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


class LooseBatch(Struct, gc=False, array_like=True):
    """A batch of anything, its events still in bytes."""

    ts: Raw
    events: list[Raw]
    data_parallel_rank: Raw = Raw(b"\xc0")


BROKEN = DecodeError, RecursionError, UnicodeDecodeError
"""What msgspec raises for bytes that are no msgpack, nested too deeply, or text that is none."""

_MAPS: Decoder[EventBatch] = Decoder(EventBatch)
_ARRAYS: Decoder[ArrayBatch] = Decoder(ArrayBatch)
_LOOSE: Decoder[LooseBatch] = Decoder(LooseBatch)
_ARRAY_EVENT: Decoder[ArrayStored | ArrayRemoved | ArrayCleared] = Decoder(
    ArrayStored | ArrayRemoved | ArrayCleared
)
_MAP_EVENT: Decoder[KVEvent] = Decoder(BlockStored | BlockRemoved | AllBlocksCleared)

_FIELDS: Mapping[str, Mapping[str, Any]] = {
    "BlockStored": get_type_hints(ArrayStored),
    "BlockRemoved": get_type_hints(ArrayRemoved),
    "AllBlocksCleared": {},
}
"""Name of an event -> field -> type, in the order of arrays."""
_OPTIONAL = {"parent_block_hash", *ArrayStored.__struct_fields__[4:], *ArrayRemoved.__struct_fields__[1:]}


def decode(payload: bytes) -> Batch:
    """The batch of a message. Raises `Unreadable` when not even its parts can be told apart."""
    try:
        batch = _MAPS.decode(payload)
        if isfinite(batch.ts):
            return Batch(batch.ts, batch.data_parallel_rank or 0, batch.events)
    except BROKEN:
        pass
    try:
        arrays = _ARRAYS.decode(payload)
        events = [event.event() for event in arrays.events]
        if isfinite(arrays.ts):
            return Batch(arrays.ts, arrays.data_parallel_rank or 0, events)
    except BROKEN:
        pass
    return _taken_apart(payload)


def hashes(values: Sequence[BlockHash]) -> list[int]:
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


def _taken_apart(payload: bytes) -> Batch:
    losses: list[str] = []
    try:
        loose = _LOOSE.decode(payload)
        rank = msgspec.msgpack.decode(loose.data_parallel_rank, type=int | None) or 0
    except BROKEN as error:
        raise Unreadable(str(error)) from None
    try:
        ts = msgspec.msgpack.decode(loose.ts, type=float)
    except BROKEN:
        ts = nan
    if not isfinite(ts):
        ts = 0.0
        losses.append("bad_ts")
    events: list[KVEvent] = []
    for raw in loose.events:
        found = _event(bytes(raw))
        if isinstance(found, str):
            losses.append(found)
        else:
            events.append(found)
    return Batch(ts, rank, events, losses)


def _event(raw: bytes) -> KVEvent | str:
    """One event, or why there is none."""
    for read in (_MAP_EVENT.decode, lambda data: _ARRAY_EVENT.decode(data).event()):
        try:
            event: KVEvent = read(raw)
            return event
        except BROKEN:
            continue
    try:
        value = msgspec.msgpack.decode(raw)
    except BROKEN:
        return _malformed()
    if isinstance(value, bytes):  # packed by itself, as llm-d's storage publishers do
        return _event(value) if value[:1] not in (b"\xc4", b"\xc5", b"\xc6") else _malformed()
    return _explained(value)


def _malformed() -> EventLoss:
    return "malformed_event"


def _explained(value: Any) -> KVEvent | str:
    """An event that is not of one of the usual forms, or the first field that makes it unusable."""
    name, fields = _named(value)
    types = _FIELDS.get(name) if isinstance(name, str) else None
    if types is None:
        return "unknown_event" if isinstance(name, str) else _malformed()
    known: dict[str, Any] = {}
    for field, kind in types.items():
        if field not in fields and field not in _OPTIONAL:
            return f"bad_{field}"
        try:
            known[field] = msgspec.convert(fields.get(field), kind)
        except ValidationError:
            return f"bad_{field}"
    return _made(name, known)


def _named(value: Any) -> tuple[Any, Mapping[str, Any]]:
    match value:
        case dict():
            return value.get("type"), value
        case [str() as name, *items]:
            return name, dict(zip(_FIELDS.get(name, ()), items, strict=False))
    return None, {}


def _made(name: str, fields: Mapping[str, Any]) -> KVEvent:
    match name:
        case "BlockStored":
            return ArrayStored(**fields).event()
        case "BlockRemoved":
            return ArrayRemoved(**fields).event()
    return AllBlocksCleared()


def field_losses() -> list[str]:
    """Every `bad_<field>` that there can be."""
    return sorted({"bad_ts"} | {f"bad_{field}" for fields in _FIELDS.values() for field in fields})
